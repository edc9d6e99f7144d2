"""Trees of plain data, as TOML files give them: merging, differences, and ``key=value`` words.

Only the shape of a recipe is known here, not its classes: tables with a ``name`` (a decoder's: ``method``) stand for a
class of the catalogue, and the fields of one class mean nothing to another.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

from unforced.errors import InputError

NAMED = ("task", "model", "objective")  # tables that a bare name may stand for

HF = "hf:"

Data = dict[str, Any]


def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> Data:
    """``old`` with the keys of ``new``, table by table; a table that names another class replaces the old one.

    >>> merge({"model": {"name": "lstm", "hidden": 256}}, {"model": {"hidden": 64}})
    {'model': {'name': 'lstm', 'hidden': 64}}
    >>> merge({"model": {"name": "lstm", "hidden": 256}}, {"model": {"name": "transformer"}})
    {'model': {'name': 'transformer'}}
    """
    out = dict(old)
    for key, value in new.items():
        before = out.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping) and same_class(before, value):
            value = merge(before, value)
        out[key] = value
    return out


def same_class(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(new.get(label, old.get(label)) == old.get(label) for label in ("name", "method"))


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Data:
    """The changes that ``merge`` needs to make ``new`` of ``old``.

    >>> difference({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 2, "d": 4}})
    {'b': {'d': 4}}
    """
    out: Data = {}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping) and same_class(before, value):
            if inner := difference(before, value):
                out[key] = inner
        elif key not in old or value != before:
            out[key] = value
    return out


def normalize(data: Mapping[str, Any]) -> Data:
    """Write a class that is given by its bare name, ``objective = "cross_entropy"``, as the table it stands for.

    >>> normalize({"model": "hf:models/mine"})
    {'model': {'name': 'huggingface', 'path': 'models/mine'}}
    """
    out = {key: table(key, v) if key in NAMED and isinstance(v, str) else v for key, v in data.items()}
    decoding = out.get("decoding")
    if isinstance(decoding, Mapping):
        out["decoding"] = {k: {"method": v} if isinstance(v, str) else v for k, v in decoding.items()}
    return out


def table(key: str, word: str) -> Data:
    """The table that a word stands for: a name, or for a model also the path of a Hugging Face model behind "hf:"."""
    if key == "model" and word.startswith(HF):
        return {"name": "huggingface", "path": word.removeprefix(HF)}
    return {"name": word}


def parse_overrides(words: Iterable[str]) -> Data:
    """``key=value`` words as one tree: dotted keys, values as TOML spells them, else strings.

    >>> parse_overrides(["training.epochs=3", "objective=label_smoothing", "task.path=data/x.tsv"])
    {'training': {'epochs': 3}, 'objective': {'name': 'label_smoothing'}, 'task': {'path': 'data/x.tsv'}}
    """
    tree: Data = {}
    for word in words:
        key, equals, text = word.partition("=")
        path = key.strip().split(".")
        if not equals or not all(re.fullmatch(r"[A-Za-z0-9_+-]+", part) for part in path):
            raise InputError(f'"{word}" is not of the form key=value')
        branch: Data = {}
        leaf: Data = branch
        for part in path[:-1]:
            leaf[part] = leaf = {}
        leaf[path[-1]] = parse_value(text.strip())
        tree = join_trees(tree, normalize(branch))
    return tree


def join_trees(old: Data, new: Data) -> Data:
    out = dict(old)
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = join_trees(out[key], value) if both else value
    return out


def parse_value(text: str) -> Any:
    try:
        text.encode()
        found = tomllib.loads(f"value = {text}")
    except UnicodeEncodeError:
        raise InputError("a key=value word isn't UTF-8") from None
    except tomllib.TOMLDecodeError:
        return float(text) if re.fullmatch(r"[+-]?\.[0-9]+", text) else text  # TOML has no .5
    value = found["value"]
    plain = len(found) == 1 and isinstance(value, bool | int | float | str | list | dict)
    return value if plain else text  # a date, say, is but a string here


def spell_none(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: spell_none(value) for key, value in data.items()}
    if isinstance(data, list):
        return [spell_none(value) for value in data]
    return "none" if data is None else data
