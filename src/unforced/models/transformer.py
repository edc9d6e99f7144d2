"""Transformer encoder-decoder (Vaswani et al. 2017), pre-norm, with functional key/value state."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.models._blocks import (
    Cache,
    DecoderBlocks,
    EncoderBlock,
    check_shape,
    linear,
    sinusoids,
    split_heads,
)
from unforced.models._dropout import dropout
from unforced.models._sources import source_tokens
from unforced.models._tokens import TargetTokens
from unforced.models.convolution import Convolution, ConvolutionalEncoder
from unforced.types import Batch, DecoderState, Sizes


@dataclass(frozen=True)
class Transformer:
    """Encoder blocks over token ids or the cells of a convolutional encoder (images), and decoder blocks over those.

    Blocks are pre-norm and bias-free, with ReLU, dropout on what each adds to its residual stream, and sinusoidal
    positions. ``tie`` shares the target embedding with the output; ``share_source`` has one embedding for both
    sides and needs one vocabulary for both; ``convolution`` matters for images.

    >>> model = Transformer(width=8, heads=2, feedforward=16).build(Sizes(target=10, source=12))
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
    convolution: Convolution = field(default_factory=Convolution)

    def __post_init__(self) -> None:
        check_shape(
            self.width, self.heads, self.feedforward, self.dropout, encoder_layers=self.encoder_layers
        )
        if self.decoder_layers < 1:
            raise InputError(f"decoder_layers must be at least 1, not {self.decoder_layers}")

    def build(self, sizes: Sizes) -> TransformerModel:
        if sizes.source is None and sizes.image is None:
            raise InputError(
                "the Transformer reads token ids or images, and this data has neither: use causal"
            )
        if self.share_source and sizes.source != sizes.target:
            raise InputError(
                "share_source needs one vocabulary for both sides, but the source has "
                f"{sizes.source or 'no'} tokens and the target {sizes.target}"
            )
        return TransformerModel(self, sizes)


class _Shared(NamedTuple):
    memories: tuple[Cache, ...]  # cross-attention keys and values of each layer, [R,heads,S,d]
    mask: Tensor | None  # [R,1,1,S] bool, or None where nothing is padded


class TransformerModel(TargetTokens):
    """The network of a ``Transformer`` specification; its state carries each layer's keys and values."""

    def __init__(self, spec: Transformer, sizes: Sizes) -> None:
        super().__init__(sizes.target, spec.width, tie=spec.tie)
        self.spec = spec
        shape = (spec.width, spec.heads, spec.feedforward, spec.dropout)
        self.source: ConvolutionalEncoder | None = None
        self.source_embedding: nn.Parameter | None = None
        if sizes.image is not None:
            self.source = ConvolutionalEncoder(sizes.image, spec.convolution, spec.width, spec.dropout)
        elif sizes.source is not None and not spec.share_source:
            self.source_embedding = nn.Parameter(
                torch.randn(sizes.source, spec.width) / math.sqrt(spec.width)
            )
        self.encoder = nn.ModuleList(EncoderBlock(*shape) for _ in range(spec.encoder_layers))
        self.encoder_norm = nn.LayerNorm(spec.width)
        self.cross = linear(
            spec.width, spec.width, blocks=2 * spec.decoder_layers
        )  # all layers' keys and values
        self.decoder = DecoderBlocks(spec.decoder_layers, *shape, cross=True)

    def start(self, batch: Batch) -> DecoderState:
        x, mask = self._sources(batch)
        mask = None if mask is None else mask[:, None, None]  # [B,1,1,S]
        for block in self.encoder:
            x = block(x, mask)
        parts = split_heads(self.cross(self.encoder_norm(x)), 2 * self.spec.decoder_layers, self.spec.heads)
        memories = tuple(Cache(k, v) for k, v in zip(parts[::2], parts[1::2]))
        return DecoderState(None, _Shared(memories, mask))

    def _sources(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        if self.source is not None:
            memory = self.source(batch)
            return memory.states, memory.mask
        ids, mask = source_tokens(batch)
        table = self.embedding if self.source_embedding is None else self.source_embedding
        x = F.embedding(ids, table) * self.scale
        return dropout(x + sinusoids(0, x.shape[1], x), self.spec.dropout, self.training), mask

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        shared: _Shared = state.shared
        features, carry = self.decoder(inputs, state.carry, shared.memories, shared.mask)
        return features, DecoderState(carry, shared)

    def advance_at(self, state: DecoderState, inputs: Tensor, where: Tensor) -> Tensor:
        shared: _Shared = state.shared
        return self.decoder(inputs, state.carry, shared.memories, shared.mask, where)[0]
