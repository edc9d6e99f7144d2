"""Scheduled sampling (Bengio et al. 2015), hard or differentiable (Goyal et al. 2017): feed gold or the model's own tokens."""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from unforced.decoding.teacher_forcing import gold_scores
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode, stepping
from unforced.objectives.cross_entropy import negative_log_likelihood
from unforced.objectives.feeding import PICKS, coins, emittable, fed, pick
from unforced.objectives.schedules import Exponential, InverseSigmoid, at, check_ends
from unforced.ops import random_streams, relaxations
from unforced.ops.masks import widened
from unforced.ops.relaxations import checked_alpha
from unforced.options import Options, Positive, Probability
from unforced.protocols import Schedule, StepDecoder, require
from unforced.types import Batch, DecoderState, Loss, Progress, Symbols

Feed = Literal["argmax", "sample", "soft_argmax", "soft_sample"]
SOFT = {"soft_argmax", "soft_sample"}
DECAY = InverseSigmoid(k=10.0, warmup=1.0)
SHARPENING = Exponential(start=1.0, rate=1.5, cap=100.0)


@dataclass(frozen=True)
class ScheduledSampling(Options):
    """−Σ_t log p(y*_t | ỹ_<t, x), where each ỹ_t is gold with probability ``mixing``, and else the model's own.

    ``feed`` says what the model's own token is, from its scores s_t at that step:

    - ``argmax`` and ``sample`` (hard): the best token, or one drawn from softmax(s_t); no gradient goes through them;
    - ``soft_argmax`` (differentiable): the mixture of embeddings Σ_w e(w) softmax(α s_t)_w;
    - ``soft_sample`` (differentiable): the same of s_t + Gumbel noise.

    ``mixing`` and ``alpha`` are numbers or schedules; ``alpha`` is the inverse temperature of the soft feeds. There is a coin
    for every token. Tokens that can't be emitted are never fed, neither is anything but gold behind the end; the model
    may well feed EOS before the gold ends, and is scored on the rest of the gold all the same. With ``mixing`` 1 this is
    cross-entropy, bit for bit.

    Hard tokens are found one step at a time without gradient and then fed all at once. ``dropout`` says whether it is on
    while they are found; soft feeds are part of the training pass, where it is on anyway.

    >>> from unforced.objectives.scheduled_sampling import ScheduledSampling
    >>> ScheduledSampling(feed="soft_argmax", mixing=0.75, alpha=5.0).alpha
    5.0
    """

    feed: Feed = "argmax"  # what the model's own token is
    mixing: Probability | Schedule = DECAY  # probability of feeding gold
    alpha: Positive | Schedule = SHARPENING  # inverse temperature of the soft feeds
    dropout: bool = True  # whether it is on while hard tokens are found

    @property
    def stepwise(self) -> bool:
        """Whether the model is stepped through as it trains, and not as it is used."""
        return self.feed in SOFT or self.dropout

    def check(self) -> None:
        check_ends("mixing", self.mixing, Probability)
        check_ends("alpha", self.alpha, Positive)
        if self.feed in SOFT and not self.dropout:
            raise InputError(f"dropout can't be off for the feed {self.feed}, which is part of the training pass")

    def schedules(self) -> dict[str, float | Schedule]:
        """What moves with progress, for pictures."""
        return {"mixing": self.mixing, **({"alpha": self.alpha} if self.feed in SOFT else {})}

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        soft = ("embed_mix",) if self.feed in SOFT else ()
        require(model, f"scheduled_sampling with feed {self.feed}", "start", "embed", "advance", "score", *soft)
        keys = random_streams.keys(batch, rng)
        replaced = coins(keys, batch, at(self.mixing, progress, "mixing", Probability))  # [B,T]
        if not replaced.any():
            return fed(negative_log_likelihood(*gold_scores(model, batch)), batch, replaced)
        state, keys = model.start(batch), random_streams.branch(keys, PICKS)
        if self.feed in SOFT:
            with stepping(model):
                loss = self.relaxed(model, batch, state, replaced, keys, checked_alpha(at(self.alpha, progress)))
        else:
            mixed = replace(batch, prefix=self.roll_out(model, batch, state, replaced, keys))
            loss = negative_log_likelihood(*gold_scores(model, mixed, state))
        return fed(loss, batch, replaced)

    def roll_out(self, model: StepDecoder, batch: Batch, state: DecoderState, replaced: Tensor, keys: Tensor) -> Tensor:
        """The prefix ỹ [B,T] with the model's tokens where ``replaced`` says so; each is picked given ỹ before it."""
        prefix, done = batch.prefix.clone(), 0
        with evaluation_mode(model, dropout=self.dropout):
            for t in stops(replaced):
                features, state = model.advance(state, model.embed(prefix[:, done : t + 1]))
                rows, done = replaced[:, t].nonzero().squeeze(1), t + 1
                uniforms = random_streams.uniform(keys[rows], t)
                prefix[rows, t + 1] = pick(model, features[rows, -1], uniforms, batch.symbols, self.feed)  # type: ignore[arg-type]
        return prefix

    def relaxed(
        self, model: StepDecoder, batch: Batch, state: DecoderState, replaced: Tensor, keys: Tensor, alpha: float
    ) -> Loss:
        """One pass with gradient, in which the scores of a step are both scored and, softened, fed to the next."""
        inputs = model.embed(batch.prefix)  # [B,T,E], gold
        first, done = inputs[:, :1], 0
        found, scores, gold = [], [], []
        for t in stops(replaced):
            piece = torch.cat([first, inputs[:, done + 1 : t + 1]], dim=1)
            features, state = model.advance(state, piece)
            rows, done = replaced[:, t].nonzero().squeeze(1), t + 1
            found.append(features)
            scores.append(model.score(features[rows, -1]))  # [n,V]
            gold.append(batch.gold[rows, t])
            mixture = self.mixture(model, scores[-1], alpha, keys[rows], t, batch.symbols)
            first = inputs[:, done : done + 1].index_copy(0, rows, mixture.to(inputs.dtype))
        features, _ = model.advance(state, torch.cat([first, inputs[:, done + 1 :]], dim=1))
        rest = batch.mask & ~replaced  # what has not been scored yet
        scores.append(model.score(torch.cat([*found, features], dim=1)[rest]))
        return negative_log_likelihood(torch.cat(scores), torch.cat([*gold, batch.gold[rest]]))

    def mixture(
        self, model: StepDecoder, scores: Tensor, alpha: float, keys: Tensor, t: int, symbols: Symbols
    ) -> Tensor:
        """What rows with these scores [n,V] are fed next: [n,1,E]."""
        kind, scores = scores.dtype, emittable(widened(scores), symbols)
        if self.feed == "soft_sample":
            noise = random_streams.uniform_rows(random_streams.branch(keys, t), scores.shape[-1])
            scores = relaxations.perturbed(scores, noise)
        support = relaxations.peaked_support(scores, alpha)
        if support is None:
            return model.embed_mix(relaxations.peaked_softmax(scores, alpha).to(kind).unsqueeze(1))
        rows, tokens, weights = support
        vectors = model.embed(tokens.unsqueeze(0))[0]  # [L,E]
        mixed = torch.zeros_like(vectors[:1]).expand(len(scores), -1)
        return mixed.index_add(0, rows, vectors * weights.to(vectors.dtype).unsqueeze(1)).unsqueeze(1)


def stops(replaced: Tensor) -> list[int]:
    """The steps whose scores somebody needs before the next step."""
    found: list[int] = replaced.any(dim=0).nonzero().squeeze(1).tolist()
    return found
