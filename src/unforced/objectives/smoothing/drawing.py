"""Which outputs near the gold are drawn, and how they weigh."""

import math
import sys
import warnings
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unforced.errors import InputError
from unforced.objectives.smoothing.outputs import END, within
from unforced.objectives.smoothing.proposals import (
    INSERTIONS,
    EditProposal,
    HammingProposal,
    Pool,
    Substitutes,
    editable,
)
from unforced.objectives.smoothing.rewards import Documents, Reward, distances
from unforced.objectives.token_smoothing import unemitted
from unforced.ops import random_streams
from unforced.types import Batch

Metrics = dict[str, tuple[Tensor, Tensor]]
CROWD = (
    "edit proposals are mostly insertions at this temperature, from as many tokens as there are: take a smaller proposal_tau "
    "(the metric changed should be well below one)"
)
CROWDED = 1.0  # weight of one more insertion from which on edited outputs are as long as they can be ...
BUSY = 0.5  # ... and from which on they have as many insertions as tokens of the gold
FEW, MANY = 0.01, 0.5  # shares of tokens that change which are hardly what was meant


class Known(NamedTuple):
    """What a fitted objective knows: the vocabulary's size, ids that are no words, which of them beside the end symbol stay in
    their places where the gold has them, and CIDEr's document frequencies."""

    size: int
    special: frozenset[int]
    fixed: frozenset[int]
    documents: Documents | None = None


class Draws(NamedTuple):
    """L outputs for each example, with their weights, which sum to one, and what is reported of them."""

    outputs: Tensor  # [B,L,W], ``END`` behind the ends
    weights: Tensor  # [B,L]
    metrics: Metrics


@dataclass(frozen=True)
class Drawing:
    """Outputs by a proposal q at a temperature of its own, weighed by r / q where r is another distribution; see ``SequenceSmoothing``."""

    reward: Reward
    tau: float  # of r
    proposal: Literal["hamming", "edit"]
    temperature: float  # of q
    vocabulary: Substitutes
    samples: int
    longest: int | None
    known: Known | None

    @property
    def weighed(self) -> bool:
        """Whether samples come from another distribution than r."""
        return self.reward != "hamming" or self.temperature != self.tau

    def crowd(self, tokens: int) -> float:
        """What one more insertion weighs where edits are drawn from so many tokens; 0 where nothing is inserted."""
        return 0.0 if self.proposal != "edit" else tokens * math.exp(-1 / self.temperature)

    def check_pool(self, tokens: int) -> None:
        """Refuse a temperature at which edited outputs of so many tokens are too long for any model, and warn of one at which
        next to nothing changes, or nearly all."""
        if self.crowd(tokens) >= CROWDED:
            raise InputError(
                f"edit proposals at temperature {self.temperature:g} from {tokens} tokens would be mostly insertions: "
                f"take a smaller proposal_tau (at {1 / math.log(11 * tokens):.3f} there is one for ten tokens)"
            )
        if self.proposal == "edit" or tokens < 2:
            return
        share = 1 / (1 + math.exp(min(1 / self.temperature - math.log(tokens - 1), 700)))
        if not FEW <= share <= MANY:
            name = "tau" if self.temperature == self.tau else "proposal_tau"
            warnings.warn(
                f"at {name} {self.temperature:g} {share:.2g} of the tokens change to others of {tokens}; "
                f"one in ten would at {1 / math.log(9 * tokens):.3f}",
                stacklevel=4,
            )

    def pool(self, batch: Batch, size: int) -> Pool:
        """V_sub."""
        if self.vocabulary == "references" and batch.references is None and self.known is None:
            raise InputError('vocabulary "references" is for batches that have references, and this one has none')
        without = unemitted(batch.symbols) | (frozenset() if self.known is None else self.known.special)
        return Pool.of(self.vocabulary, batch, size, without)

    def around(self, batch: Batch, size: int) -> HammingProposal | EditProposal:
        """The distribution that outputs are drawn from."""
        if self.proposal == "edit" and batch.symbols.eos is None:
            raise InputError("edit proposals change the length of outputs, which is fixed in this data")
        gold = batch.gold.masked_fill(~batch.mask, END)
        fixed = frozenset(batch.symbols.banned) if self.known is None else self.known.fixed
        parts = gold, editable(batch, fixed), self.pool(batch, size), self.temperature
        if self.proposal == "hamming":
            return HammingProposal(*parts)
        proposal = EditProposal(*parts, INSERTIONS)
        proposal.check()
        tokens = int(proposal.pool.sizes.max())
        if self.vocabulary == "all":
            self.check_pool(tokens)
        if self.crowd(tokens) >= BUSY:  # as many as a batch may have: no reason to end a training
            warnings.warn(CROWD, stacklevel=2)  # always the same words, so they are said once
        return proposal

    def draws(self, batch: Batch, size: int, keys: Tensor) -> Draws:
        """``samples`` outputs of each example by its key [B], and their weights ω (eqs. 8 and 11)."""
        around = self.around(batch, size)
        numbers = torch.arange(self.samples, device=keys.device)
        outputs = around.draw(random_streams.branch(keys.unsqueeze(1), numbers))  # [B,L,W]
        weights = torch.full(outputs.shape[:2], 1 / self.samples, dtype=torch.float64, device=keys.device)
        examples = torch.tensor(float(len(batch)), device=keys.device)
        metrics = Metrics()
        if self.proposal == "hamming":
            changes = (outputs != around.gold.unsqueeze(1)).sum()
        else:
            changes = distances("edit", outputs, around.gold, batch.symbols.eos).sum()
        metrics["changed"] = (changes.float(), around.changing.sum().float() * self.samples)
        worth = torch.full((len(batch),), float(self.samples), device=keys.device)
        if self.weighed:
            d = self.distances(outputs, around.gold, batch)
            metrics["drawn_distance"] = (d.mean(dim=1).sum().float(), examples)
            outputs, long = within(self.longest, outputs, around.gold)
            lost = long.all(dim=1, keepdim=True)  # these have their gold
            if self.longest is not None:
                metrics["too_long"] = (long.sum().float(), examples * self.samples)
                d = self.distances(outputs, around.gold, batch)
            dropped = long & ~lost
            least = d.masked_fill(dropped, torch.inf).amin(dim=1, keepdim=True)
            # finite for one sample at least, however small τ is; training takes what is smaller still for zero
            nearer = (least - d) / max(self.tau, sys.float_info.min)
            logs = (nearer - around.log_prob(outputs)).masked_fill(dropped, -torch.inf)
            weights = torch.softmax(logs, dim=1)  # ω ∝ r / q (eq. 11)
            metrics["distance"] = ((weights * d).sum().float(), examples)
            worth = torch.where(lost.squeeze(1), 1.0, weights.square().sum(dim=1).reciprocal())
        metrics["ess"] = (worth.sum().float(), examples)
        return Draws(outputs, weights, metrics)

    def distances(self, outputs: Tensor, gold: Tensor, batch: Batch) -> Tensor:
        """d [B,L] of outputs [B,L,W] by the reward."""
        documents = None if self.known is None else self.known.documents
        if self.reward == "cider" and documents is None:
            raise InputError("sequence_smoothing has counted no n-grams for CIDEr yet: call fitted(codec, examples)")
        without = frozenset[int]() if self.known is None else self.known.fixed
        return distances(self.reward, outputs, gold, batch.symbols.eos, documents, without)
