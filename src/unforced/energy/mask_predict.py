"""Mask-Predict (Ghazvininejad et al. 2019): predict all tokens, then mask and predict the least probable ones again.

Also the initial sequences of Markov chains.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unforced.energy import energies, masked_copies
from unforced.energy.masked_copies import COPIES
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.ops import random_streams
from unforced.ops.masks import widened
from unforced.options import Count, Options
from unforced.protocols import SupportsLengths, require
from unforced.types import Batch, Hypotheses


class Filled(NamedTuple):
    """Outputs of Mask-Predict."""

    tokens: Tensor  # [B,T] long; positions without a variable are those of the batch
    log_probs: Tensor  # [B,T], of each token when it was last predicted; 0 where there is no variable


def fill(model: Any, batch: Batch, iterations: int = 10, rows: int = COPIES) -> Filled:
    """Predict all variables at once, then repeatedly the ones with the lowest probability.

    Of n variables, iteration t = 0, 1, …, N − 1 masks n·(N − t)/N, rounded down, and at least one. Ties are broken in
    favour of earlier positions. Each masked variable gets its most probable token given the others.
    """
    batch = masked_copies.encode_sources(model, batch)
    tokens, log_probs = batch.gold.clone(), torch.zeros(batch.gold.shape, device=batch.gold.device)
    present = energies.variables(batch).any(dim=1).nonzero().squeeze(1)
    for numbers, size in masked_copies.even_batches(masked_copies.extents(batch)[present], rows):
        part = present[numbers]
        filled = _fill(model, masked_copies.trim(batch.select(part), size), iterations)
        log_probs = log_probs.to(filled.log_probs.dtype)
        tokens[part, :size], log_probs[part, :size] = filled
    return Filled(tokens, log_probs)


def _fill(model: Any, batch: Batch, iterations: int) -> Filled:
    """Fill a micro-batch in which every row has a variable."""
    free = energies.variables(batch)
    tokens, counts, number = batch.gold, free.sum(dim=1), torch.arange(len(batch), device=free.device)
    log_probs = torch.zeros(free.shape, device=free.device)
    for t in range(iterations):
        hidden = (counts * (iterations - t) // iterations).clamp(min=1)
        worst = log_probs.masked_fill(~free, torch.inf).argsort(dim=1, stable=True)[:, : int(hidden.max())]
        valid = torch.arange(worst.shape[1], device=free.device) < hidden.unsqueeze(1)
        worst = torch.where(valid, worst, worst[:, :1])
        scores = masked_copies.scores_at(model, batch, tokens, number, worst, valid, len(batch))
        allowed = energies.allowed(batch.symbols, scores.shape[-1], scores.device)
        log_prob, best = widened(scores).masked_fill(~allowed, -torch.inf).log_softmax(dim=-1).max(dim=-1)
        tokens = tokens.scatter(1, worst, torch.where(valid, best, best[:, :1]))
        log_probs = log_probs.to(log_prob.dtype).scatter(1, worst, torch.where(valid, log_prob, log_prob[:, :1]))
    return Filled(tokens, log_probs)


def warm_start(model: Any, batch: Batch, chains: int = 1, rows: int = COPIES) -> Tensor:
    """Return the most probable tokens while all are masked (Goyal 2021, Algorithm 4, line 3): [B·chains,T]."""
    with evaluation_mode(model):
        return fill(model, batch, 1, rows).tokens.repeat_interleave(chains, dim=0)


def random_start(batch: Batch, size: int, rng: torch.Generator, chains: int = 1) -> Tensor:
    """Return uniform tokens of a vocabulary of ``size``, a different sequence for each chain: [B·chains,T]."""
    ids = energies.allowed(batch.symbols, size, batch.gold.device).nonzero().squeeze(1)
    numbers = torch.arange(chains, device=ids.device)
    keys = random_streams.branch(random_streams.keys(batch, rng).unsqueeze(1), numbers).flatten()
    columns = torch.arange(batch.gold.shape[1], device=ids.device)
    drawn = (random_streams.uniform(keys.unsqueeze(1), columns) * len(ids)).long().clamp(max=len(ids) - 1)
    free, gold = (leaf.repeat_interleave(chains, dim=0) for leaf in (energies.variables(batch), batch.gold))
    return torch.where(free, ids[drawn], gold)


def output_lengths(model: Any, batch: Batch, method: str, count: int = 1) -> Tensor:
    """Return the number of variables of outputs: the model's ``count`` most probable lengths [B,count].

    Without an end symbol it is the length in the batch: [B,1].
    """
    if batch.symbols.eos is None:
        if batch.length is None:
            raise InputError("outputs without an end symbol need Batch.length, the length of each output")
        return batch.length.unsqueeze(1)
    scores = model.length_scores(batch) if isinstance(model, SupportsLengths) else None
    if scores is None:
        raise InputError(f"{method} with an end symbol needs a model with length_scores, but this one has none")
    if count > scores.shape[1]:
        raise InputError(f"lengths must be at most {scores.shape[1]}, the largest length of the model, got {count}")
    return scores.topk(count, dim=1).indices + 1


@dataclass(frozen=True)
class MaskPredict(Options):
    """Predict all tokens of a masked model, then mask and predict the least probable ones again.

    The best output has the highest mean log-probability of its tokens. ``log_probs`` is their sum without the end
    symbol, whose position is given. Without an end symbol outputs have the length in the batch.
    """

    iterations: Count = 10  # number of passes over each output
    lengths: Count = 1  # try this many of the most probable lengths
    rows: Count = COPIES  # outputs in a micro-batch

    def __call__(self, model: Any, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        require(model, "mask_predict", "scores")
        with evaluation_mode(model):
            batch = masked_copies.encode_sources(model, batch)
            lengths = output_lengths(model, batch, "mask_predict", self.lengths)  # [B,N]
            tries = torch.arange(len(batch), device=lengths.device).repeat_interleave(lengths.shape[1])
            room = energies.canvas(batch.select(tries), lengths.flatten())
            filled = fill(model, room, self.iterations, self.rows)
        log_probs = filled.log_probs.sum(dim=1)
        scores = (log_probs / lengths.flatten().clamp(min=1)).view_as(lengths)
        order = scores.argsort(dim=1, descending=True, stable=True)
        tokens = filled.tokens.view(*lengths.shape, -1)
        return Hypotheses(
            tokens.gather(1, order.unsqueeze(2).expand_as(tokens)),
            room.mask.sum(dim=1).view_as(lengths).gather(1, order),
            log_probs.view_as(lengths).gather(1, order),
            scores.gather(1, order),
        )
