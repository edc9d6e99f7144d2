"""Describe the registered classes and their fields as plain data, for ``unforced list``."""

import inspect
import re
import sys
from dataclasses import is_dataclass
from typing import Any, Literal, get_args, get_origin

from unforced.options import expected, hints_of
from unforced.recipes.fields import default_of, fields_of, options_of, required, to_plain
from unforced.recipes.recipe import builtin, read
from unforced.registry import REGISTRY, kind_of, resolve
from unforced.training.options import Training


def entries(kind: str) -> list[dict[str, Any]]:
    """Return name, summary and fields of each class of a kind, or name, summary and variants of each built-in recipe.

    The kind "training" gives the fields of ``[training]``.

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
    if kind == "training":
        return describe(Training)
    classes = {name: resolve(kind, name) for name in REGISTRY[kind]}
    return [{"name": name, "summary": summary(cls), "fields": describe(cls)} for name, cls in classes.items()]


def summary(cls: type) -> str:
    """Return the first paragraph of the docstring of a class, or of its module if it holds this class alone."""
    alone = sum(entry.startswith(f"{cls.__module__}:") for kind in REGISTRY.values() for entry in kind.values()) < 2
    doc = (alone and inspect.getdoc(sys.modules[cls.__module__])) or inspect.getdoc(cls) or ""
    return " ".join(doc.split("\n\n")[0].split())


def describe(cls: type) -> list[dict[str, Any]]:
    """Describe the fields of a dataclass: name, allowed values, default and documentation.

    >>> from unforced.objectives.scheduled_sampling import ScheduledSampling
    >>> describe(ScheduledSampling)[0]["choices"]
    ['argmax', 'sample', 'soft_argmax', 'soft_sample']
    """
    hints, notes = hints_of(cls), comments(cls)
    return [
        {
            "name": field.name,
            "expected": expected(hints[field.name]),
            "required": required(field),
            "default": to_plain(default_of(field), hints[field.name]),
            "choices": choices(hints[field.name]),
            "doc": notes.get(field.name, ""),
        }
        for field in fields_of(cls)
    ]


def comments(cls: type) -> dict[str, str]:
    """Return the comment after or above each field in the source, base classes included."""
    found: dict[str, str] = {}
    for base in reversed([base for base in cls.__mro__ if is_dataclass(base)]):
        above: list[str] = []
        for line in inspect.getsourcelines(base)[0]:
            field = re.match(r"    (\w+): .*?(?:  # (.*))?$", line)
            if field:
                found[field[1]] = field[2] or " ".join(above)
            above = [*above, line.strip()[2:]] if line.startswith("    # ") else []
    return found


def choices(hint: Any) -> list[Any] | None:
    """Return the values of the `Literal`s or the names of the classes that a field may hold, or None."""
    found: list[Any] = []
    for option in options_of(hint):
        option = get_args(option)[0] if get_origin(option) is tuple else option
        kind = kind_of(option)
        found += get_args(option) if get_origin(option) is Literal else REGISTRY[kind] if kind else ()
    return list(dict.fromkeys(found)) or None
