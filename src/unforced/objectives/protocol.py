"""What a training method is: one callable from a model and a batch to a loss."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from unforced.types import Batch, Encoded, Loss, Progress


@runtime_checkable
class Objective(Protocol):
    """A frozen dataclass; its fields are the method's hyper-parameters.

    All randomness comes from ``rng`` (dropout apart), so that a resumed run repeats it bit for bit. The loop hands every
    part of an update a generator in the same state: draw numbers for each example by ``unforced.streams``, not from
    ``rng`` itself, and micro-batches and processes add up to exactly what one big batch would give.

    An objective, or a part of it, that reads files names their paths by ``files``: a run is not resumed with other content.
    """

    def __call__(self, model: Any, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss: ...


def fitted(objective: Objective, codec: Any, examples: Sequence[Encoded] = ()) -> Objective:
    """The objective, knowing the data: what its own ``fitted(codec, examples)`` gives, if it has such a thing.

    ``codec`` knows the vocabulary, ``examples`` are all that it is trained on.
    """
    own = getattr(objective, "fitted", None)
    return objective if own is None else own(codec, examples)
