"""The one exception a user is meant to see."""

import difflib
from collections.abc import Iterable


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
