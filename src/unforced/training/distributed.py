"""Starting accelerate, and the few things that processes of one run must agree on."""

from __future__ import annotations

import os
from collections.abc import Callable
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
