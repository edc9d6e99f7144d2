"""SIGTERM and SIGINT as a wish that the loop fulfils between two updates."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """The loop was asked to stop; it saves a checkpoint and exits with ``128 + signal``."""


class Signals:
    """Which signal came, if any."""

    received: int | None = None

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM (also when another process of the run got it), 130 for SIGINT."""
        return 128 + (self.received or signal.SIGTERM)


@contextmanager
def catch_signals() -> Iterator[Signals]:
    """Remember a signal instead of dying of it. A second Ctrl-C (SIGINT) acts at once; a second SIGTERM says nothing new, since
    some send it to all processes of a run, each of which passes it on.

    Only the main thread can handle signals: elsewhere this does nothing.
    """
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    wanted = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.getsignal(number) or signal.SIG_DFL for number in wanted}

    def remember(number: int, frame: FrameType | None) -> None:
        signals.received = signals.received or number
        signal.signal(signal.SIGINT, before[signal.SIGINT])

    for number in wanted:
        signal.signal(number, remember)
    try:
        yield signals
    finally:
        for number in wanted:
            signal.signal(number, before[number])
