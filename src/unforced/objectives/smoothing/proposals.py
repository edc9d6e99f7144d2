"""Distributions over outputs near a target, with exact draws and log-probabilities.

Outputs are token ids [B,L,W], L for each example, with `END` after their ends; the end symbol stays where it is. Random
numbers come from keys [B,L] and belong to the example, the sample and the position. Probabilities are computed as
float64 logarithms, so that neither long outputs nor large vocabularies overflow.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.errors import InputError
from unforced.objectives.smoothing.outputs import END
from unforced.ops import random_streams
from unforced.types import Batch

Substitutes = Literal["all", "batch", "references"]
AFTER = 1 << 40  # larger than any id: fills a row of a pool after its last id
INSERTIONS = 8  # most adjacent insertions
COINS, PICKS, GAPS, INSERTS = range(4)  # the random streams of a sample


class TokenPool(NamedTuple):
    """V_sub: the tokens that may replace others; one row for all examples, or one each.

    >>> pool = TokenPool(torch.tensor([[3, 5, 7]]), torch.tensor([[3]]))
    >>> pool.count_others(torch.tensor([[5, 4]]))
    tensor([[2, 3]])
    >>> pool.draw_other(torch.tensor([[5, 5]]), torch.tensor([[[0.4, 0.6]]]))
    tensor([[[3, 7]]])
    """

    ids: Tensor  # [1,P] or [B,P], ascending
    sizes: Tensor  # [1,1] or [B,1]

    @classmethod
    def of(cls, which: Substitutes, batch: Batch, size: int, excluded: frozenset[int]) -> "TokenPool":
        """Collect all of ``size`` ids, those of the batch's targets, or those of each example's references."""
        excluded_ids = torch.tensor(sorted(excluded), device=batch.gold.device)
        if which != "references":
            ids = torch.arange(size, device=batch.gold.device) if which == "all" else batch.gold[batch.mask].unique()
            ids = ids[~torch.isin(ids, excluded_ids)].unsqueeze(0)
            return cls(F.pad(ids, (0, 1), value=AFTER), torch.full((1, 1), ids.shape[1], device=ids.device))
        gold = batch.gold.masked_fill(~batch.mask, AFTER)
        ids = gold if batch.references is None else batch.references
        ids = ids.masked_fill(torch.isin(ids, excluded_ids), AFTER).sort(dim=1).values
        repeated = F.pad(ids[:, 1:] == ids[:, :-1], (1, 0))
        ids = ids.masked_fill(repeated, AFTER).sort(dim=1).values
        sizes = (ids < AFTER).sum(dim=1, keepdim=True)
        return cls(ids[:, : max(1, int(sizes.max()))].contiguous(), sizes)

    def find(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many ids of the pool are smaller than each token [B,…], and whether the token is in the pool."""
        flat = tokens.flatten(1).contiguous()
        rank = torch.searchsorted(self.ids[0] if len(self.ids) == 1 else self.ids, flat)
        return rank.view_as(tokens), (self.take(rank) == flat).view_as(tokens)

    def take(self, index: Tensor) -> Tensor:
        """Return the ids at an index [B,…] of the pool."""
        flat = index.flatten(1).clamp(max=self.ids.shape[1] - 1)
        return self.ids.expand(len(flat), -1).gather(1, flat).view_as(index)

    def count_others(self, tokens: Tensor) -> Tensor:
        """Return the number [B,T] of ids that differ from each token."""
        return self.sizes - self.find(tokens)[1].long()

    def draw_other(self, tokens: Tensor, uniforms: Tensor) -> Tensor:
        """Draw an id that differs from the token [B,T], by uniform numbers [B,L,T]: [B,L,T]."""
        rank, inside = (part.unsqueeze(1) for part in self.find(tokens))
        count = self.count_others(tokens).unsqueeze(1)
        index = (uniforms * count).long().clamp(max=(count - 1).clamp(min=0))
        return self.take(index + (inside & (index >= rank)).long())


def editable(batch: Batch, fixed: frozenset[int] = frozenset()) -> Tensor:
    """Return a mask [B,T] of the target tokens that may change: all but the end symbol and ``fixed`` ids."""
    kept = [id for id in {*fixed, batch.symbols.eos} if id is not None]
    return batch.mask & ~torch.isin(batch.gold, torch.tensor(kept, dtype=torch.long, device=batch.gold.device))


@dataclass(frozen=True)
class HammingProposal:
    """q(y) = exp(−hamming(y, y*) / τ) / Z over outputs of the target's length (slides, "Hamming distance").

    The distance is a sum over positions, so q factorises. With m tokens of V_sub that differ from the target and
    a = m e^(−1/τ), a position changes with probability a / (1 + a), to each of them with equal probability, and
    Z = Π_t (1 + a_t).
    """

    gold: Tensor  # [B,T], `END` after the end
    editable: Tensor  # [B,T] bool
    pool: TokenPool
    tau: float

    @cached_property
    def log_odds(self) -> Tensor:
        """log a [B,T]; −inf where nothing can change."""
        count = self.pool.count_others(self.gold).double()
        return (count.log() - 1 / self.tau).masked_fill(~self.editable, -torch.inf)

    @property
    def log_z(self) -> Tensor:
        """log Z [B]."""
        return F.softplus(self.log_odds).sum(dim=1)

    def draw(self, keys: Tensor) -> Tensor:
        """Draw outputs [B,L,T] by keys [B,L], all positions at once."""
        coins, picks = (uniform_numbers(keys, stream, self.gold.shape[1]) for stream in (COINS, PICKS))
        replaced = coins < self.log_odds.sigmoid().unsqueeze(1)
        return torch.where(replaced, self.pool.draw_other(self.gold, picks), self.gold.unsqueeze(1))

    def log_prob(self, outputs: Tensor) -> Tensor:
        """Return log q [B,L] of outputs [B,L,T] that can be drawn."""
        distance = (outputs != self.gold.unsqueeze(1)).sum(dim=2)
        return -distance.double() / self.tau - self.log_z.unsqueeze(1)


@dataclass(frozen=True)
class EditProposal:
    """q(y) = Σ exp(−edits / τ) / Z over the ways to edit y* into y by insertions, deletions and substitutions.

    Each token is kept, deleted, or replaced by another one of V_sub. Up to J tokens of V_sub are inserted before each
    token and after the last. With e = e^(−1/τ), a token weighs 1 if it is kept, e if it is deleted, and e for each of
    m other tokens; a gap with j tokens weighs e^j. With M tokens in V_sub, draws are exact and

        Z = Π_t (1 + e + m_t e) · (Σ_{j ≤ J} (M e)^j)^(T+1)

    q sums over all ways that lead to an output, by a forward pass over pairs of positions (Ristad and Yianilos 1998).
    """

    gold: Tensor  # [B,T], `END` after the end
    editable: Tensor  # [B,T] bool: the beginning of each row
    pool: TokenPool
    tau: float
    insertions: int = INSERTIONS  # J

    @cached_property
    def log_odds(self) -> Tensor:
        """Log odds [B,T] that a token is deleted or replaced; −inf after the end."""
        odds = (1 + self.pool.count_others(self.gold)).double().log() - 1 / self.tau
        return odds.masked_fill(~self.editable, -torch.inf)

    @cached_property
    def log_gaps(self) -> Tensor:
        """Log weights of all ways to insert j = 0 … J tokens into a gap: [B,J+1], or [1,J+1] for all examples."""
        j = torch.arange(self.insertions + 1, dtype=torch.float64, device=self.gold.device)
        return torch.where(j > 0, j * (self.pool.sizes.double().log() - 1 / self.tau), 0.0)

    @cached_property
    def gaps(self) -> Tensor:
        """Mask [B,T+1] of the gaps: before each token, and after the last."""
        return torch.cat([(self.gold != END).any(dim=1, keepdim=True), self.editable], dim=1)

    @property
    def log_z(self) -> Tensor:
        """log Z [B]."""
        return F.softplus(self.log_odds).sum(dim=1) + self.gaps.sum(dim=1) * self.log_gaps.logsumexp(dim=1)

    def check(self) -> None:
        """Raise `InputError` if a target has a fixed token before its end."""
        if bool((~self.editable[:, :-1] & (self.gold[:, 1:] != END)).any()):
            raise InputError("edit proposals need targets without special tokens, except for an end symbol at the end")

    def draw(self, keys: Tensor) -> Tensor:
        """Draw outputs [B,L,W] by keys [B,L]."""
        size = self.gold.shape[1]
        coins, picks = (uniform_numbers(keys, stream, size) for stream in (COINS, PICKS))
        count = self.pool.count_others(self.gold).unsqueeze(1)
        choice = picks * (1 + count)  # below 1 the token is deleted
        changed = coins < self.log_odds.sigmoid().unsqueeze(1)
        other = self.pool.draw_other(self.gold, ((choice - 1) / count.clamp(min=1)).clamp(min=0.0))
        tokens = torch.where(changed, other, self.gold.unsqueeze(1))
        kept = self.editable.unsqueeze(1) & ~(changed & (choice < 1))
        inserted, filled = self.draw_insertions(keys)
        # each gap and then its token; at last the final gap and the end symbol
        end = self.gold.masked_fill(self.editable, END).amax(dim=1)[:, None, None].expand(*keys.shape, 1)
        tokens = torch.cat([inserted, F.pad(tokens, (0, 1)).unsqueeze(3)], dim=3).flatten(2)
        present = torch.cat([filled, F.pad(kept, (0, 1)).unsqueeze(3)], dim=3).flatten(2)
        return compact(torch.cat([tokens, end], dim=2), torch.cat([present, end != END], dim=2))

    def draw_insertions(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Draw tokens for the gaps, and which of them are inserted: [B,L,T+1,J] each."""
        width = self.gold.shape[1] + 1
        cumulative = self.log_gaps.softmax(dim=1).cumsum(dim=1)[:, None, None, :-1]
        filled = uniform_numbers(keys, GAPS, width).unsqueeze(3) >= cumulative
        picks = uniform_numbers(keys, INSERTS, width * self.insertions).unflatten(2, (width, self.insertions))
        tokens = self.pool.take((picks * self.pool.sizes[:, :, None, None]).long())
        return tokens, filled & self.gaps[:, None, :, None]

    def log_prob(self, outputs: Tensor) -> Tensor:
        """Return log q [B,L] of outputs [B,L,W]."""
        e, gold = -1 / self.tau, self.gold.masked_fill(~self.editable, END)
        ended = (self.gold != gold).any(dim=1, keepdim=True)  # has an end symbol
        lengths = (outputs != END).sum(dim=2) - ended.long()  # [B,L]
        zero = torch.full(outputs.shape, -torch.inf, dtype=torch.float64, device=outputs.device)
        insert = zero.masked_fill(self.pool.find(outputs)[1], e)  # log weight of an insertion or substitution
        logs = F.pad(zero, (1, 0))  # log weight of having written j tokens: [B,L,W+1]
        for t in range(gold.shape[1] + 1):
            gap = logs
            for _ in range(self.insertions):
                gap = torch.logaddexp(logs, advance_one(gap, insert))
            logs = torch.where(self.gaps[:, t, None, None], gap, logs)
            if t < gold.shape[1]:
                write = torch.where(outputs == gold[:, t, None, None], 0.0, insert)
                token = torch.logaddexp(logs + e, advance_one(logs, write))
                logs = torch.where(self.editable[:, t, None, None], token, logs)
        return logs.gather(2, lengths.unsqueeze(2)).squeeze(2) - self.log_z.unsqueeze(1)


def advance_one(logs: Tensor, emitted: Tensor) -> Tensor:
    """Return entry j − 1 of ``logs`` plus the log weight of token j − 1, as entry j."""
    return F.pad((logs[..., :-1] + emitted), (1, 0), value=-torch.inf)


def uniform_numbers(keys: Tensor, stream: int, count: int) -> Tensor:
    """Return ``count`` numbers [B,L,count] of one random stream of each key [B,L]."""
    t = torch.arange(count, device=keys.device)
    return random_streams.uniform(random_streams.branch(keys, stream).unsqueeze(2), t)


def compact(tokens: Tensor, present: Tensor) -> Tensor:
    """Remove the tokens that are not ``present``, and fill up with `END`.

    >>> compact(torch.tensor([[[4, 5, 6]]]), torch.tensor([[[True, False, True]]]))
    tensor([[[4, 6]]])
    """
    place = present.long().cumsum(dim=2) - 1
    width = max(1, int(place.max()) + 1)
    result = tokens.new_full((*tokens.shape[:2], width + 1), END)
    result.scatter_(2, torch.where(present, place, width), tokens)
    return result[..., :width]
