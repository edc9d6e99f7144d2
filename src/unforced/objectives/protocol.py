"""What a training method is: one callable from a model and a batch to a loss."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch

from unforced.types import Batch, Loss, Progress


@runtime_checkable
class Objective(Protocol):
    """A frozen dataclass; its fields are the method's hyper-parameters.

    All randomness comes from ``rng`` (dropout apart), so that a resumed run repeats it bit for bit.
    """

    def __call__(self, model: Any, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss: ...
