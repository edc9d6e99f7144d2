"""Processes of one run: memory, accelerate, work of the main process, signals."""

import ctypes
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, TypeVar

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, broadcast_object_list

from unforced.errors import InputError

T = TypeVar("T")


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # parameters of mallopt


def tune_process() -> None:
    """Flush denormal numbers to zero, and keep freed memory in this process.

    An update frees and allocates the same large tensors again. By default, glibc returns them to the system, which
    then clears and maps their pages anew; for an LSTM with 8,000 words this took a sixth of the time.
    """
    torch.set_flush_denormal(True)
    with suppress(AttributeError):  # other C libraries have no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_MAX, 0)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


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


# Signals request a stop after the current update


class Interrupted(BaseException):
    """Training stops after a signal: it saves a checkpoint and exits with ``128 + signal``.

    Like ``KeyboardInterrupt`` it is no ``Exception``, so handlers of errors let it pass.
    """


class Signals:
    """The signal that was received, if any."""

    received: int | None = None
    at_once = False  # whether a signal raises `Interrupted` where it is received

    @property
    def exit_code(self) -> int:
        """128 + the signal; 143, as for SIGTERM, if another process of the run received it."""
        return 128 + (self.received or signal.SIGTERM)

    @contextmanager
    def raised_at_once(self) -> Iterator[None]:
        """Raise `Interrupted` anywhere in this block, which must leave nothing to save; also if a signal came before.

        Python runs signal handlers between its instructions, so a search stops between two of its steps.
        """
        self.at_once = True
        try:
            if self.received is not None:
                raise Interrupted
            yield
        finally:
            self.at_once = False


@contextmanager
def catch_signals() -> Iterator[Signals]:
    """Record SIGTERM, SIGINT and SIGHUP (a lost terminal) instead of ending the process.

    A signal that this process ignores stays ignored, as under ``nohup``. A second SIGINT (Ctrl-C) acts immediately. A
    second SIGTERM has no effect, because a process may receive it both from the system and from its parent. Only the
    main thread can handle signals; in other threads this does nothing.
    """
    signals = Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    inherited = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    caught = {number: handler or signal.SIG_DFL for number, handler in inherited.items() if handler != signal.SIG_IGN}

    def remember(number: int, frame: FrameType | None) -> None:
        signals.received = signals.received or number
        if signal.SIGINT in caught:
            signal.signal(signal.SIGINT, caught[signal.SIGINT])
        if signals.at_once:
            signals.at_once = False
            raise Interrupted

    for number in caught:
        signal.signal(number, remember)
    try:
        yield signals
    finally:
        for number, handler in caught.items():
            signal.signal(number, handler)
