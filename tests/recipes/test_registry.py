"""Every registered class: it imports, is a frozen dataclass, and can be built from plain data."""

from dataclasses import is_dataclass
from typing import Any

import pytest

from unforced.errors import InputError
from unforced.options import hints_of
from unforced.recipes.fields import build, fields_of, options_of, required, to_mapping
from unforced.recipes.listing import describe, entries
from unforced.recipes.recipe import KEYS, Recipe
from unforced.registry import REGISTRY, name_of, resolve
from unforced.training.options import Training

CLASSES = [(kind, name) for kind, names in REGISTRY.items() for name in names]
METHODS = {
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


@pytest.mark.parametrize(("kind", "name"), CLASSES, ids=lambda word: word)
def test_registered_classes(kind: str, name: str) -> None:
    cls = resolve(kind, name)
    assert is_dataclass(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    for method in METHODS[kind]:
        assert callable(getattr(cls, method)), f"{name} has no {method}"
    assert not {"name", "method"} & {field.name for field in fields_of(cls)}, "these keys select the class"
    assert name_of(kind, cls) == name
    for field in describe(cls):
        assert field["expected"]
        assert field["doc"], f"{name}.{field['name']} needs a comment"
    instance = example(kind, name)
    assert build(cls, to_mapping(instance), name) == instance


@pytest.mark.parametrize("kind", REGISTRY)
def test_entries_have_summaries(kind: str) -> None:
    found = entries(kind)
    assert [entry["name"] for entry in found] == list(REGISTRY[kind])
    assert all(entry["summary"] for entry in found)


def test_settings_of_training_are_explained() -> None:
    found = entries("training")
    assert [field["name"] for field in found] == [field.name for field in fields_of(Training)]
    assert all(field["doc"] and field["expected"] for field in found)


def misspell(word: str) -> str:
    """Swap the second and the third letter, or double the last one if they are equal."""
    swapped = word[:1] + word[2:3] + word[1:2] + word[3:]
    return swapped if swapped != word else word + word[-1]


def test_misspelt_keys_are_reported_with_the_nearest() -> None:
    """This holds for the keys of a recipe, of its training and of every registered class."""
    cases = [(resolve(kind, name), field.name) for kind, name in CLASSES for field in fields_of(resolve(kind, name))]
    cases += [(Training, field.name) for field in fields_of(Training)]
    for cls, key in cases:
        with pytest.raises(InputError, match=rf"^options\.{misspell(key)}: no such key; .*\b{key}\b"):
            build(cls, {misspell(key): 1}, "options")
    for key in KEYS:
        with pytest.raises(InputError, match=rf"^{misspell(key)}: no such key; .*\b{key}\b"):
            Recipe.from_data({misspell(key): 1})
