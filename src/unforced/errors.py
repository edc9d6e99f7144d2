"""The exception and the warnings meant for users."""

import difflib
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO


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


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Print this library's own warnings as sentences, without the line of code that they come from."""
    package, show = Path(__file__).parent, warnings.showwarning

    def say(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if category is UserWarning and Path(filename).is_relative_to(package):
            print(f"unforced: warning: {message}", file=sys.stderr)
        else:
            show(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield
