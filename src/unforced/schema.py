"""Strict construction of frozen dataclasses from plain data, and the way back.

A dataclass is its own schema: ``build`` makes one from a mapping and refuses whatever its fields don't say,
``to_mapping`` undoes that, and ``unforced.describe`` lists the fields for people and programs.

Fields may be bool, int, float, str, ``Literal``, ``X | None``, tuples, ``dict[str, X]``, other dataclasses, and types
whose classes go by name: ``named(type)`` gives those classes by name, and the mapping's ``name`` key picks one. Functions
can be given in Python alone.
In a file, which has no null, the word "none" stands for None in fields that may be None.
"""

from __future__ import annotations

import difflib
import math
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from unforced.errors import InputError, nearest

T = TypeVar("T")
Named = Callable[[Any], Mapping[str, type] | None]  # a field's type -> the classes it may be, by name

HINTS: dict[Any, dict[str, Any]] = {}  # what ``hints_of`` has found: reading annotations is slow
PLAIN = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def nobody(hint: Any) -> Mapping[str, type] | None:
    """The resolver of a schema without named classes."""
    return None


def build(cls: type[T], mapping: Any, where: str = "", named: Named = nobody) -> T:
    """An instance of the dataclass ``cls`` with the fields that ``mapping`` gives; ``where`` begins every complaint.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Options:
    ...     epochs: int = 10
    ...     rate: float = 0.1
    >>> build(Options, {"rate": 1})
    Options(epochs=10, rate=1.0)
    >>> build(Options, {"epohcs": 3}, "training")
    Traceback (most recent call last):
    unforced.errors.InputError: training.epohcs: no such key; did you mean "epochs"?
    """
    if isinstance(mapping, cls):
        return mapping
    if not isinstance(mapping, Mapping):
        raise InputError(f"{where}: expected a table, not {show(mapping)}")
    known = {field.name: field for field in fields_of(cls)}
    hints = hints_of(cls)
    check_keys(mapping, known, where)
    values = {}
    for name, field in known.items():
        place = join(where, name)
        if name in mapping:
            given = _completed(mapping[name], to_plain(default_of(field), hints[name], named))
            values[name] = convert(hints[name], given, place, named)
        elif required(field):
            raise InputError(f"{place}: a value is missing; expected {expected(hints[name], named)}")
    try:
        return cls(**values)
    except InputError as error:
        raise InputError(f"{where}: {error}" if where else str(error)) from None


def _completed(value: Any, default: Any) -> Any:
    """A table that doesn't say what it is changes some fields of the default; the whole of that, then.

    >>> _completed({"k": 20}, {"name": "inverse_sigmoid", "k": 10, "end": 0.0})
    {'name': 'inverse_sigmoid', 'k': 20, 'end': 0.0}
    """
    if not (isinstance(value, Mapping) and isinstance(default, Mapping) and "name" in default):
        return value
    return {**default, **value} if "name" not in value and set(value) <= set(default) else value


def check_keys(mapping: Mapping[str, Any], known: Iterable[str], where: str = "") -> None:
    """Refuse a key that isn't known."""
    words = list(known)
    for key in mapping:
        if key not in words:
            raise InputError(f"{join(where, key)}: no such key; {nearest(str(key), words)}")


def convert(hint: Any, value: Any, where: str, named: Named = nobody) -> Any:
    """``value`` as a field of type ``hint`` holds it; raises ``InputError`` where it can't."""
    classes = named(hint)
    if classes is not None:
        if isinstance(hint, type) and not isinstance(value, str | Mapping) and isinstance(value, hint):
            return value  # given in Python, and perhaps of the user's own making
        if isinstance(hint, type) and callable(value) and not is_dataclass(value):
            kind = f"{hint.__module__}.{hint.__name__}"
            raise InputError(
                f"{where}: expected a table with a name, or what {kind} asks for, not {show(value)}"
            )
        return pick(classes, value, where, named)
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return convert_union(hint, value, where, named)
    if origin is Literal:
        for choice in args:
            if value == choice and type(value) is type(choice):
                return choice
        hope = nearest(value, [a for a in args if isinstance(a, str)]) if isinstance(value, str) else ""
        hope = f"; {hope}" if hope.startswith("did") else ""
        raise InputError(f"{where}: expected {expected(hint, named)}, not {show(value)}{hope}")
    if origin is tuple:
        return convert_tuple(hint, value, where, named)
    if origin is dict:
        if not isinstance(value, Mapping):
            raise InputError(f"{where}: expected a table, not {show(value)}")
        return {str(key): convert(args[1], v, join(where, key), named) for key, v in value.items()}
    if is_dataclass(hint) and isinstance(hint, type):
        return build(hint, value, where, named)
    if origin is Callable:
        if callable(value):
            return value
        raise InputError(f"{where}: expected {expected(hint, named)}, not {show(value)}")
    if hint not in PLAIN:
        raise TypeError(f"{where}: a field of type {hint} can't be read from plain data")
    if type(value) is hint and value == value:  # a bool is no int here, and NaN no number
        return value
    if hint is float and type(value) is int:
        return float(value)
    raise InputError(f"{where}: expected {PLAIN[hint]}, not {show(value)}")


def convert_union(hint: Any, value: Any, where: str, named: Named) -> Any:
    options = get_args(hint)
    if type(None) in options and value is None:
        return None
    if type(None) in options and value == "none" and not takes(options, value):
        return None
    rest = [option for option in options if option is not type(None)]
    if len(rest) == 1:
        if rest[0] in PLAIN and isinstance(value, str) and rest[0] is not str:
            raise InputError(f"{where}: expected {expected(hint, named)}, not {show(value)}")
        return convert(rest[0], value, where, named)
    tables = tuple(option for option in rest if named(option) is not None or is_dataclass(option))
    if isinstance(value, Mapping) and tables:
        classes = named(Union[tables])  # noqa: UP007 - a union made at run time
        if classes is not None:
            return pick(classes, value, where, named)
        if len(tables) == 1:
            return convert(tables[0], value, where, named)  # its own complaint says more than "none of these"
    for option in rest:
        try:
            return convert(option, value, where, named)
        except InputError:
            continue
    raise InputError(f"{where}: expected {expected(hint, named)}, not {show(value)}")


def takes(options: Iterable[Any], word: str) -> bool:
    """Whether some ``Literal`` among the options has this word of its own."""
    return any(get_origin(option) is Literal and word in get_args(option) for option in options)


def convert_tuple(hint: Any, value: Any, where: str, named: Named) -> tuple[Any, ...]:
    args = get_args(hint)
    if not isinstance(value, list | tuple):
        raise InputError(f"{where}: expected {expected(hint, named)}, not {show(value)}")
    if args[-1:] == (Ellipsis,):
        args = args[:1] * len(value)
    if len(args) != len(value):
        raise InputError(f"{where}: expected {len(args)} values, not {len(value)}")
    pairs = enumerate(zip(args, value, strict=True))
    return tuple(convert(arg, item, f"{where}[{i}]", named) for i, (arg, item) in pairs)


def pick(
    classes: Mapping[str, type], value: Any, where: str, named: Named = nobody, key: str = "name"
) -> Any:
    """An instance of the class that the mapping's ``name`` picks; a bare string is a name without fields."""
    if isinstance(value, str):
        value = {key: value}
    if not isinstance(value, Mapping):
        if is_dataclass(value) and type(value) in classes.values():
            return value
        raise InputError(f"{where}: expected a table with a {key}, not {show(value)}")
    if key not in value:
        for typo in difflib.get_close_matches(key, map(str, value), n=1):
            raise InputError(f'{join(where, typo)}: no such key; did you mean "{key}"?')
        raise InputError(f"{join(where, key)}: a value is missing; {nearest('', classes)}")
    name = value[key]
    if not isinstance(name, str) or name not in classes:
        raise InputError(f"{join(where, key)}: {show(name)} is unknown; {nearest(str(name), classes)}")
    check_keys(value, [key, *(field.name for field in fields_of(classes[name]))], where)
    return build(classes[name], {k: v for k, v in value.items() if k != key}, where, named)


def to_mapping(instance: Any, named: Named = nobody) -> dict[str, Any]:
    """The plain data that ``build`` makes this dataclass from, every field included.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Options:
    ...     sizes: tuple[int, ...] = (1, 2)
    >>> to_mapping(Options())
    {'sizes': [1, 2]}
    """
    hints = hints_of(type(instance))
    return {
        f.name: to_plain(getattr(instance, f.name), hints[f.name], named) for f in fields_of(type(instance))
    }


def to_plain(value: Any, hint: Any, named: Named = nobody) -> Any:
    """One field's value as plain data."""
    if is_dataclass(value) and not isinstance(value, type):
        options = tuple(option for option in get_args(hint) if option is not type(None))
        for option in (hint, *options, *([Union[options]] if options else [])):  # noqa: UP007
            for name, cls in (named(option) or {}).items():
                if cls is type(value):
                    return {"name": name, **to_mapping(value, named)}
        return to_mapping(value, named)
    args = get_args(hint)
    if isinstance(value, tuple | list):
        inner = args[0] if args[-1:] == (Ellipsis,) else Any
        return [to_plain(item, inner, named) for item in value]
    if isinstance(value, Mapping):
        return {key: to_plain(item, args[1] if args else Any, named) for key, item in value.items()}
    if callable(value):
        return getattr(
            value, "__qualname__", type(value).__qualname__
        )  # for the record: it can't be read back
    kinds = {hint, *(args if get_origin(hint) is not Literal else ())}
    return float(value) if type(value) is int and float in kinds and int not in kinds else value


def fields_of(cls: type) -> tuple[Field[Any], ...]:
    """The fields that the constructor takes."""
    return tuple(field for field in fields(cls) if field.init)


def hints_of(cls: Any) -> dict[str, Any]:
    """The types of a class's fields, by name."""
    if cls not in HINTS:
        HINTS[cls] = get_type_hints(cls)
    return HINTS[cls]


def required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def default_of(field: Field[Any]) -> Any:
    """A field's default, or None where it has none (see ``required``)."""
    if field.default_factory is not MISSING:
        return field.default_factory()
    return None if field.default is MISSING else field.default


def join(where: str, key: Any) -> str:
    return f"{where}.{key}" if where else str(key)


def show(value: Any) -> str:
    """A value as a recipe file would spell it, shortened if long.

    >>> show(True), show("x"), show({"a": 1})
    ('true', '"x"', 'a table')
    """
    if isinstance(value, Mapping):
        return "a table"
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    text = f'"{value}"' if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def expected(hint: Any, named: Named = nobody) -> str:
    """What a field of this type takes, in words.

    >>> expected(int | None), expected(Literal["a", "b"]), expected(tuple[float, ...])
    ('a whole number or "none"', 'one of "a", "b"', 'a list (each a number)')
    """
    if hint in PLAIN:
        return PLAIN[hint]
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(expected(option, named) for option in args)
    if origin is Literal:
        return f"one of {', '.join(show(choice) for choice in args)}"
    if origin is tuple:
        if args[-1:] == (Ellipsis,):
            return f"a list (each {expected(args[0], named)})"
        return f"a list of {len(args)} values"
    if hint is type(None):
        return '"none"'
    if origin is Callable:
        return "a function (in Python)"
    classes = named(hint)
    return "a table" if classes is None else f"a table with a name ({', '.join(classes)})"
