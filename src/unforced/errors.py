"""The exception and the warnings meant for users."""

import difflib
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO


class InputError(Exception):
    """Something the user gave is wrong: the message is one sentence that says what, where and what to do.

    The command line prints the message alone and exits with code 2.
    """


def closest(word: str, known: Iterable[str]) -> str | None:
    """Return the known name that is spelled nearly like ``word``, or that alone has it as a part or as its initials.

    >>> closest("epohcs", ["epochs", "learning_rate"]), closest("lr", ["epochs", "learning_rate"])
    ('epochs', 'learning_rate')
    >>> closest("rate", ["epochs", "learning_rate"]), closest("rate", ["learning_rate", "decay_rate"])
    ('learning_rate', None)
    """
    word, names = word.lower(), {name.lower(): name for name in reversed(list(known))}
    found = difflib.get_close_matches(word, names, n=1)
    if not found:
        parts = {name: name.split("_") for name in names}
        short = [name for name, each in parts.items() if word in (*each, "".join(part[:1] for part in each))]
        found = short if len(short) == 1 else []
    return names[found[0]] if found else None


def nearest(word: str, known: Iterable[str], prefix: str = "") -> str:
    """Suggest the known name that is closest to an unknown one, written after ``prefix``, or list all of them.

    >>> nearest("epohcs", ["epochs", "steps"], "training.")
    'did you mean "training.epochs"?'
    >>> nearest("colour", ["epochs", "steps"])
    'there are: epochs, steps'
    """
    names = list(known)
    if (found := closest(word, names)) is not None:
        return f'did you mean "{prefix}{found}"?'
    return f"there are: {', '.join(names)}" if names else "there are none"


def standard_error() -> TextIO | None:
    """Return standard error, also while rich draws bars there and replaces it; None if it is closed."""
    stream: TextIO | None = getattr(sys.stderr, "rich_proxied_file", sys.stderr)
    return None if stream is None or getattr(stream, "closed", False) else stream  # it may be any object that writes


def write_error(text: str) -> None:
    """Write to standard error. If that fails (a lost terminal, a closed pipe), nothing is written there any more."""
    stream = standard_error()
    if stream is None:
        return
    try:
        stream.write(text)
        stream.flush()
    except OSError:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def printable(text: str) -> str:
    r"""Return text with control characters escaped, which could change the state of a terminal; tabs are kept.

    >>> printable("\x1b[31mred\t")
    '\\x1b[31mred\t'
    """
    return re.sub(r"[\x00-\x08\x0a-\x1f\x7f-\x9f]", lambda match: repr(match[0])[1:-1], text)


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
            write_error(f"unforced: warning: {printable(str(message))}\n")
        else:
            show(message, category, filename, lineno, file, line)

    with warnings.catch_warnings():
        warnings.showwarning = say
        yield
