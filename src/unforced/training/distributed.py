"""Processes of one run: start accelerate, act in the main process, handle signals."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, broadcast_object_list

from unforced.errors import InputError

T = TypeVar("T")


def start(precision: str) -> Accelerator:
    """Return the ``Accelerator`` of this process; raise `InputError` if it does not see the launcher's processes.

    On a machine without an accelerator, accelerate ignores torchrun's processes unless ``cpu`` is set, and each process
    would train by itself.
    """
    mixed = "bf16" if precision == "bf16" else "no"
    known = AcceleratorState._shared_state.get("_mixed_precision", mixed)
    if known != mixed:  # accelerate keeps one precision per process, but the next run may use another
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
    """Run ``action`` in the main process and return its result, or raise its `InputError`, in all processes.

    The other processes wait.
    """
    if accelerator.num_processes == 1:
        return action()
    answer: list[Any] = [None, None]  # the result, the error message
    if accelerator.is_main_process:
        try:
            answer[0] = action()
        except InputError as error:
            answer[1] = str(error)
    broadcast_object_list(answer)
    if answer[1] is not None:
        raise InputError(answer[1])
    result: T = answer[0]
    return result


# SIGTERM and SIGINT request a stop after the current update


class Interrupted(Exception):
    """Training stops after a signal: it saves a checkpoint and exits with ``128 + signal``."""


class Signals:
    """The signal that was received, if any."""

    received: int | None = None

    @property
    def exit_code(self) -> int:
        """143 for SIGTERM (also if another process of the run received the signal), 130 for SIGINT."""
        return 128 + (self.received or signal.SIGTERM)


@contextmanager
def catch_signals() -> Iterator[Signals]:
    """Record SIGTERM and SIGINT instead of ending the process.

    A second SIGINT (Ctrl-C) acts immediately. A second SIGTERM has no effect, because a process may receive it both
    from the system and from its parent. Only the main thread can handle signals; in other threads this does nothing.
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
