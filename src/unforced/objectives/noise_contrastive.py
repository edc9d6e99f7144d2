"""Noise-contrastive estimation of an energy model over whole sequences (Gutmann & Hyvärinen 2010; Goyal 2021, chapter 7)."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced import streams
from unforced.energy import energies
from unforced.energy.energies import Kind
from unforced.energy.partition import ROWS, energies_in_parts
from unforced.energy.spaces import allowed_ids
from unforced.errors import InputError, check_choice
from unforced.models.protocol import MaskedModel, require
from unforced.objectives._feeding import asking
from unforced.objectives._masked import (
    Frozen,
    check_energy,
    check_weight,
    frozen,
    prepared,
    with_lengths,
)
from unforced.objectives._noise import Counts, Draws, Noise, OfModel
from unforced.types import Batch, Encoded, Loss, Progress

From = Literal["uniform", "unigram", "bigram"]
ORDERS = {"uniform": 0, "unigram": 1, "bigram": 2}


def binary_losses(gold: Tensor, noise: Tensor) -> Tensor:
    """−log σ(G(y)) − Σ_j log σ(−G(ỹ_j)) of log-ratios G: gold [B] and noise [B,k] -> [B].

    G = −E − log Z − log q − log k is the log of how much likelier a sequence is to be data than noise.
    """
    return F.softplus(-gold) + F.softplus(noise).sum(dim=1)


def ranking_losses(gold: Tensor, noise: Tensor) -> Tensor:
    """−log of the share that exp G of the gold has among gold and noise: [B] and [B,k] -> [B]."""
    return torch.logsumexp(torch.cat([gold.unsqueeze(1), noise], dim=1), dim=1) - gold


@dataclass(frozen=True)
class NoiseContrastive:
    """Tell each training sequence from ``samples`` sequences of the same length that are drawn from noise q.

    With G(y) = −E(y) − log Z − log q(y) − log k, "binary" is −log σ(G(y*)) − Σ_j log σ(−G(ỹ_j)), whose optimum is the
    distribution of the data, log Z included. "ranking" is −log of exp G(y*) over the sum of exp G of all k + 1, which needs no
    log Z (Ma & Collins 2018). ``log_z`` is a number that log Z is fixed at (the model then normalises itself), or none for
    a table by length that the model learns (its field ``normalizer``).

    Noise is "uniform" over the tokens that are allowed, or as training data has them: "unigram", each token by itself with
    ``smoothing`` added to its count, or "bigram", each given the one before it, with ``backoff`` of its probability from
    the unigrams. ``model`` names the run folder of a masked model of the same kind, which draws in place of these (in
    Python, any model, also one that writes from left to right).

    The total is divided by the number of tokens, as elsewhere. The metric ``accuracy`` is the share of sequences, gold and
    noise, that G tells apart, ``nce`` the loss of a sequence. Where the model guesses lengths, see ``masked_lm``.

    >>> NoiseContrastive(noise="unigram", samples=5).form
    'binary'
    """

    noise: From = "bigram"
    samples: int = 10  # k, noise sequences for each gold one
    form: Literal["binary", "ranking"] = "binary"
    log_z: float | None = 0.0  # what log Z is fixed at; None: learnt by the model
    energy: Kind = "raw"
    smoothing: float = 1.0  # added to each token's count
    backoff: float = 0.1  # share of unigrams in bigrams
    model: Frozen | None = None  # a run folder whose model draws the noise
    rows: int = ROWS  # masked copies in memory at a time
    length_weight: float = 0.1  # of the length's loss, for models that guess lengths
    counts: Counts | None = field(default=None, init=False, repr=False, compare=False)  # what ``fitted`` adds
    known: dict[Any, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # models read so far

    def __post_init__(self) -> None:
        check_choice("noise", self.noise, From)
        check_choice("form", self.form, Literal["binary", "ranking"])
        check_energy(self.energy, self.rows)
        check_weight("length_weight", self.length_weight)
        if self.samples < 1:
            raise InputError(f"samples must be at least 1, not {self.samples}")
        if self.log_z is not None and not math.isfinite(self.log_z):
            raise InputError(f"log_z must be a finite number or none, not {self.log_z}")
        if not 0 < self.smoothing < math.inf:
            raise InputError(f"smoothing must be positive, or some tokens are no noise, not {self.smoothing}")
        if not 0 < self.backoff <= 1:
            raise InputError(f"backoff must lie in (0, 1], or some pairs are no noise, not {self.backoff}")

    def fitted(self, codec: Any, examples: Sequence[Encoded] = ()) -> NoiseContrastive:
        """The objective, knowing how often tokens and pairs of them occur in training targets."""
        if self.model is not None or self.noise == "uniform":
            return self
        targets = (example.target for example in examples)
        fitted = copy.copy(self)
        object.__setattr__(fitted, "counts", self._counted(targets, codec.sizes.target, codec.symbols))
        return fitted

    def _counted(self, targets: Any, size: int, symbols: Any) -> Counts:
        return Counts.of(targets, size, symbols, ORDERS[self.noise], self.smoothing, self.backoff)

    def __call__(self, model: MaskedModel, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        plain, batch = batch, prepared(model, batch, "noise_contrastive")
        draws, gold_q = self.drawn(model, plain, streams.keys(batch, rng))
        b, k = len(batch), self.samples
        tokens = torch.cat([batch.gold, draws.tokens])
        examples = torch.arange(b, device=tokens.device)
        examples = torch.cat([examples, examples.repeat_interleave(k)])
        energy = energies_in_parts(
            model,
            batch,
            len(tokens),
            lambda start, stop: (examples[start:stop], tokens[start:stop]),
            self.energy,
            self.rows,
        )
        log_q = torch.cat([gold_q, draws.log_probs]).to(energy)
        ratios = -energy - self.normalizer(model, batch).to(energy)[examples] - log_q - math.log(k)
        gold, noise = ratios[:b], ratios[b:].view(b, k)
        total = (binary_losses if self.form == "binary" else ranking_losses)(gold, noise).sum()
        shares = energies.variables(batch).sum(dim=1)
        sequences = torch.tensor(float(b), device=energy.device)
        metrics = {
            "nce": (total.detach().float(), sequences),
            "accuracy": self.told_apart(gold.detach(), noise.detach()),
        }
        return with_lengths(
            model, batch, Loss(total, shares.sum().float(), metrics), shares, self.length_weight
        )

    def drawn(self, model: Any, batch: Batch, keys: Tensor) -> tuple[Draws, Tensor]:
        """Noise for each example, and log q of the gold [B]."""
        found: Noise
        if self.model is not None:
            writer = frozen(self.model, model, self.known)
            with asking(writer, dropout=False):
                found = OfModel(writer)
                return found.draw(batch, keys, self.samples), found.log_prob(batch, batch.gold)
        counts = self.counts
        if counts is None:
            if self.noise != "uniform":
                raise InputError(
                    f'noise_contrastive has counted no noise "{self.noise}" yet: call fitted(codec, examples)'
                )
            counts = self._counted((), int(allowed_ids(model, batch)[-1]) + 1, batch.symbols)
        found = counts.on(batch.gold.device)
        return found.draw(batch, keys, self.samples), found.log_prob(batch, batch.gold)

    def normalizer(self, model: Any, batch: Batch) -> Tensor:
        """log Z of each example, as far as it is known: [B]."""
        if self.log_z is not None:
            return torch.full((len(batch),), self.log_z, device=batch.gold.device)
        require(model, "noise_contrastive without a fixed log_z", "log_z")
        found: Tensor = model.log_z(batch)
        return found

    def told_apart(self, gold: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """How many sequences are seen for what they are, and of how many."""
        if self.form == "ranking":
            hits = (gold > noise.amax(dim=1)).sum()
            return hits.float(), torch.tensor(float(len(gold)), device=gold.device)
        hits = (gold > 0).sum() + (noise < 0).sum()
        return hits.float(), torch.tensor(float(gold.numel() + noise.numel()), device=gold.device)
