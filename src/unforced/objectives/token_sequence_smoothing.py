"""Both levels of loss smoothing together (Elbayad et al. 2018)."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
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
    """α₁ E_r[α₂ ℓ_tok(y) + (1 − α₂) ℓ_MLE(y)] + (1 − α₁) (α₂ ℓ_tok(y*) + (1 − α₂) ℓ_MLE(y*)) (slides, eq. 14).

    Outputs y near the gold are drawn as ``sequence`` says, whose ``mix`` is α₁, and every output, the gold too, is scored
    against the targets of ``token``, whose ``mix`` is α₂. Where α₁ = 1 the gold is not fed. Metrics are those of
    ``sequence_smoothing``, and ``moved``, ``rest`` and ``covered`` of ``token_smoothing``, of the tokens of all these outputs.

    >>> from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing
    >>> TokenSequenceSmoothing(token=TokenSmoothing(tau=0.05, mix=0.5)).sequence.samples
    1
    """

    token: TokenSmoothing = TOKEN  # how the targets of each token are smoothed
    sequence: SequenceSmoothing = SEQUENCE  # which outputs are learnt from

    def check(self) -> None:
        if self.sequence.samples is None:
            raise InputError("the exact expectation is for sequence_smoothing alone: set sequence.samples")

    def fitted(self, codec: Any, examples: Sequence[Encoded] = ()) -> "TokenSequenceSmoothing":
        fitted = copy.copy(self)
        object.__setattr__(fitted, "token", self.token.fitted(codec, examples))
        object.__setattr__(fitted, "sequence", self.sequence.fitted(codec, examples))
        return fitted

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "token_sequence_smoothing", "start", "embed", "advance", "score")
        if self.sequence.off:  # eq. 13
            return self.token(model, batch, progress=progress, rng=rng)
        return self.sequence.loss(model, batch, rng, self.token)
