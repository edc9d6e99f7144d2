"""Build dataclasses of options from plain data, such as a recipe, and turn them back into plain data.

Plain data are tables, lists, strings, numbers and booleans. A list becomes a tuple, an int a float if the
field is one, "none" becomes None, and a table with a ``name`` an instance of the registered class with that name.
"""

import types
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from unforced.errors import InputError, nearest
from unforced.options import check_value, expected, hints_of, show
from unforced.registry import REGISTRY, kind_of, name_of, resolve

T = TypeVar("T")


def build(cls: type[T], table: Any, where: str = "") -> T:
    """Return an instance of the dataclass ``cls`` with the fields in ``table``; ``where`` starts each error message.

    >>> from unforced.objectives.scheduled_sampling import ScheduledSampling
    >>> build(ScheduledSampling, {"mixing": {"name": "linear", "end": 0, "over": 5}}).mixing.end
    0.0
    >>> build(ScheduledSampling, {"mixnig": 1}, "objective")
    Traceback (most recent call last):
    unforced.errors.InputError: objective.mixnig: no such key; did you mean "objective.mixing"?
    """
    if isinstance(table, cls):
        return table
    if not isinstance(table, Mapping):
        raise InputError(f"{where} must be a table, got {show(table)}")
    known = {field.name: field for field in fields_of(cls)}
    check_keys(table, known, where)
    values = {}
    for name, field in known.items():
        place, hint = join(where, name), hints_of(cls)[name]
        if name in table:
            values[name] = convert(hint, _completed(table[name], to_plain(default_of(field), hint)), place)
        elif required(field):
            raise InputError(f"{place} is missing; it must be {expected(hint)}")
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from None


def _completed(value: Any, default: Any) -> Any:
    """Return a table without a name as changes to the default's table.

    >>> _completed({"k": 20}, {"name": "inverse_sigmoid", "k": 10, "end": 0.0})
    {'name': 'inverse_sigmoid', 'k': 20, 'end': 0.0}
    """
    if not (isinstance(value, Mapping) and isinstance(default, Mapping) and "name" in default):
        return value
    return {**default, **value} if "name" not in value and set(value) <= set(default) else value


def check_keys(table: Mapping[str, Any], known: Iterable[str], where: str = "") -> None:
    """Raise `InputError` if a key is unknown."""
    words = list(known)
    for key in table:
        if key not in words:
            raise InputError(f"{join(where, key)}: no such key; {nearest(str(key), words, join(where, ''))}")


def convert(hint: Any, value: Any, where: str) -> Any:
    """Return plain data as a field of this type holds it, or raise `InputError`.

    >>> convert(tuple[float, ...] | None, [1, 2], "sizes"), convert(int | None, "none", "size")
    ((1.0, 2.0), None)
    """
    value = _converted(hint, value, where)
    check_value(where, hint, value)
    return value


def _converted(hint: Any, value: Any, where: str) -> Any:
    options = options_of(hint)
    if isinstance(value, Path) and str in options:
        return str(value)
    if value == "none" and type(None) in options:
        return None
    for option in options:
        kind, origin, args = kind_of(option), get_origin(option), get_args(option)
        if kind is not None and (isinstance(value, Mapping) or (isinstance(value, str) and value in REGISTRY[kind])):
            return pick(kind, value, where)
        if origin is tuple and isinstance(value, list | tuple):
            inner = args[:1] * len(value) if args[-1] is Ellipsis else args
            if len(inner) != len(value):
                return tuple(value)
            items = enumerate(zip(inner, value, strict=True))
            return tuple(_converted(hint, item, f"{where}[{i}]") for i, (hint, item) in items)
        if origin is dict and isinstance(value, Mapping):
            return {str(key): _converted(args[1], item, join(where, key)) for key, item in value.items()}
        if isinstance(option, type) and is_dataclass(option) and isinstance(value, Mapping):
            return build(option, value, where)
        if option is float and type(value) is int:
            return float(value)
    return value


def pick(kind: str, value: Any, where: str, key: str = "name") -> Any:
    """Return an instance of the class of this kind that ``value[key]`` names; a string is a name without fields."""
    if isinstance(value, str):
        value = {key: value}
    if not isinstance(value, Mapping):
        if name_of(kind, value) is not None:
            return value
        raise InputError(f"{where} must be a table with a {key}, got {show(value)}")
    if key not in value:
        raise InputError(f"{join(where, key)} is missing; {nearest('', REGISTRY[kind])}")
    name = value[key]
    check_value(join(where, key), Literal[tuple(REGISTRY[kind])], name)
    cls = resolve(kind, name)
    check_keys(value, [key, *(field.name for field in fields_of(cls))], where)
    return build(cls, {k: v for k, v in value.items() if k != key}, where)


def to_mapping(instance: Any) -> dict[str, Any]:
    """Return the plain data from which `build` makes this dataclass, defaults included.

    >>> from unforced.objectives.schedules import Linear
    >>> to_mapping(Linear(end=0, over=5))
    {'start': 1.0, 'warmup': 0.0, 'unit': 'epoch', 'end': 0.0, 'over': 5.0}
    """
    hints = hints_of(type(instance))
    return {f.name: to_plain(getattr(instance, f.name), hints[f.name]) for f in fields_of(type(instance))}


def to_plain(value: Any, hint: Any) -> Any:
    """Return the value of a field as plain data."""
    options = options_of(hint)
    if is_dataclass(value) and not isinstance(value, type):
        table = to_mapping(value)
        names = [] if type(value) in options else [name_of(kind, value) for kind in REGISTRY]
        return next(({"name": name, **table} for name in names if name is not None), table)
    if isinstance(value, tuple | list):
        args = next((get_args(option) for option in options if get_origin(option) is tuple), (Any, ...))
        hints = args[:1] * len(value) if args[-1] is Ellipsis else args
        return [to_plain(item, inner) for item, inner in zip(value, hints, strict=True)]
    if isinstance(value, Mapping):
        inner = next((get_args(option)[1] for option in options if get_origin(option) is dict), Any)
        return {key: to_plain(item, inner) for key, item in value.items()}
    if callable(value):
        return getattr(value, "__qualname__", type(value).__qualname__)  # a record that can't be read back
    return float(value) if type(value) is int and float in options and int not in options else value


def options_of(hint: Any) -> tuple[Any, ...]:
    """Return the members of a union, or the hint alone, without their ranges."""
    if get_origin(hint) is Annotated:
        return options_of(get_args(hint)[0])
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(option for part in get_args(hint) for option in options_of(part))
    return (hint,)


def fields_of(cls: type) -> tuple[Field[Any], ...]:
    """Return the fields that a user sets; fields without a representation hold what an object has learned."""
    return tuple(field for field in fields(cls) if field.init and field.repr)


def required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def default_of(field: Field[Any]) -> Any:
    """Return the default of a field, or None if it has none."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)
