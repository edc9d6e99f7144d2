"""Scheduled sampling: hard (Bengio et al. 2015) and differentiable (Goyal et al. 2017)."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from unforced.decoding.search import Constraints
from unforced.decoding.teacher_forcing import gold_scores
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.objectives.cross_entropy import negative_log_likelihood
from unforced.objectives.model_tokens import PICKS, add_fed_metric, draw_replaced, pick_tokens
from unforced.objectives.schedules import Exponential, Linear, at, check_ends
from unforced.ops import random_streams, relaxations
from unforced.ops.masks import widened
from unforced.options import Options, Positive, Probability
from unforced.protocols import Schedule, StepDecoder, require
from unforced.types import Batch, DecoderState, Loss, Progress

SOFT = ("soft_argmax", "soft_sample")
MIXING = Linear(start=1.0, end=0.75, warmup=0.5, over=0.5, unit="fraction")
SHARPENING = Exponential(start=1.0, rate=100.0, unit="fraction")


@dataclass(frozen=True)
class ScheduledSampling(Options):
    """Minimise −Σ_t log p(y*_t | ỹ_<t, x), where ỹ_t is the target y*_t or the model's own token.

    A coin is tossed for each token. ``feed`` is the model's token, from its scores s_t at that step:

    - ``argmax``, ``sample`` (hard): the best token, or a draw from softmax(s_t), without gradient;
    - ``soft_argmax`` (differentiable): the mean embedding Σ_w e(w) softmax(α s_t)_w;
    - ``soft_sample`` (differentiable): the same with Gumbel noise added to s_t.

    Hard tokens are found step by step without gradient; one ordinary pass then computes the loss. Positions after the
    end of the target are never replaced. With ``mixing`` 1 the loss is cross-entropy, bit for bit.
    """

    feed: Literal["argmax", "sample", "soft_argmax", "soft_sample"] = "argmax"  # the model's own token
    mixing: Probability | Schedule = MIXING  # probability of feeding the target; falls to 0.75 in the second half
    alpha: Positive | Schedule = SHARPENING  # inverse temperature of soft feeds; rises from 1 to 100
    dropout: bool = True  # whether dropout is on while hard tokens are found

    @property
    def stepwise(self) -> bool:
        """Whether the model is stepped through in training mode."""
        return self.feed in SOFT or self.dropout

    def check(self) -> None:
        check_ends("mixing", self.mixing, Probability)
        check_ends("alpha", self.alpha, Positive)
        if self.feed in SOFT and not self.dropout:
            raise InputError(f"dropout cannot be off with feed {self.feed}, which is part of the training pass")

    def schedules(self) -> dict[str, float | Schedule]:
        return {"mixing": self.mixing, **({"alpha": self.alpha} if self.feed in SOFT else {})}

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        soft = ("embed_mix",) if self.feed in SOFT else ()
        require(model, f"scheduled_sampling with feed {self.feed}", "start", "embed", "advance", "score", *soft)
        keys = random_streams.keys(batch, rng)
        replaced = draw_replaced(keys, batch, at(self.mixing, progress, "mixing", Probability))  # [B,T]
        if not replaced.any():
            return add_fed_metric(negative_log_likelihood(*gold_scores(model, batch)), batch, replaced)
        state, keys = model.start(batch), random_streams.branch(keys, PICKS)
        if self.feed in SOFT:
            loss = self.soft_loss(model, batch, state, replaced, keys, at(self.alpha, progress, "alpha", Positive))
        else:
            mixed = replace(batch, prefix=self.roll_out(model, batch, state, replaced, keys))
            loss = negative_log_likelihood(*gold_scores(model, mixed, state))
        return add_fed_metric(loss, batch, replaced)

    def roll_out(self, model: StepDecoder, batch: Batch, state: DecoderState, replaced: Tensor, keys: Tensor) -> Tensor:
        """Return the prefix ỹ [B,T]; each replaced token is picked given ỹ before it."""
        prefix, done, banned = batch.prefix.clone(), 0, Constraints.of(batch).banned
        pick: Literal["argmax", "sample"] = "argmax" if self.feed == "argmax" else "sample"
        with evaluation_mode(model, dropout=self.dropout):
            for t in replaced_steps(replaced):
                features, state = model.advance(state, model.embed(prefix[:, done : t + 1]))
                rows, done = replaced[:, t].nonzero().squeeze(1), t + 1
                uniforms = random_streams.uniform(keys[rows], t)
                prefix[rows, t + 1] = pick_tokens(model, features[rows, -1], uniforms, banned, pick)
        return prefix

    def soft_loss(
        self, model: StepDecoder, batch: Batch, state: DecoderState, replaced: Tensor, keys: Tensor, alpha: float
    ) -> Loss:
        """Return the loss of one pass with gradient; a step's scores give both its loss and the next input."""
        inputs = model.embed(batch.prefix)  # [B,T,E], of the target
        first, done, banned = inputs[:, :1], 0, Constraints.of(batch).banned
        all_features, scores, gold = [], [], []
        for t in replaced_steps(replaced):
            piece = torch.cat([first, inputs[:, done + 1 : t + 1]], dim=1)
            features, state = model.advance(state, piece)
            rows, done = replaced[:, t].nonzero().squeeze(1), t + 1
            all_features.append(features)
            scores.append(model.score(features[rows, -1]))  # [n,V]
            gold.append(batch.gold[rows, t])
            mixture = self.mix_embeddings(model, scores[-1], alpha, keys[rows], t, banned)
            first = inputs[:, done : done + 1].index_copy(0, rows, mixture.to(inputs.dtype))
        features, _ = model.advance(state, torch.cat([first, inputs[:, done + 1 :]], dim=1))
        rest = batch.mask & ~replaced  # positions that are not scored yet
        scores.append(model.score(torch.cat([*all_features, features], dim=1)[rest]))
        return negative_log_likelihood(torch.cat(scores), torch.cat([*gold, batch.gold[rest]]))

    def mix_embeddings(
        self, model: StepDecoder, scores: Tensor, alpha: float, keys: Tensor, t: int, banned: Tensor
    ) -> Tensor:
        """Return the next inputs [n,1,E] of rows with scores [n,V]."""
        kind, scores = scores.dtype, widened(scores).index_fill(-1, banned, -torch.inf)
        if self.feed == "soft_sample":
            noise = random_streams.uniform_rows(random_streams.branch(keys, t), scores.shape[-1])
            scores = relaxations.add_gumbel(scores, noise)
        support = relaxations.peaked_support(scores, alpha)
        if support is None:
            return model.embed_mix(relaxations.peaked_softmax(scores, alpha).to(kind).unsqueeze(1))
        rows, tokens, weights = support  # few tokens carry all the weight: embed only those
        vectors = model.embed(tokens.unsqueeze(0))[0]  # [L,E]
        mixed = torch.zeros_like(vectors[:1]).expand(len(scores), -1)
        return mixed.index_add(0, rows, vectors * weights.to(vectors.dtype).unsqueeze(1)).unsqueeze(1)


def replaced_steps(replaced: Tensor) -> list[int]:
    """Return the steps at which any row's next input is replaced."""
    steps: list[int] = replaced.any(dim=0).nonzero().squeeze(1).tolist()
    return steps
