"""The one exception a user is meant to see."""

import difflib
from collections.abc import Iterable
from typing import get_args


class InputError(Exception):
    """Something the user gave is wrong: the message is one sentence that says what, where and what to do.

    The command line prints the message alone and exits with code 2.
    """


def nearest(word: str, known: Iterable[str]) -> str:
    """Suggest the known word that is nearest to an unknown one, or list all of them.

    >>> nearest("epohcs", ["epochs", "steps"])
    'did you mean "epochs"?'
    >>> nearest("colour", ["epochs", "steps"])
    'there are: epochs, steps'
    """
    words = list(known)
    lower = {name.lower(): name for name in reversed(words)}
    close = difflib.get_close_matches(word.lower(), lower, n=1)
    if close:
        return f'did you mean "{lower[close[0]]}"?'
    return f"there are: {', '.join(words)}" if words else "there are none"


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
