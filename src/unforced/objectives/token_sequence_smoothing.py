"""Both levels of loss smoothing together (Elbayad et al. 2018)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from unforced.errors import InputError
from unforced.objectives.sequence_smoothing import SequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.options import Options
from unforced.protocols import StepDecoder, require
from unforced.types import Batch, Encoded, Loss, Progress

TOKEN, SEQUENCE = TokenSmoothing(), SequenceSmoothing()


@dataclass(frozen=True)
class TokenSequenceSmoothing(Options):
    """Minimise α₁ E_r[α₂ ℓ_tok(y) + (1 − α₂) ℓ_MLE(y)] + (1 − α₁) (α₂ ℓ_tok(y*) + (1 − α₂) ℓ_MLE(y*)) (slides, eq. 14).

    Outputs y are drawn by ``sequence``, whose ``mix`` is α₁. All outputs and the target y* are scored against the
    smoothed targets of ``token``, whose ``mix`` is α₂. Metrics are those of both, except for ``kl``.
    """

    token: TokenSmoothing = TOKEN  # smoothing of the targets of each token
    sequence: SequenceSmoothing = SEQUENCE  # distribution of the outputs to learn from

    def check(self) -> None:
        if self.sequence.samples is None:
            raise InputError("token_sequence_smoothing needs samples: set sequence.samples to a number")

    def fitted(self, codec: Any, examples: Sequence[Encoded] = ()) -> "TokenSequenceSmoothing":
        return replace(self, token=self.token.fitted(codec, examples), sequence=self.sequence.fitted(codec, examples))

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "token_sequence_smoothing", "start", "embed", "advance", "score")
        if self.sequence.off:  # eq. 13
            return self.token(model, batch, progress=progress, rng=rng)
        return self.sequence.loss(model, batch, rng, self.token)
