"""Parallel scheduled sampling (Duckworth et al. 2019): sample all positions at once, in a few passes."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unforced.decoding.search import Constraints
from unforced.decoding.teacher_forcing import advance_at, gold_scores
from unforced.models.modes import evaluation_mode
from unforced.objectives.cross_entropy import negative_log_likelihood
from unforced.objectives.model_tokens import PICKS, Pick, add_fed_metric, draw_replaced, pick_tokens
from unforced.objectives.schedules import Rise, Shape, Unit, check_duration
from unforced.ops import random_streams
from unforced.options import Count, NonNegative, Options, Positive, Probability
from unforced.protocols import Schedule, StepDecoder, require
from unforced.types import Batch, DecoderState, Loss, Progress

PASSES = 2  # pass k uses the random stream 2 + k of an example; streams 0 and 1 are those of `model_tokens`


@dataclass(frozen=True)
class ParallelScheduledSampling(Options):
    """Minimise −Σ_t log p(y*_t | ỹ_<t, x), where ỹ comes from a few parallel passes k = 1 … N. With ỹ⁰ = y*:

        ŷ_t ~ p(· | ỹᵏ⁻¹_<t, x)  for all t at once
        ỹᵏ_t = ỹᵏ⁻¹_t if t < k, else ŷ_t with probability p, else y*_t

    No gradient flows through samples. Sources are encoded once, and only replaced positions are projected to the
    vocabulary. With p = 1 and as many passes as tokens, ỹ is a sample of the model (PSS theorem 2.1).
    """

    passes: Count = 1  # sampling passes before the training pass
    p: Probability = 0.5  # probability of feeding the model's token, after the warm-up
    warmup: NonNegative = 0.0  # time in which the probability rises from 0 to p
    schedule: Shape = "exponential"  # how it rises; "step" keeps it at 0 until the end of the warm-up
    unit: Unit = "step"  # unit of the warm-up
    pick: Pick = "sample"  # whether the model's token is drawn or the best
    temperature: Positive = 1.0  # of the draw
    dropout: bool = True  # whether dropout is on in the decoder's sampling passes

    def check(self) -> None:
        check_duration("warmup", self.warmup, self.unit)

    @property
    def probability(self) -> Rise:
        return Rise(end=self.p, over=self.warmup, unit=self.unit, shape=self.schedule)

    def schedules(self) -> dict[str, Schedule]:
        return {"p": self.probability}

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "parallel_scheduled_sampling", "start", "embed", "advance", "score")
        keys, p = random_streams.keys(batch, rng), self.probability(progress)
        state = model.start(batch)
        prefix, replaced = self.mix_prefix(model, batch, state, keys, p)
        loss = negative_log_likelihood(*gold_scores(model, replace(batch, prefix=prefix), state))
        return add_fed_metric(loss, batch, replaced)

    def mix_prefix(
        self, model: StepDecoder, batch: Batch, state: DecoderState, keys: Tensor, p: float
    ) -> tuple[Tensor, Tensor]:
        """Return ỹᴺ as a prefix [B,T] (token t + 1 is ỹ_t), and a mask [B,T] of the model's tokens in it."""
        prefix, mixed = batch.prefix, torch.zeros_like(batch.mask)
        if p == 0:
            return prefix, mixed
        t = torch.arange(prefix.shape[1], device=prefix.device)
        with evaluation_mode(model, dropout=self.dropout):
            for k in range(min(self.passes, prefix.shape[1] - 1)):
                own = random_streams.branch(keys, PASSES + k)
                replaced = draw_replaced(own, batch, 1 - p) & (t >= k)  # [B,T]
                uniforms = random_streams.uniform(random_streams.branch(own, PICKS).unsqueeze(1), t)
                tokens = self.sample_tokens(model, batch, state, prefix, replaced, uniforms)
                prefix = torch.cat([prefix[:, : k + 1], batch.prefix[:, k + 1 :]], dim=1)
                prefix[:, 1:][replaced[:, :-1]] = tokens
                mixed = torch.where(t < k, mixed, replaced)
        return prefix, mixed

    def sample_tokens(
        self, model: StepDecoder, batch: Batch, state: DecoderState, prefix: Tensor, replaced: Tensor, uniforms: Tensor
    ) -> Tensor:
        """Return the model's tokens at the replaced positions, all given ``prefix``."""
        needed = int(replaced.any(dim=0).nonzero().max()) + 1 if replaced.any() else 0
        if not needed:
            return prefix.new_zeros(0)
        where = replaced[:, :needed]
        features = advance_at(model, state, model.embed(prefix[:, :needed]), where)
        banned, numbers = Constraints.of(batch).banned, uniforms[:, :needed][where]
        return pick_tokens(model, features, numbers, banned, self.pick, self.temperature)
