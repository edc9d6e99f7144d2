"""The check every metric makes first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from unforced.errors import InputError


def same_number(outputs: Sequence[Any], answers: Sequence[Sequence[Any]]) -> None:
    """Refuse unequal numbers of outputs and answers, and outputs without any acceptable answer.

    >>> same_number(["a"], [["a", "b"]])
    >>> same_number(["a"], [])
    Traceback (most recent call last):
    unforced.errors.InputError: There are 1 outputs but answers for 0 examples.
    """
    if len(outputs) != len(answers):
        raise InputError(f"There are {len(outputs)} outputs but answers for {len(answers)} examples.")
    for i, acceptable in enumerate(answers):
        if not len(acceptable):
            raise InputError(f"Example {i} has no acceptable answer.")
