"""Outputs in the neighbourhood of the gold: distributions over them, draws from these, and exact log-probabilities.

Outputs are [B,L,W] token ids, L for each example, with ``END`` behind their ends; an end symbol stays where it is. Random
numbers come from keys [B,L] (``unforced.ops.random_streams``) and belong to the example, the sample and the position. Probabilities
are in float64 and in logarithms, so neither long outputs nor large vocabularies overflow.
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
NOBODY = 1 << 40  # stands behind the last id of a pool: larger than any id
INSERTIONS = 8  # the most side by side
COINS, PICKS, GAPS, INSERTS = range(4)  # the random streams of a sample


class Pool(NamedTuple):
    """V_sub, the tokens that may stand in for others: one set for all examples, or one for each.

    >>> pool = Pool(torch.tensor([3, 5, 7]), torch.tensor([[3]]))
    >>> pool.others(torch.tensor([[5, 4]]))
    tensor([[2, 3]])
    >>> pool.other(torch.tensor([[5, 5]]), torch.tensor([[[0.4, 0.6]]]))
    tensor([[[3, 7]]])
    """

    ids: Tensor  # [P] or [B,P], ascending, ``NOBODY`` behind them
    sizes: Tensor  # [1,1] or [B,1]

    @classmethod
    def of(cls, which: Substitutes, batch: Batch, size: int, without: frozenset[int]) -> "Pool":
        """All of ``size`` tokens, those of the batch's gold or those of each example's references, but none ``without``."""
        gone = torch.tensor(sorted(without), dtype=torch.long, device=batch.gold.device)
        if which == "references":
            found = batch.gold.masked_fill(~batch.mask, NOBODY) if batch.references is None else batch.references
            found = found.masked_fill(torch.isin(found, gone), NOBODY).sort(dim=1).values
            twice = F.pad(found[:, 1:] == found[:, :-1], (1, 0))
            found = found.masked_fill(twice, NOBODY).sort(dim=1).values
            sizes = (found < NOBODY).sum(dim=1, keepdim=True)
            return cls(found[:, : max(1, int(sizes.max()))].contiguous(), sizes)
        found = torch.arange(size, device=gone.device) if which == "all" else batch.gold[batch.mask].unique()
        found = found[~torch.isin(found, gone)]
        sizes = torch.full((1, 1), len(found), device=gone.device)
        return cls(found if len(found) else found.new_full((1,), NOBODY), sizes)

    def find(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """How many of the set are smaller than each token [B,…], and whether it is in the set."""
        flat = tokens.flatten(1).contiguous()
        rank = torch.searchsorted(self.ids, flat)
        return rank.view_as(tokens), (self._at(rank) == flat).view_as(tokens)

    def _at(self, index: Tensor) -> Tensor:
        index = index.clamp(max=self.ids.shape[-1] - 1)
        return self.ids[index] if self.ids.dim() == 1 else self.ids.gather(1, index)

    def take(self, index: Tensor) -> Tensor:
        """Number ``index`` [B,…] of the set."""
        return self._at(index.flatten(1)).view_as(index)

    def others(self, tokens: Tensor) -> Tensor:
        """How many of the set are not the token: [B,T]."""
        return self.sizes - self.find(tokens)[1].long()

    def other(self, tokens: Tensor, uniforms: Tensor) -> Tensor:
        """One of the set that isn't the token [B,T], each equally likely, by uniform numbers [B,L,T]: [B,L,T]."""
        rank, inside = (part.unsqueeze(1) for part in self.find(tokens))
        count = self.others(tokens).unsqueeze(1)
        index = (uniforms * count).long().clamp(max=(count - 1).clamp(min=0))
        return self.take(index + (inside & (index >= rank)).long())


def editable(batch: Batch, fixed: frozenset[int] = frozenset()) -> Tensor:
    """[B,T] bool: the tokens that may change, all but the end symbol and those that are ``fixed``."""
    fixed = fixed | ({batch.symbols.eos} - {None})  # type: ignore[operator]
    if not fixed:
        return batch.mask
    return batch.mask & ~torch.isin(batch.gold, torch.tensor(sorted(fixed), device=batch.gold.device))


@dataclass(frozen=True)
class HammingProposal:
    """q(y) = exp(−hamming(y, y*) / τ) / Z over the outputs of the gold's length (slides, "Hamming distance").

    The distance is a sum over positions, so q factorises: with m tokens of V_sub that aren't the gold and a = m e^(−1/τ),
    a position is replaced with probability a / (1 + a), by each of them alike, and Z = Π_t (1 + a_t).
    """

    gold: Tensor  # [B,T], ``END`` behind the end
    changing: Tensor  # [B,T] bool
    pool: Pool
    tau: float

    @cached_property
    def log_odds(self) -> Tensor:
        """log a [B,T]; −inf where nothing can change."""
        count = self.pool.others(self.gold).double()
        return (count.log() - 1 / self.tau).masked_fill(~self.changing, -torch.inf)

    @property
    def log_z(self) -> Tensor:
        """[B]."""
        return F.softplus(self.log_odds).sum(dim=1)

    def draw(self, keys: Tensor) -> Tensor:
        """[B,L] keys -> [B,L,T] outputs, all positions at once."""
        coins, picks = (_uniforms(keys, stream, self.gold.shape[1]) for stream in (COINS, PICKS))
        replaced = coins < self.log_odds.sigmoid().unsqueeze(1)
        return torch.where(replaced, self.pool.other(self.gold, picks), self.gold.unsqueeze(1))

    def stratified(self, keys: Tensor) -> Tensor:
        """The same distribution as the slides draw from it: a distance, then positions, then substitutions.

        p(d) = C(T, d) a^d / Z. It serves to test ``draw`` and needs as many substitutes at every position.
        """
        size, lengths = self.gold.shape[1], self.changing.sum(dim=1, keepdim=True).double()  # [B,1]
        d = torch.arange(size + 1, dtype=torch.float64, device=keys.device)
        ways = torch.lgamma(lengths + 1) - torch.lgamma(d + 1) - torch.lgamma((lengths - d).clamp(min=0) + 1)
        log_odds = self.log_odds.amax(dim=1, keepdim=True)
        logs = (ways + torch.where(d > 0, d * log_odds, 0.0)).masked_fill(d > lengths, -torch.inf)  # [B,T+1]
        chances = logs.softmax(dim=1).repeat_interleave(keys.shape[1], dim=0)
        distance = random_streams.draw(
            chances, random_streams.uniform(random_streams.branch(keys, GAPS), 0).flatten()
        ).view_as(keys)
        coins, picks = (_uniforms(keys, stream, size) for stream in (COINS, PICKS))
        order = coins.masked_fill(~self.changing.unsqueeze(1), 2.0).argsort(dim=2).argsort(dim=2)
        replaced = order < distance.unsqueeze(2)  # without replacement, within the length
        return torch.where(replaced, self.pool.other(self.gold, picks), self.gold.unsqueeze(1))

    def log_prob(self, outputs: Tensor) -> Tensor:
        """log q [B,L] of outputs [B,L,T] that it may have drawn."""
        distance = (outputs != self.gold.unsqueeze(1)).sum(dim=2)
        return -distance.double() / self.tau - self.log_z.unsqueeze(1)


@dataclass(frozen=True)
class EditProposal:
    """Insertions, deletions and substitutions: q(y) = Σ over ways of editing y* into y of exp(−edits / τ) / Z.

    Each token is kept, deleted, or replaced by another of V_sub, and before each, and behind the last, up to J tokens of
    V_sub are inserted. The ways factorise, with e = e^(−1/τ) and m other tokens in V_sub of M: a token weighs 1 if it is kept,
    e if it is deleted and e with each other token in its place, a gap e^j with any j tokens in it. So draws are exact, and

        Z = Π_t (1 + e + m_t e) · (Σ_{j ≤ J} (M e)^j)^(T+1)

    Many ways lead to one output; q sums over all of them (a forward pass over pairs of positions, as Ristad & Yianilos 1998
    do it). Every output over V_sub of at most T + J (T + 1) tokens has some way, and unless more than J insertions have to
    stand side by side, one of as many edits as its edit distance: q is then never less than exp(−distance / τ) / Z, so
    weights of an edit reward at the same τ are bounded (but for outputs with gold tokens that V_sub has not).
    """

    gold: Tensor  # [B,T], ``END`` behind the end
    changing: Tensor  # [B,T] bool: a beginning of each row
    pool: Pool
    tau: float
    most: int = INSERTIONS  # J

    @cached_property
    def log_odds(self) -> Tensor:
        """log of the odds that a token changes [B,T]; −inf behind the end."""
        odds = (1 + self.pool.others(self.gold)).double().log() - 1 / self.tau
        return odds.masked_fill(~self.changing, -torch.inf)

    def check(self) -> None:
        """Complain of rows that it can't serve."""
        if bool((~self.changing[:, :-1] & (self.gold[:, 1:] != END)).any()):
            raise InputError(
                "edit proposals need outputs with no end symbol, no other special token and no gap but at their ends"
            )

    @cached_property
    def log_gaps(self) -> Tensor:
        """log of what all ways together weigh to put j = 0 … J tokens into a gap: [B,J+1], or [1,J+1] if all are alike."""
        j = torch.arange(self.most + 1, dtype=torch.float64, device=self.gold.device)
        return torch.where(j > 0, j * (self.pool.sizes.double().log() - 1 / self.tau), 0.0)

    @cached_property
    def gaps(self) -> Tensor:
        """[B,T+1] bool: before each token, and behind the last."""
        return torch.cat([(self.gold != END).any(dim=1, keepdim=True), self.changing], dim=1)

    @property
    def log_z(self) -> Tensor:
        """[B]."""
        return F.softplus(self.log_odds).sum(dim=1) + self.gaps.sum(dim=1) * self.log_gaps.logsumexp(dim=1)

    def draw(self, keys: Tensor) -> Tensor:
        """[B,L] keys -> [B,L,W] outputs."""
        size = self.gold.shape[1]
        coins, picks = (_uniforms(keys, stream, size) for stream in (COINS, PICKS))
        count = self.pool.others(self.gold).unsqueeze(1)
        place = picks * (1 + count)  # of 1 + m choices the first is to delete the token
        changed = coins < self.log_odds.sigmoid().unsqueeze(1)
        other = self.pool.other(self.gold, ((place - 1) / count.clamp(min=1)).clamp(min=0.0))
        tokens = torch.where(changed, other, self.gold.unsqueeze(1))
        kept = self.changing.unsqueeze(1) & ~(changed & (place < 1))
        inserted, filled = self.inserted(keys)
        # what goes before a token, then the token, and so on; what goes behind the last, and the end symbol
        end = self.gold.masked_fill(self.changing, END).amax(dim=1)[:, None, None].expand(*keys.shape, 1)
        every = torch.cat([inserted, F.pad(tokens, (0, 1)).unsqueeze(3)], dim=3).flatten(2)
        there = torch.cat([filled, F.pad(kept, (0, 1)).unsqueeze(3)], dim=3).flatten(2)
        return _packed(torch.cat([every, end], dim=2), torch.cat([there, end != END], dim=2))

    def inserted(self, keys: Tensor) -> tuple[Tensor, Tensor]:
        """What may be put into the gaps, and whether it is: [B,L,T+1,J] each."""
        width = self.gold.shape[1] + 1
        above = self.log_gaps.softmax(dim=1).cumsum(dim=1)[:, None, None, :-1]  # j is more than 0, 1, …, J − 1
        filled = _uniforms(keys, GAPS, width).unsqueeze(3) >= above
        picks = _uniforms(keys, INSERTS, width * self.most).unflatten(2, (width, self.most))
        tokens = self.pool.take((picks * self.pool.sizes[:, :, None, None]).long())
        return tokens, filled & self.gaps[:, None, :, None]

    def log_prob(self, outputs: Tensor) -> Tensor:
        """log q [B,L] of outputs [B,L,W]."""
        e, gold = -1 / self.tau, self.gold.masked_fill(~self.changing, END)
        ended = (self.gold != gold).any(dim=1, keepdim=True)  # with an end symbol
        lengths = (outputs != END).sum(dim=2) - ended.long()  # [B,L]
        nothing = torch.full(outputs.shape, -torch.inf, dtype=torch.float64, device=outputs.device)
        put = nothing.masked_fill(self.pool.find(outputs)[1], e)  # of a token that is put in: [B,L,W]
        logs = F.pad(nothing, (1, 0))  # of having made so many tokens: [B,L,W+1]
        for t in range(gold.shape[1] + 1):
            gap = logs
            for _ in range(self.most):
                gap = torch.logaddexp(logs, _shifted(gap, put))
            logs = torch.where(self.gaps[:, t, None, None], gap, logs)
            if t < gold.shape[1]:
                made = torch.where(outputs == gold[:, t, None, None], 0.0, put)
                token = torch.logaddexp(logs + e, _shifted(logs, made))
                logs = torch.where(self.changing[:, t, None, None], token, logs)
        return logs.gather(2, lengths.unsqueeze(2)).squeeze(2) - self.log_z.unsqueeze(1)


def _shifted(logs: Tensor, emitted: Tensor) -> Tensor:
    """One token further: entry j of the result is entry j − 1 of ``logs`` times what token j − 1 has."""
    return F.pad((logs[..., :-1] + emitted), (1, 0), value=-torch.inf)


def _uniforms(keys: Tensor, stream: int, count: int) -> Tensor:
    """[B,L] keys -> [B,L,count] numbers of one of their streams."""
    t = torch.arange(count, device=keys.device)
    return random_streams.uniform(random_streams.branch(keys, stream).unsqueeze(2), t)


def _packed(tokens: Tensor, there: Tensor) -> Tensor:
    """The tokens that are ``there``, without the gaps between them, ``END`` behind.

    >>> _packed(torch.tensor([[[4, 5, 6]]]), torch.tensor([[[True, False, True]]]))
    tensor([[[4, 6]]])
    """
    place = there.long().cumsum(dim=2) - 1
    width = max(1, int(place.max()) + 1)
    found = tokens.new_full((*tokens.shape[:2], width + 1), END)
    found.scatter_(2, torch.where(there, place, width), tokens)
    return found[..., :width]
