"""Parallel scheduled sampling (Duckworth et al. 2019): the model's own tokens at all positions at once, in a few passes."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unforced.decoding.teacher_forcing import advance_at, gold_scores
from unforced.models.modes import evaluation_mode
from unforced.objectives.cross_entropy import negative_log_likelihood
from unforced.objectives.feeding import PICKS, Pick, coins, fed, pick
from unforced.objectives.schedules import Rise, Shape, Unit, check_duration
from unforced.ops import random_streams
from unforced.options import Count, NonNegative, Options, Positive, Probability
from unforced.protocols import Schedule, StepDecoder, require
from unforced.types import Batch, DecoderState, Loss, Progress

PASSES = 2  # keys of the passes are the example's streams 2, 3, …; ``unforced.objectives.feeding`` has the first two


@dataclass(frozen=True)
class ParallelScheduledSampling(Options):
    """−Σ_t log p(y*_t | ỹ_<t, x), where ỹ is found in ``passes`` parallel passes. With ỹ⁰ = y*, pass k = 1 … N:

        ŷ_t ~ p(· | ỹᵏ⁻¹_<t, x)  for all t at once
        ỹᵏ_t = ỹᵏ⁻¹_t if t < k, else ŷ_t with probability p, else y*_t

    ``p`` is the probability that the model's token is fed, once the warm-up is over. For the first ``warmup`` units of
    training it rises to that from 0 by ``schedule`` (``unforced.objectives.schedules.Rise``); ``step`` keeps it at 0 till the end of
    the warm-up. ``unit`` is what the warm-up is counted in.

    ``pick`` says whether ŷ_t is drawn, at a ``temperature``, or the best token. ``dropout`` says whether it is on in the
    sampling passes; the encoder's output is that of the training pass in any case, since sources are encoded once.
    No gradient goes through samples. Only positions where a token will be replaced are projected to the vocabulary.
    With p = 1 and as many passes as there are tokens, ỹ is a sample from the model itself (PSS theorem 2.1).

    >>> from unforced.objectives.parallel_scheduled_sampling import ParallelScheduledSampling
    >>> ParallelScheduledSampling(p=0.5, warmup=0.5, unit="fraction").passes
    1
    """

    passes: Count = 1  # sampling passes before the training pass
    p: Probability = 0.5  # probability of feeding the model's token, once the warm-up is over
    warmup: NonNegative = 0.0  # units in which it rises to p from 0
    schedule: Shape = "exponential"  # how it rises
    unit: Unit = "step"  # what the warm-up is counted in
    pick: Pick = "sample"  # whether the model's token is drawn or the best
    temperature: Positive = 1.0  # of the draw
    dropout: bool = True  # whether it is on in the sampling passes

    def check(self) -> None:
        check_duration("warmup", self.warmup, self.unit)

    @property
    def probability(self) -> Rise:
        """The probability of feeding the model's token, as a schedule."""
        return Rise(end=self.p, over=self.warmup, unit=self.unit, shape=self.schedule)

    def schedules(self) -> dict[str, Schedule]:
        """What moves with progress, for pictures."""
        return {"p": self.probability}

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "parallel_scheduled_sampling", "start", "embed", "advance", "score")
        keys, p = random_streams.keys(batch, rng), self.probability(progress)
        state = model.start(batch)
        prefix, mine = self.mixed(model, batch, state, keys, p)
        loss = negative_log_likelihood(*gold_scores(model, replace(batch, prefix=prefix), state))
        return fed(loss, batch, mine)

    def mixed(
        self, model: StepDecoder, batch: Batch, state: DecoderState, keys: Tensor, p: float
    ) -> tuple[Tensor, Tensor]:
        """ỹᴺ as a prefix [B,T], whose token t + 1 is ỹ_t with t from 0, and at which t it is the model's [B,T]."""
        prefix, mine = batch.prefix, torch.zeros_like(batch.mask)
        if p == 0:
            return prefix, mine
        t = torch.arange(prefix.shape[1], device=prefix.device)
        with evaluation_mode(model, dropout=self.dropout):
            for k in range(min(self.passes, prefix.shape[1] - 1)):
                own = random_streams.branch(keys, PASSES + k)
                replaced = coins(own, batch, 1 - p) & (t >= k)  # [B,T]
                uniforms = random_streams.uniform(random_streams.branch(own, PICKS).unsqueeze(1), t)
                tokens = self.picked(model, batch, state, prefix, replaced, uniforms)
                prefix = torch.cat([prefix[:, : k + 1], batch.prefix[:, k + 1 :]], dim=1)
                prefix[:, 1:][replaced[:, :-1]] = tokens
                mine = torch.where(t < k, mine, replaced)
        return prefix, mine

    def picked(
        self, model: StepDecoder, batch: Batch, state: DecoderState, prefix: Tensor, replaced: Tensor, uniforms: Tensor
    ) -> Tensor:
        """The model's tokens at the positions that will be replaced, all given ``prefix``."""
        needed = int(replaced.any(dim=0).nonzero().max()) + 1 if replaced.any() else 0
        if not needed:
            return prefix.new_zeros(0)
        where = replaced[:, :needed]
        features = advance_at(model, state, model.embed(prefix[:, :needed]), where)
        return pick(model, features, uniforms[:, :needed][where], batch.symbols, self.pick, self.temperature)
