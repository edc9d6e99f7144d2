"""Token-level loss smoothing (Elbayad et al. 2018): targets that give some probability to words near the right one."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.decoding.teacher_forcing import gold_scores
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.objectives.cross_entropy import negative_log_likelihood, token_metrics
from unforced.objectives.smoothing.targets import (
    Target,
    near_table,
    near_target,
    near_words,
    one_hot,
    own_mass,
    smoothed_nll,
    uniform_target,
)
from unforced.objectives.smoothing.token_roles import TokenRoles
from unforced.objectives.smoothing.word_vectors import co_occurrence, read_vectors, unit_rows, vector_files
from unforced.ops.masks import token_mask, widened
from unforced.options import Count, NonEmptyStr, Options, Probability, Temperature
from unforced.protocols import StepDecoder
from unforced.types import Batch, Encoded, Loss, Progress


@dataclass
class WordTable:
    """What `TokenSmoothing.fitted` learns about the vocabulary."""

    covered: Tensor  # [V] bool: words that share probability mass
    units: Tensor | None = None  # [V,E] unit vectors, if all words are listed
    near: Target | None = None  # nearest words of each word, if few are listed
    copies: "dict[torch.device, WordTable]" = field(default_factory=dict)

    def to(self, device: torch.device) -> "WordTable":
        """Return a copy on a device; it is kept for the next call."""
        if device not in self.copies:
            units = None if self.units is None else self.units.to(device)
            near = None if self.near is None else Target(self.near.tokens.to(device), self.near.weights.to(device))
            self.copies[device] = WordTable(self.covered.to(device), units, near)
        return self.copies[device]


@dataclass(frozen=True)
class TokenSmoothing(Options):
    """Minimise α Σ_t D_KL(r(· | y*_t) ‖ p(· | y*_<t, x)) + (1 − α) cross-entropy (slides, eqs. 4, 5 and 13), where

        r(w | y) = exp(−d(w, y) / τ) / Z,  d(w, y) = 1 − cosine of their vectors

    The loss omits the entropy of r, which is constant. Sources of vectors:

    - the path of a file: text as written by word2vec and GloVe (also ``.gz``), or ``.npz``;
    - "model": the model's target embeddings at this update, without gradient;
    - "co-occurrence": counts of neighbouring tokens in the training targets;
    - "uniform": none. All other words have d = 1, as in label smoothing.

    Tokens without a vector, the end symbol and special tokens have one-hot targets and receive no mass; with "uniform",
    every token that can be emitted shares. The mass of words that are not among the ``nearest`` is spread evenly.

    Metrics, as means over tokens: ``kl`` (the divergence), ``moved`` (mass that r takes from the target), ``rest`` (the
    part of it for words that are not listed) and ``covered`` (share of tokens that have a vector).
    """

    tau: Temperature = 0.05  # τ, the temperature of r; 0 is cross-entropy
    mix: Probability = 1.0  # α, the weight of the smoothed loss
    vectors: NonEmptyStr = "model"  # a file of word vectors, "model", "co-occurrence" or "uniform"
    nearest: Count | None = 100  # words listed for each word, itself included; none lists all
    table: WordTable | None = field(default=None, repr=False, compare=False)  # set by `fitted`

    @property
    def off(self) -> bool:
        """Whether the loss is plain cross-entropy."""
        return self.tau == 0 or self.mix == 0

    @property
    def files(self) -> tuple[Path, ...]:
        return () if self.vectors in ("uniform", "model", "co-occurrence") else vector_files(self.vectors)

    def fitted(self, codec: Any, examples: Sequence[Encoded] = ()) -> "TokenSmoothing":
        return replace(self, table=self.build_table(codec, examples))

    def build_table(self, codec: Any, examples: Sequence[Encoded]) -> WordTable:
        roles = TokenRoles.of(codec)
        if self.vectors in ("uniform", "model"):
            return WordTable(token_mask(roles.size, roles.unused if self.vectors == "uniform" else roles.special))
        if self.vectors == "co-occurrence":
            units, covered = co_occurrence([example.target for example in examples], roles.size, roles.special)
        else:
            units, covered = read_vectors(self.vectors, codec.token_names(), roles.special)
        if self.nearest is None or self.off:
            return WordTable(covered, units)
        return WordTable(covered, near=near_table(units, covered, self.tau, self.nearest))

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        scores, gold = gold_scores(model, batch)
        if self.off:
            return negative_log_likelihood(scores, gold)
        target, statistics = self.smooth(model, gold, scores)
        losses, nll = smoothed_nll(scores, gold, target)
        metrics = token_metrics(scores, gold, nll.sum())
        cross_entropy = (losses.detach() - (1 - self.mix) * nll) / self.mix  # −Σ_w r(w) log p(w)
        statistics["kl"] = cross_entropy - statistics.pop("entropy")
        count = metrics["nll"][1]
        metrics |= {name: (values.sum().float(), count) for name, values in statistics.items()}
        return Loss(losses.sum(), count, metrics)

    def smooth(self, model: StepDecoder, tokens: Tensor, scores: Tensor) -> tuple[Target, dict[str, Tensor]]:
        """Return the targets α r(· | y) + (1 − α) δ(· | y) of tokens y [N] with scores [N,V], and statistics [N]."""
        if self.off:
            return one_hot(tokens), {}
        if self.table is None:
            raise InputError("token_smoothing is not fitted: call unforced.fitted(objective, codec, examples) first")
        table, dtype = self.table.to(tokens.device), torch.promote_types(scores.dtype, torch.float32)
        extra = scores.shape[1] - len(table.covered)  # ids that the model has beyond the vocabulary
        if extra < 0:
            raise InputError(
                f"token_smoothing is fitted to {len(table.covered)} tokens, the model has {scores.shape[1]}"
            )
        covered = F.pad(table.covered, (0, extra))
        if self.vectors == "uniform":
            target, rest, entropy = uniform_target(tokens, covered, self.tau, self.mix, dtype)
        else:
            near, rows = table.near, tokens
            if near is None:
                if self.vectors == "model":
                    units, nonzero = model_vectors(model, len(covered), tokens.device)
                    covered = covered & nonzero
                else:
                    assert table.units is not None
                    units = F.pad(table.units, (0, 0, 0, extra))
                distinct, rows = tokens.unique(return_inverse=True)
                near = near_words(units.to(dtype), covered, distinct, self.tau, self.nearest)
            own = Target(near.tokens[rows], near.weights[rows])  # [N,n]
            target, rest, entropy = near_target(own, covered, self.mix, dtype)
        moved = (1 - own_mass(target, tokens)) / self.mix
        return target, {"moved": moved, "rest": rest, "covered": covered[tokens], "entropy": entropy}


def model_vectors(model: StepDecoder, size: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the model's target embeddings as unit vectors [V,E], and a mask [V] of those that are not zero."""
    with evaluation_mode(model, dropout=True):
        return unit_rows(widened(model.embed(torch.arange(size, device=device).unsqueeze(0))[0]))
