"""The one exception a user is meant to see."""

from __future__ import annotations

from typing import get_args


class InputError(Exception):
    """Something the user gave is wrong: the message is one sentence that says what, where and what to do.

    The command line prints the message alone and exits with code 2.
    """


def check_choice(name: str, value: object, hint: object) -> None:
    """Raise ``InputError`` unless ``value`` is one of a ``Literal``'s.

    >>> from typing import Literal
    >>> check_choice("feed", "beam", Literal["argmax", "sample"])
    Traceback (most recent call last):
    unforced.errors.InputError: feed is argmax or sample, not 'beam'
    """
    choices = get_args(hint)
    if value not in choices:
        raise InputError(f"{name} is {' or '.join(map(str, choices))}, not {value!r}")
