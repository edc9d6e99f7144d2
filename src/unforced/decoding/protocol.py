"""What a decoder is: one callable from a model and a batch to hypotheses."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch

from unforced.types import Batch, Hypotheses


@runtime_checkable
class Decoder(Protocol):
    """A frozen dataclass whose fields are a decoder's options; the catalogue lists these.

    Evaluation hides the answers from it, unless it has a class variable ``reads_gold`` that is true.
    """

    def __call__(self, model: Any, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses: ...
