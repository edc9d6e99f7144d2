"""What the catalogue offers and which fields each class has, as plain data: what ``unforced list`` shows."""

from __future__ import annotations

import ast
import inspect
import io
import re
import sys
import textwrap
import tokenize
import types
from collections.abc import Callable
from dataclasses import is_dataclass
from typing import Any, Literal, Union, get_args, get_origin

from unforced.catalogue import CATALOGUE, Entries, named
from unforced.recipe import builtin, read
from unforced.schema import Named, default_of, fields_of, hints_of, nobody, required, to_plain


def entries(kind: str) -> list[dict[str, Any]]:
    """Name, summary and fields of each class of a kind, or name, summary and variants of each built-in recipe.

    >>> [entry["name"] for entry in entries("objectives")][:2]
    ['cross_entropy', 'label_smoothing']
    """
    if kind == "recipes":
        recipes = {name: read(name) for name in builtin()}
        return [
            {
                "name": name,
                "summary": data.get("description", ""),
                "variants": [variant.get("name") for variant in data.get("variants", [])],
            }
            for name, data in recipes.items()
        ]
    return [
        {"name": name, "summary": summary(cls), "fields": describe(cls, named)}
        for name, cls in Entries(kind).items()
    ]


def summary(cls: type) -> str:
    """The first paragraph about a class on one line: its file's, where the file holds this one alone, or else its own."""
    alone = (
        sum(entry.startswith(f"{cls.__module__}:") for kind in CATALOGUE.values() for entry in kind.values())
        < 2
    )
    doc = (alone and inspect.getdoc(sys.modules[cls.__module__])) or inspect.getdoc(cls) or ""
    return " ".join(doc.split("\n\n")[0].split())


def describe(cls: type, named: Named = nobody) -> list[dict[str, Any]]:
    """The fields of a dataclass as plain data: name, type, whether required, default, choices and what it means.

    The meaning is the comment behind the field, or else the sentence of the docstring that speaks of it.

    >>> from unforced.objectives.label_smoothing import LabelSmoothing
    >>> describe(LabelSmoothing)[0] == {
    ...     "name": "smoothing", "type": "float", "required": False, "default": 0.1, "choices": None,
    ...     "doc": "``smoothing`` is ε."}
    True
    """
    hints, notes = hints_of(cls), comments(cls)
    return [
        {
            "name": field.name,
            "type": spell(hints[field.name], named),
            "required": required(field),
            "default": to_plain(default_of(field), hints[field.name], named),
            "choices": choices(hints[field.name], named),
            "doc": notes.get(field.name) or mention(cls.__doc__ or "", field.name),
        }
        for field in fields_of(cls)
    ]


def comments(cls: type) -> dict[str, str]:
    """Field name -> the comment behind it in the source, base classes included."""
    found: dict[str, str] = {}
    for base in reversed([base for base in cls.__mro__ if is_dataclass(base)]):
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):
            continue  # no source at hand: fields go without a note
        body = ast.parse(source).body[0]
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        lines = {t.start[0]: t.string.lstrip("# ") for t in tokens if t.type == tokenize.COMMENT}
        for statement in getattr(body, "body", []):
            if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
                found[statement.target.id] = lines.get(statement.end_lineno or 0, "")
    return found


def mention(doc: str, name: str) -> str:
    """The first sentence of a docstring that speaks of ``name`` in double back-ticks."""
    prose = " ".join(doc.split(">>>")[0].split())
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z`])", prose)
    return next((sentence for sentence in sentences if f"``{name}``" in sentence), "")


def choices(hint: Any, named: Named) -> list[Any] | None:
    """The values a field may have, where they can be listed: of a ``Literal``, or the names of its classes."""
    parts = [part for option in (hint, *get_args(hint)) for part in named(option) or ()]
    for option in (hint, *get_args(hint)):
        parts += get_args(option) if get_origin(option) is Literal else ()
    return list(dict.fromkeys(parts)) or None


def spell(hint: Any, named: Named) -> str:
    """A type in Python's words: ``int | None``, ``tuple[float, ...]``."""
    if get_origin(hint) is Literal:
        return " | ".join(dict.fromkeys(type(choice).__name__ for choice in get_args(hint)))
    if named(hint) is not None:
        return "named"
    if get_origin(hint) in (Union, types.UnionType):
        return " | ".join(dict.fromkeys(spell(option, named) for option in get_args(hint)))
    if hint is type(None):
        return "None"
    if get_origin(hint) is Callable:
        return "function"
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)
