"""Every line of the catalogue: it imports, it is a frozen dataclass, and plain data make it and come out of it."""

from dataclasses import FrozenInstanceError, is_dataclass
from typing import Any

import pytest

from unforced.errors import InputError
from unforced.options import hints_of
from unforced.recipes.fields import build, fields_of, options_of, required, to_mapping
from unforced.recipes.listing import describe, entries
from unforced.registry import REGISTRY, name_of, resolve

LINES = [(kind, name) for kind, names in REGISTRY.items() for name in names]
OFFERS = {
    "objectives": ("__call__",),
    "models": ("build",),
    "tasks": ("read", "fit", "codec", "metrics"),
    "decoders": ("__call__",),
    "schedules": ("__call__",),
    "costs": ("prepare", "__call__"),
    "kernels": ("kernel",),
}
NEEDED: dict[str, dict[str, Any]] = {"tagging": {"dataset": "german_ler"}}  # one of several fields is needed


def example(kind: str, name: str) -> Any:
    """An instance with its defaults, and a path or a number where one is required."""
    cls = resolve(kind, name)
    hints = hints_of(cls)
    values = {
        field.name: 1.0 if float in options_of(hints[field.name]) else "x"
        for field in fields_of(cls)
        if required(field)
    }
    return build(cls, {**values, **NEEDED.get(name, {})}, name)


@pytest.mark.parametrize(("kind", "name"), LINES, ids=lambda word: word)
def test_each_line(kind: str, name: str) -> None:
    cls = resolve(kind, name)
    assert is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for method in OFFERS[kind]:
        assert callable(getattr(cls, method)), f"{name} has no {method}"
    assert not {"name", "method"} & {field.name for field in fields_of(cls)}, "these keys pick the class"
    assert name_of(kind, cls) == name
    for field in describe(cls):
        assert field["type"]
    instance = example(kind, name)
    assert build(cls, to_mapping(instance), name) == instance
    if fields_of(cls):
        with pytest.raises(FrozenInstanceError):
            setattr(instance, fields_of(cls)[0].name, 1)


@pytest.mark.parametrize("kind", REGISTRY)
def test_entries_say_what_they_are(kind: str) -> None:
    found = entries(kind)
    assert [entry["name"] for entry in found] == list(REGISTRY[kind])
    assert all(entry["summary"] for entry in found)


def test_unknown_names() -> None:
    with pytest.raises(InputError, match='did you mean "label_smoothing"'):
        resolve("objectives", "lable_smoothing")
    with pytest.raises(InputError, match=r'^lstm\.hiden: no such key; did you mean "hidden"'):
        build(resolve("models", "lstm"), {"hiden": 1}, "lstm")
    with pytest.raises(InputError, match='there is no "zzz" in models; there are: lstm, '):
        resolve("models", "zzz")
    with pytest.raises(InputError):
        resolve("models", "os:system")
