"""Conditional masked language model: source → target with hidden target tokens, and a guess of the target's length."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.models._blocks import Cache, check_shape, linear, split_heads
from unforced.models._masked import MaskedTokens, MutualBlocks, rows_of
from unforced.models._sources import source_tokens
from unforced.types import Batch, Sizes


@dataclass(frozen=True)
class ConditionalMasked:
    """An encoder over the source, and blocks over the target of which some tokens are hidden (Ghazvininejad et al. 2019).

    Blocks are those of ``Transformer``, but target positions see those on both sides. A target has as many tokens as its
    length says, up to ``longest``; its probability is the softmax of

        score(T) = a_T · s + d_(T − S) · s

    with s the mean of the encoder's states and S the number of source tokens. ``tie`` shares the target embedding with the
    output; ``share_source`` has one embedding for both sides and needs one vocabulary for both.

    >>> model = ConditionalMasked(width=8, heads=2, feedforward=16).build(Sizes(target=10, source=12))
    >>> model.score(torch.zeros(1, 8)).shape
    torch.Size([1, 10])
    """

    width: int = 256
    heads: int = 4
    encoder_layers: int = 3
    decoder_layers: int = 3
    feedforward: int = 1024
    dropout: float = 0.1
    tie: bool = True
    share_source: bool = False
    longest: int = 200  # most tokens of a target, the end symbol not counted

    def __post_init__(self) -> None:
        check_shape(
            self.width, self.heads, self.feedforward, self.dropout, encoder_layers=self.encoder_layers
        )
        for name in ("decoder_layers", "longest"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")

    def build(self, sizes: Sizes) -> ConditionalMaskedModel:
        if sizes.source is None:
            raise InputError(
                "conditional_masked reads sources of token ids, and this data has none: use masked or field"
            )
        if self.share_source and sizes.source != sizes.target:
            raise InputError(
                f"share_source needs one vocabulary for both sides, not {sizes.source} and {sizes.target} tokens"
            )
        return ConditionalMaskedModel(self, sizes)


class _Read(NamedTuple):
    """What is made of the sources, once for all rows."""

    states: Tensor  # [B,S,width]
    memories: tuple[Cache, ...]  # keys and values of each decoder layer, [B,heads,S,d]
    mask: Tensor | None  # [B,S] bool


class ConditionalMaskedModel(MaskedTokens):
    """The network of a ``ConditionalMasked`` specification."""

    def __init__(self, spec: ConditionalMasked, sizes: Sizes) -> None:
        super().__init__(sizes.target, spec.width, tie=spec.tie)
        self.spec = spec
        shape = (spec.width, spec.heads, spec.feedforward, spec.dropout)
        self.source_embedding: nn.Parameter | None = None
        if not spec.share_source:
            self.source_embedding = nn.Parameter(
                torch.randn(sizes.source or 0, spec.width) / math.sqrt(spec.width)
            )
        self.encoder = MutualBlocks(spec.encoder_layers, *shape)
        self.cross = linear(spec.width, spec.width, blocks=2 * spec.decoder_layers)
        self.decoder = MutualBlocks(spec.decoder_layers, *shape, cross=True)
        self.by_length = nn.Linear(spec.width, spec.longest, bias=False)  # a
        self.by_difference = nn.Linear(spec.width, 2 * spec.longest, bias=False)  # d

    def encoded(self, batch: Batch) -> Batch:
        """The batch with the encoder's states in the place of its sources: [B,S,·] for ``scores`` to read many times."""
        if _is_encoded(batch):
            return batch
        ids, mask = source_tokens(batch)
        table = self.embedding if self.source_embedding is None else self.source_embedding
        states = self.encoder(F.embedding(ids, table) * self.scale, mask)
        both = torch.cat([states, self.cross(states)], dim=-1)
        return replace(batch, source=both, source_mask=mask)

    def _read(self, batch: Batch) -> _Read:
        batch = self.encoded(batch)
        assert batch.source is not None
        states, keys_values = batch.source.tensor_split([self.spec.width], dim=-1)
        parts = split_heads(keys_values, 2 * self.spec.decoder_layers, self.spec.heads)
        return _Read(states, tuple(map(Cache, parts[::2], parts[1::2])), batch.source_mask)

    def features(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        return self.features_at(batch, tokens, masked, None)

    def features_at(self, batch: Batch, tokens: Tensor, masked: Tensor, positions: Tensor | None) -> Tensor:
        """The features at positions [R,P] alone, [R,P,H]; at all of them if None."""
        rows, read = rows_of(batch, tokens, masked), self._read(batch)
        memories, mask = read.memories, None if read.mask is None else read.mask[:, None, None]
        if rows.copies > 1:
            memories = tuple(
                Cache(*(part.repeat_interleave(rows.copies, dim=0) for part in memory)) for memory in memories
            )
            mask = None if mask is None else mask.repeat_interleave(rows.copies, dim=0)
        return self.decoder(self.inputs(rows), rows.there, memories, mask, positions)

    def length_scores(self, batch: Batch) -> Tensor:
        """[B,longest]: the score of each length 1, 2, … of the target, the end symbol not counted."""
        read = self._read(batch)
        b, s = read.states.shape[:2]
        there = read.states.new_ones(b, s) if read.mask is None else read.mask.to(read.states.dtype)
        sizes = there.sum(dim=1, keepdim=True)
        mean = (read.states * there.unsqueeze(-1)).sum(dim=1) / sizes.clamp(min=1)
        longest = self.spec.longest
        lengths = torch.arange(1, longest + 1, device=mean.device)
        apart = lengths - sizes.long().clamp(max=longest) + longest  # [B,longest], in 1 … 2·longest
        return self.by_length(mean) + self.by_difference(mean).gather(1, apart - 1)


def _is_encoded(batch: Batch) -> bool:
    return batch.source is not None and batch.source.is_floating_point() and batch.source.dim() == 3
