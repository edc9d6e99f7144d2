"""Predict each token after the reference tokens: an upper bound for curing exposure bias."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from unforced.decoding.greedy import argmax
from unforced.decoding.search import Constraints
from unforced.decoding.teacher_forcing import gold_scores
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.ops.masks import scatter_mask
from unforced.options import Options
from unforced.protocols import StepDecoder
from unforced.types import Batch, Hypotheses


@dataclass(frozen=True)
class GoldHistory(Options):
    """Take the most probable token at each step **given the reference before it**: ŷ_t = argmax_w log p(w | y*_<t, x).

    This reads the targets, so it is for analysis only. Its lead over greedy search is the cost of the model's own
    mistakes later in an output, and about the most that a cure of exposure bias can gain. Outputs have the length of
    the reference, or end at the first end symbol.

    >>> import torch
    >>> from unforced.models.toy import Toy
    >>> from unforced.types import Sizes, Symbols
    >>> gold = torch.tensor([[3, 4, 2]])
    >>> batch = Batch.of_gold(gold, gold > 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1)))
    >>> GoldHistory()(Toy().build(Sizes(target=5)), batch).lengths.shape
    torch.Size([1, 1])
    """

    reads_gold: ClassVar[bool] = True

    def __call__(self, model: StepDecoder, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        if not bool(batch.mask.any()):
            raise InputError("gold_history needs targets, and this batch has none")
        pad, end = batch.symbols.pad, batch.symbols.eos
        with evaluation_mode(model):
            token_scores = Constraints.of(batch).token_scores(0, gold_scores(model, batch)[0])  # [N,V]
            best = argmax(0, token_scores, None)
        tokens = scatter_mask(best, batch.mask)
        log_probs = scatter_mask(token_scores.gather(1, best.unsqueeze(1)).squeeze(1).float(), batch.mask)
        kept = batch.mask
        if end is not None:
            ended = (tokens == end) & batch.mask
            kept = kept & (ended.long().cumsum(dim=1) - ended.long() == 0)
        sums = (log_probs * kept).sum(dim=1, keepdim=True)
        lengths = kept.sum(dim=1, keepdim=True)
        return Hypotheses(tokens.masked_fill(~kept, pad).unsqueeze(1), lengths, sums, sums)
