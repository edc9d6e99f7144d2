"""Starting accelerate, and the few things that processes of one run must agree on."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, broadcast_object_list

from unforced.errors import InputError

T = TypeVar("T")


def start(precision: str) -> Accelerator:
    """An ``Accelerator`` for this process, on as many processes as the launcher said, or an error.

    On a machine without an accelerator, accelerate ignores torchrun's processes unless told to use the CPU: each
    would train alone. Hence ``cpu``, and the check.
    """
    mixed = "bf16" if precision == "bf16" else "no"
    known = AcceleratorState._shared_state.get("_mixed_precision", mixed)
    if known != mixed:  # accelerate keeps one precision a process; runs that follow each other may differ
        AcceleratorState._reset_state()
    accelerator = Accelerator(
        mixed_precision=mixed,
        cpu=not torch.accelerator.is_available(),
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    wanted = int(os.environ.get("WORLD_SIZE", 1))
    if accelerator.num_processes != wanted:
        raise InputError(
            f"the launcher started {wanted} processes (WORLD_SIZE), but accelerate runs {accelerator.num_processes}"
        )
    return accelerator


def on_main(accelerator: Accelerator, action: Callable[[], T]) -> T:
    """What ``action`` returns in the main process, in all processes; its ``InputError`` is raised in all of them.

    Everybody waits for the main process meanwhile.
    """
    if accelerator.num_processes == 1:
        return action()
    answer: list = [None, None]  # the result, the complaint
    if accelerator.is_main_process:
        try:
            answer[0] = action()
        except InputError as error:
            answer[1] = str(error)
    broadcast_object_list(answer)
    if answer[1] is not None:
        raise InputError(answer[1])
    return answer[0]


# SIGTERM and SIGINT as a wish that the loop fulfils between two updates.


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
