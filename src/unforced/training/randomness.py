"""The random streams of a run: one generator for the objective and torch's own for dropout, apart in each process."""

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


def seed_everything(device: torch.device, seed: int, rank: int) -> torch.Generator:
    """Seed torch's global generators, and return the objective's generator."""
    torch.manual_seed(derive(seed, rank, 0))
    return generator(device, seed, rank, 1)


def random_state(objective: torch.Generator) -> dict[str, Tensor]:
    """The state of all streams of this process as bytes."""
    state = {"objective": objective.get_state(), "torch": torch.get_rng_state()}
    if objective.device.type != "cpu":
        state["device"] = torch.get_device_module(objective.device).get_rng_state()
    return state


def restore_random_state(objective: torch.Generator, state: Mapping[str, Tensor]) -> None:
    """Undo ``random_state``."""
    own = {
        name: bytes_.clone() for name, bytes_ in state.items()
    }  # set_state crashes on a view into other memory
    objective.set_state(own["objective"])
    torch.set_rng_state(own["torch"])
    if objective.device.type != "cpu":
        torch.get_device_module(objective.device).set_rng_state(own["device"])
