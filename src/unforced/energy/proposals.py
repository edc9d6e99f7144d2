"""What a sampler proposes: which positions, in which order, and which tokens for them (Goyal 2021, section 6.4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from unforced import streams
from unforced.energy.energies import ROWS
from unforced.errors import InputError, check_choice
from unforced.masking import widened

Order = Literal["random", "left_to_right"]


@dataclass(frozen=True, kw_only=True)
class Proposals:
    """Mask a block of positions I and draw new tokens from q(y'; y) = Π_{i∈I} p(y'_i | y\\I), one block after another.

    p is the model's softmax at ``temperature``, among the tokens that are allowed; with ``nucleus`` b only among the fewest
    most probable ones that have at least b of it together. A sweep visits every variable once: in order, or in a random
    order of its own. The last block of a sweep takes what is left.

    >>> moves = Proposals(block=5, shrink=4)
    >>> [moves.block_size(sweep) for sweep in range(6)]
    [5, 4, 3, 2, 1, 1]
    """

    block: int = 1  # positions that are masked together
    shrink: int | None = None  # sweeps in which the block size falls to one, linearly; never if none
    temperature: float = 1.0  # of the proposals
    nucleus: float | None = None  # draw only from the tokens that have so much probability together
    order: Order = "random"  # in which a sweep visits positions
    rows: int = ROWS  # masked copies that the model is given at once

    def __post_init__(self) -> None:
        check_choice("order", self.order, Order)
        for name in ("block", "rows", "shrink"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{name} must be at least 1, not {value}")
        if not 0 < self.temperature < float("inf"):
            raise InputError(f"temperature must be positive, not {self.temperature}")
        if self.nucleus is not None and not 0 < self.nucleus <= 1:
            raise InputError(f"nucleus must lie in (0, 1], not {self.nucleus}")

    def block_size(self, sweep: int) -> int:
        """How many positions are masked together in sweep 0, 1, …"""
        if self.shrink is None:
            return self.block
        passed = min(sweep, self.shrink)
        return self.block - ((self.block - 1) * passed + self.shrink // 2) // self.shrink

    def visits(self, free: Tensor, keys: Tensor) -> Tensor:
        """[R,T] bool variables, [R] keys -> [R,T] positions in the order of the visits, those of variables first."""
        if self.order == "left_to_right":
            rank = torch.arange(free.shape[1], device=free.device).double().expand(free.shape)
        else:
            columns = torch.arange(free.shape[1], device=free.device)
            rank = streams.uniform(keys.unsqueeze(1), columns)
        return rank.masked_fill(~free, torch.inf).argsort(dim=1, stable=True)

    def log_probs(self, scores: Tensor, kept: Tensor) -> Tensor:
        """The log-probabilities of proposals: scores [...,V] and the tokens that are allowed [V] -> [...,V], else −inf."""
        scores = widened(scores).masked_fill(~kept, -torch.inf)
        temperature = max(self.temperature, torch.finfo(scores.dtype).tiny)
        scaled = (scores - scores.amax(dim=-1, keepdim=True)) / temperature  # at most 0: can't overflow
        log_probs = scaled.log_softmax(dim=-1)
        if self.nucleus is None or self.nucleus == 1:
            return log_probs
        ordered, order = log_probs.sort(dim=-1, descending=True, stable=True)
        weights = ordered.exp()
        outside = (
            weights.cumsum(dim=-1) - weights >= self.nucleus
        )  # what the more probable ones have is enough
        outside = torch.zeros_like(outside).scatter(-1, order, outside)
        return log_probs.masked_fill(outside, -torch.inf).log_softmax(dim=-1)
