"""Token-level loss smoothing (Elbayad et al. 2018): targets that give something to words near the gold one."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.decoding.teacher_forcing import gold_scores
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.objectives.cross_entropy import negative_log_likelihood, token_metrics
from unforced.objectives.smoothing.outputs import target_ids
from unforced.objectives.smoothing.targets import (
    Near,
    Target,
    emittable,
    massless,
    near_table,
    near_target,
    near_words,
    one_hot,
    own_mass,
    smoothed_nll,
)
from unforced.objectives.smoothing.word_vectors import co_occurrence, read_vectors, sources, special, units, unused
from unforced.ops.masks import widened
from unforced.options import Count, NonEmptyStr, Options, Probability, Temperature
from unforced.protocols import StepDecoder, require
from unforced.types import Batch, Encoded, Loss, Progress, Symbols

WORDS = ("uniform", "model", "co-occurrence")  # what ``vectors`` may be instead of a file


class Smoothed(NamedTuple):
    """Targets of N positions, with the mass [N] that words beside the ``nearest`` have in r, the entropy [N] of r, and which of
    the positions have a vector [N]."""

    target: Target
    rest: Tensor
    entropy: Tensor
    there: Tensor


@dataclass
class Known:
    """What a fitted objective knows of the vocabulary: which ids mean nothing, and either the words near each or vectors."""

    size: int
    special: frozenset[int]
    never: frozenset[int]  # of these, those that no output has
    there: Tensor | None = None  # [V] bool: which words have a vector
    units: Tensor | None = None  # [V,E], unless ``near`` is there
    near: Near | None = None  # of all V words
    moved: "dict[torch.device, Known]" = field(default_factory=dict)

    def on(self, device: torch.device) -> "Known":
        """The same on a device, where it stays for the next time."""
        if device not in self.moved:
            parts = (self.there, self.units, self.near)
            moved = (None if part is None else part.to(device) for part in parts)
            self.moved[device] = Known(self.size, self.special, self.never, *moved)  # type: ignore[arg-type]
        return self.moved[device]


@dataclass(frozen=True)
class TokenSmoothing(Options):
    """Σ_t D_KL(r(· | y*_t) ‖ p(· | y*_<t, x)), exactly (slides, eqs. 4 and 5), where words near the gold one share in r:

        r(w | y) = exp(−d(w, y) / τ) / Z,  d(w, y) = 1 − cosine of their vectors

    and α times that with 1 − α times cross-entropy (eq. 13). ``tau`` is τ and ``mix`` is α. τ = 0 is cross-entropy, and the
    larger τ, the more is given away, in large vocabularies very soon (the metric ``moved`` says how much). The total leaves out
    the entropy of r, which no weight moves, so that it compares with cross-entropy; the metric ``kl`` is the divergence for
    each token.

    ``vectors`` says where they come from:

    - the path of a file: text as word2vec and GloVe write it, perhaps with ``.gz``, or ``.npz``. ``~`` and ``$VARIABLE``
      are replaced, as in "$UNFORCED_DATA/glove_en_20k/glove_top20k.npz";
    - "model": the model's own target embeddings as they are at this update, without gradient. They are compared anew at
      every call, for the tokens of the batch alone, so nothing has to be kept for a resumed run;
    - "co-occurrence": which tokens stand near each other in the training targets (those that do so exactly alike share evenly,
      however small τ is, down to rounding);
    - "uniform": all different words are equally far (d = 1), which is label smoothing: that of
      ``label_smoothing`` with ε = M e^(−1/τ) / (1 + (M − 1) e^(−1/τ)) for M words, and with τ = inf and α = ε just that (but for
      gold tokens that no output may have, which stay one-hot targets here).

    Padding, the start symbol and all else that can't be emitted never get any mass. Tokens without a vector (words that
    the file doesn't have, the end symbol, the unknown word) get none from others and are plain one-hot targets themselves.
    Words are looked up as they are spelt, and in lower case if no other token is; of subwords only those that begin a word
    are, without the blank before it. "uniform" needs no vectors, so there all that can be emitted shares.

    ``nearest`` words of each are kept, itself among them; the mass that all others have by r is counted exactly and spread
    evenly over them. "none" keeps all: exact, and as dear as the vocabulary is large. The metric ``moved`` is the mass
    that tokens give away, ``rest`` what of it goes to words that are not kept ("uniform" keeps the word alone), ``covered`` the share
    of tokens that have a vector.

    >>> from unforced.objectives.token_smoothing import TokenSmoothing
    >>> TokenSmoothing(tau=0.05, vectors="co-occurrence").nearest
    100
    """

    tau: Temperature = 0.05  # τ, the temperature of r
    mix: Probability = 1.0  # α, the weight of the smoothed loss; the rest is cross-entropy
    vectors: NonEmptyStr = "model"  # a file of word vectors, "model", "co-occurrence" or "uniform"
    nearest: Count | None = 100  # words that r lists for each word; the others share the rest evenly
    known: Known | None = field(default=None, init=False, repr=False, compare=False)  # what ``fitted`` adds

    @property
    def files(self) -> tuple[Path, ...]:
        """The files that it reads, which a resumed run must find as they were."""
        return () if self.vectors in WORDS else sources(self.vectors)

    def fitted(self, codec: Any, examples: Sequence[Encoded] = ()) -> "TokenSmoothing":
        """The objective with the vectors of this vocabulary, and with the near words of each."""
        fitted = copy.copy(self)
        object.__setattr__(fitted, "known", self.learnt(codec, examples))
        return fitted

    def learnt(self, codec: Any, examples: Sequence[Encoded]) -> Known:
        words = codec.sizes.target, special(codec), unused(codec)
        means = words[1]
        if self.vectors in ("uniform", "model"):
            return Known(*words)
        if self.vectors == "co-occurrence":
            found, there = co_occurrence(target_ids(examples), codec.sizes.target, means)
        else:
            names = codec.token_names() if hasattr(codec, "token_names") else ()
            if not any(names):
                raise InputError(
                    "word vectors are looked up by name, and these tokens have none: a Hugging Face trainer takes them from the "
                    "tokenizer that is its processing_class, other codecs give them by token_names()"
                )
            found, there = read_vectors(self.vectors, names, means)
        if self.nearest is None or self.off:
            return Known(*words, there, found)
        return Known(*words, there, near=near_table(found, there, self.tau, self.nearest))

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "token_smoothing", "start", "embed", "advance", "score")
        scores, gold = gold_scores(model, batch)
        if self.off:
            return negative_log_likelihood(scores, gold)
        smoothed = self.smoothed(model, batch.symbols, gold, scores)
        losses, nll = smoothed_nll(scores, gold, smoothed.target)
        metrics = token_metrics(scores, gold, nll.sum())
        metrics |= self.metrics(losses, nll, smoothed, gold)
        return Loss(losses.sum(), metrics["nll"][1], metrics)

    @property
    def off(self) -> bool:
        """Whether this is plain cross-entropy."""
        return self.tau == 0 or self.mix == 0

    def target(
        self, model: StepDecoder, symbols: Symbols, tokens: Tensor, scores: Tensor
    ) -> tuple[Target, dict[str, Tensor]]:
        """What tokens [N] of any output are scored against, and what is reported of each."""
        if self.off:
            return one_hot(tokens), {}
        smoothed = self.smoothed(model, symbols, tokens, scores)
        return smoothed.target, self.told(smoothed, tokens)

    def smoothed(self, model: StepDecoder, symbols: Symbols, tokens: Tensor, scores: Tensor) -> Smoothed:
        """α r(· | y) + (1 − α) δ(· | y) for tokens y [N], over the words that scores [N,V] are for."""
        size, dtype = scores.shape[1], torch.promote_types(scores.dtype, torch.float32)
        if self.vectors == "uniform":
            return self.uniform(tokens, size, symbols, dtype)
        there, found, near = self.compared(model, size, symbols, tokens.device)
        if near is not None and len(tokens) and size > len(near.tokens) <= int(tokens.max()):
            raise InputError(f"token_smoothing knows {len(near.tokens)} tokens, but one is number {int(tokens.max())}")
        covered = there[tokens]
        if near is None:
            distinct, tokens = tokens.unique(return_inverse=True)
            near = near_words(found.to(dtype), there, distinct, self.tau, self.nearest)
        mine = Near(near.tokens[tokens], near.weights[tokens])  # [N,n]
        return Smoothed(*near_target(mine, there, dtype, self.mix), covered)

    def compared(
        self, model: StepDecoder, size: int, symbols: Symbols, device: torch.device
    ) -> tuple[Tensor, Tensor, Near | None]:
        """Which words have a vector, these vectors, and the words near each where they have been looked up before."""
        if self.vectors == "model":
            with evaluation_mode(model, dropout=True):
                vectors = model.embed(torch.arange(size, device=device).unsqueeze(0))[0]
            found, there = units(widened(vectors))
            without, words = unemitted(symbols), None
            if self.known is not None:
                without, words = without | self.known.special, self.known.size
            return there & emittable(size, without, device, words), found, None
        if self.known is None:
            raise InputError(f'token_smoothing has not read "{self.vectors}" yet: call fitted(codec, examples)')
        known = self.known.on(device)
        assert known.there is not None
        if known.size > size:
            raise InputError(f"token_smoothing knows {known.size} tokens, but the model scores {size}")
        more = size - known.size  # ids that mean nothing
        there = F.pad(known.there, (0, more))
        return there, there if known.units is None else F.pad(known.units, (0, 0, 0, more)), known.near

    def uniform(self, tokens: Tensor, size: int, symbols: Symbols, dtype: torch.dtype) -> Smoothed:
        """The same with d = 1 between all words that can be emitted: a word's own mass, and an even share for all."""
        without, words = massless(symbols), None
        if self.known is not None:
            without, words = without | self.known.never, self.known.size
        there = emittable(size, without, tokens.device, words)
        count, inside = int(there.sum()), there[tokens].to(dtype)
        e = torch.exp(torch.tensor(-1 / self.tau, dtype=dtype, device=tokens.device))
        each = inside * e / (1 + (count - 1) * e)  # r of every other word: [N]
        own = 1 - (count - 1) * each
        entropy = -torch.special.xlogy(own, own) - (count - 1) * torch.special.xlogy(each, each)
        weights = (1 - self.mix * count * each).unsqueeze(1)
        found = Target(tokens.unsqueeze(1), weights, self.mix * count * each, there.to(dtype) / count)
        return Smoothed(found, (count - 1) * each, entropy, inside)

    def told(self, smoothed: Smoothed, tokens: Tensor) -> dict[str, Tensor]:
        """The mass [N] that r takes from tokens [N], what of it goes to words that are not listed, and whether they have a vector."""
        return {
            "moved": (1 - own_mass(smoothed.target, tokens)) / self.mix,
            "rest": smoothed.rest,
            "covered": smoothed.there,
        }

    def metrics(
        self, losses: Tensor, nll: Tensor, smoothed: Smoothed, tokens: Tensor
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """``kl``, ``moved`` and ``rest`` of losses [N] that have been taken of ``smoothed`` targets."""
        count = torch.tensor(float(len(nll)), device=nll.device)
        cross = (losses.detach() - (1 - self.mix) * nll) / self.mix  # −Σ r log p
        return {
            "kl": ((cross - smoothed.entropy).sum().float(), count),
            **{name: (each.sum().float(), count) for name, each in self.told(smoothed, tokens).items()},
        }


def unemitted(symbols: Symbols) -> frozenset[int]:
    """What no word's mass goes to: what can't be emitted, and the end symbol."""
    return frozenset(symbols.banned) | ({symbols.pad, symbols.bos} | {symbols.eos} - {None})  # type: ignore[operator]
