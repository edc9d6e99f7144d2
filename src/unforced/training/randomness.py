"""The random numbers of a run: torch's own generators for dropout, apart in each process, and one for each update."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def derive(*numbers: int) -> int:
    """A 63-bit seed that depends on all the numbers and on their order.

    >>> derive(1, 0) == derive(1, 0), derive(1, 0) == derive(0, 1)
    (True, False)
    """
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))


def generator(device: torch.device | str, *numbers: int) -> torch.Generator:
    """A new generator on ``device`` seeded by the numbers."""
    return torch.Generator(device=device).manual_seed(derive(*numbers))


def seed_everything(seed: int, rank: int) -> None:
    """Seed torch's global generators."""
    torch.manual_seed(derive(seed, rank, 0))


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The state of this process's global generators as bytes."""
    state = {"torch": torch.get_rng_state()}
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device).get_rng_state()
    return state


def restore_random_state(device: torch.device, state: Mapping[str, Tensor]) -> None:
    """Undo ``random_state``."""
    own = {name: bytes_.clone() for name, bytes_ in state.items()}  # a view into other memory crashes
    torch.set_rng_state(own["torch"])
    if device.type != "cpu":
        torch.get_device_module(device).set_rng_state(own["device"])
