"""What an output may be: how long, and of which tokens.

Every decoder has these two fields. ``min_length`` is the least number of tokens before the end symbol. ``max_length`` is
the largest number of tokens, the end symbol counted among them: the search takes at most that many steps, and an
output that has not ended by then is returned as it stands, without an end symbol. (So the probabilities of all
outputs add up to one.) They are ``min_new_tokens`` and ``max_new_tokens`` of Hugging Face's ``generate``.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from unforced.errors import InputError
from unforced.masking import widened
from unforced.types import Batch, Symbols

UNKNOWN_LENGTH = 256  # the limit where neither the task nor a source of tokens suggests one


def check_lengths(min_length: int, max_length: int | None) -> None:
    """Raise ``InputError`` where a decoder's length fields make no sense."""
    if min_length < 0:
        raise InputError(f"min_length must not be negative, not {min_length}")
    if max_length is not None and max_length < max(min_length, 1):
        raise InputError(f"max_length must be at least {max(min_length, 1)}, not {max_length}")


def limits(batch: Batch, min_length: int = 0, max_length: int | None = None) -> Tensor:
    """The number of steps [B] that each example may take; an example's limit never depends on its batch mates.

    Where outputs have no end symbol, exactly ``batch.length``. Else ``max_length``, and where that is None:
    ``batch.length`` if the task gives it, 2 S + 10 for a source of S tokens, or 256 (more if ``min_length`` asks it).

    >>> gold = torch.tensor([[3, 2], [4, 2]])
    >>> source = torch.tensor([[5, 6, 7], [8, 0, 0]])
    >>> symbols = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
    >>> limits(Batch.of_gold(gold, gold > 0, symbols, source=source, source_mask=source > 0))
    tensor([16, 12])
    """
    if batch.symbols.eos is None:
        if batch.length is None:
            raise InputError("outputs without an end symbol need Batch.length, the length of each output")
        if min_length or max_length is not None:
            raise InputError("min_length and max_length mean nothing where each output's length is fixed")
        return batch.length
    zeros = torch.zeros(len(batch), dtype=torch.long, device=batch.gold.device)
    if max_length is not None:
        return zeros + max_length
    if batch.length is not None:
        default = batch.length
    elif batch.source_mask is not None:
        default = 2 * batch.source_mask.sum(dim=1) + 10
    elif batch.source is not None and batch.source.dim() == 2:
        default = zeros + 2 * batch.source.shape[1] + 10
    else:
        default = zeros + UNKNOWN_LENGTH
    return default.clamp(min=min_length + 1)


class Constraints(NamedTuple):
    """Which tokens may be emitted when: never those that are banned, EOS not before ``min_length`` tokens."""

    eos: int | None
    pad: int
    min_length: int
    banned: Tensor  # [·] long
    banned_early: Tensor  # [·] long, EOS among them
    kind: Literal["local", "global"] = "local"

    @classmethod
    def of(cls, batch: Batch, min_length: int = 0, kind: Literal["local", "global"] = "local") -> Constraints:
        symbols: Symbols = batch.symbols
        banned = sorted(set(symbols.banned) - {symbols.eos})
        early = banned if symbols.eos is None else [*banned, symbols.eos]
        never, not_yet = (
            torch.tensor(ids, dtype=torch.long, device=batch.gold.device) for ids in (banned, early)
        )
        return cls(symbols.eos, symbols.pad, min_length, never, not_yet, kind)

    def token_scores(self, t: int, scores: Tensor) -> Tensor:
        """The model's scores [...,V] at step t -> what tokens add to a hypothesis, in a new tensor [...,V].

        That is their log-softmax (``local``) or the scores themselves (``global``), with −inf for tokens that may not
        be emitted. What is banned keeps its share of the probability: a ban excludes, it does not renormalise.
        """
        scores = widened(scores)
        banned = self.banned_at(t)
        if self.kind == "global":
            check_finite(scores, t)
            return scores.index_fill(-1, banned, -torch.inf)
        log_probs = scores.log_softmax(dim=-1)
        if (
            log_probs[..., 0].isnan().any()
        ):  # so is the whole row: all scores are −inf, or the model is broken
            check_finite(scores, t)
            log_probs.masked_fill_(log_probs.isnan(), -torch.inf)
        return log_probs.index_fill_(-1, banned, -torch.inf)

    def banned_at(self, t: int) -> Tensor:
        """The ids that may not be emitted at step t."""
        return self.banned if t >= self.min_length else self.banned_early

    def is_end(self, tokens: Tensor) -> Tensor:
        return torch.zeros_like(tokens, dtype=torch.bool) if self.eos is None else tokens == self.eos


def check_finite(scores: Tensor, t: int) -> None:
    """Raise ``InputError`` where a score is NaN or +inf (−inf is a token that can't come)."""
    if not bool((scores < torch.inf).all()):
        raise InputError(f"the model gave NaN or infinite scores at step {t}")
