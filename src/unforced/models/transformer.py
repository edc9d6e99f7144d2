"""Transformers with functional key/value state: encoder-decoder (Vaswani et al. 2017, pre-norm) and decoder-only."""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.models.layers import (
    Convolution,
    ConvolutionalEncoder,
    TargetTokens,
    class_vectors,
    embedding_matrix,
    source_tokens,
)
from unforced.ops.kernels import dropout
from unforced.ops.masks import gather_positions
from unforced.options import Count, Fraction, Natural, Options
from unforced.types import Batch, DecoderState, Sizes

# Options


@dataclass(frozen=True)
class TransformerOptions(Options):
    """Base: the shape of the blocks."""

    width: Count = 256  # width of embeddings and hidden states
    heads: Count = 4  # attention heads
    feedforward: Count = 1024  # hidden units of the feed-forward part
    dropout: Fraction = 0.1  # share of units dropped in training
    tie: bool = True  # share the target embedding with the output projection

    def check(self) -> None:
        if self.width % self.heads:
            raise InputError(f"width must be a multiple of heads, got {self.width} for {self.heads} heads")

    @property
    def shape(self) -> tuple[int, int, int, float]:
        """The arguments that all blocks take."""
        return self.width, self.heads, self.feedforward, self.dropout


@dataclass(frozen=True)
class EncoderDecoderOptions(TransformerOptions):
    """Base: the blocks of an encoder and of a decoder."""

    encoder_layers: Natural = 3  # blocks of the encoder
    decoder_layers: Count = 3  # blocks of the decoder
    share_source: bool = False  # one embedding for source and target; needs one vocabulary

    def check_vocabularies(self, sizes: Sizes) -> None:
        """Raise `InputError` if source and target share an embedding but not a vocabulary."""
        if self.share_source and sizes.source != sizes.target:
            raise InputError(
                "share_source needs one vocabulary for both sides, but the source has "
                f"{sizes.source or 'no'} tokens and the target {sizes.target}"
            )


# Blocks


class Cache(NamedTuple):
    """Keys and values [R,heads,T,d] of the positions that a layer has read; never changed in place."""

    keys: Tensor
    values: Tensor


def linear(inputs: int, outputs: int, blocks: int = 1) -> nn.Linear:
    """Return a bias-free linear layer of ``blocks`` stacked matrices, each with Xavier's uniform initialisation."""
    layer = nn.Linear(inputs, outputs * blocks, bias=False)
    for block in layer.weight.data.chunk(blocks):
        nn.init.xavier_uniform_(block)
    return layer


def split_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """Split [R,T,parts·heads·d] into ``parts`` tensors [R,heads,T,d], without a copy."""
    split: tuple[Tensor, ...] = x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
    return split


def merge_heads(x: Tensor) -> Tensor:
    """Merge [R,heads,T,d] into [R,T,heads·d]."""
    return x.transpose(1, 2).flatten(2)


class CrossAttention(nn.Module):
    """Attention of a decoder block to a memory, whose keys and values [R,heads,S,d] are computed once elsewhere."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = linear(width, width)
        self.out = linear(width, width)

    def forward(self, x: Tensor, memory: Cache, mask: Tensor | None, where: Tensor | None = None) -> Tensor:
        """Map [R,T,width] to [R,T,width], or with ``where`` [R,T] the [N,width] of its N positions to [N,width]."""
        q = self.query(self.norm(x))
        if where is not None:
            q = q.new_zeros(*where.shape, q.shape[-1]).masked_scatter_(where.unsqueeze(-1), q)
        (q,) = split_heads(q, 1, self.heads)
        attended = merge_heads(F.scaled_dot_product_attention(q, memory.keys, memory.values, attn_mask=mask))
        out: Tensor = self.out(attended if where is None else attended[where])
        return out


class Block(nn.Module):
    """x += self-attention(norm x); x += cross-attention(norm x) if there is a memory; x += feed-forward(norm x)."""

    def __init__(self, width: int, heads: int, feedforward: int, rate: float, cross: bool = False) -> None:
        super().__init__()
        self.heads, self.rate = heads, rate
        self.self_norm = nn.LayerNorm(width)
        self.qkv = linear(width, width, blocks=3)
        self.self_out = linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = linear(width, feedforward)
        self.feed_out = linear(feedforward, width)
        self.cross = CrossAttention(width, heads) if cross else None

    def _rest(
        self, x: Tensor, attended: Tensor, memory: Cache | None, mask: Tensor | None, where: Tensor | None = None
    ) -> Tensor:
        """Run what follows self-attention, whose output is ``attended`` [R,heads,T,d]; with ``where`` only there."""
        attended = merge_heads(attended)
        if where is not None:
            x, attended = x[where], attended[where]
        x = self._add(x, self.self_out(attended))
        if self.cross is not None and memory is not None:
            x = self._add(x, self.cross(x, memory, mask, where))
        return self._add(x, self.feed_out(F.relu(self.feed_in(self.feed_norm(x)), inplace=True)))

    def _add(self, x: Tensor, change: Tensor) -> Tensor:
        return x + dropout(change, self.rate, self.training)


class EncoderBlock(Block):
    """A block without causal mask: each position attends to every position where ``mask`` [R,1,1,T] is true."""

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Cache | None = None,
        memory_mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Map [R,T,width] to [R,T,width], or to [R,P,width] at ``positions`` [R,P], which see all others."""
        normed, width = self.self_norm(x), x.shape[-1]
        if positions is None:
            q, k, v = split_heads(self.qkv(normed), 3, self.heads)
        else:
            k, v = split_heads(F.linear(normed, self.qkv.weight[width:]), 2, self.heads)
            (q,) = split_heads(F.linear(gather_positions(normed, positions), self.qkv.weight[:width]), 1, self.heads)
            x = gather_positions(x, positions)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # [R,heads,T,d]
        return self._rest(x, attended, memory, memory_mask)


class DecoderBlock(Block):
    """A block in which every position sees itself and those before it."""

    def forward(
        self,
        x: Tensor,
        past: Cache | None,
        mask: Tensor | None,
        memory: Cache | None = None,
        memory_mask: Tensor | None = None,
        where: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """Read [R,T,width] after the ``past`` positions; return [R,T,width] and the extended cache.

        ``mask`` [T,P+T] marks the positions that each position sees. Without a mask attention is causal if there is no
        past, and complete for a single step after a past. With ``where`` [R,T] the output is [N,width].
        """
        q, k, v = split_heads(self.qkv(self.self_norm(x)), 3, self.heads)
        if past is not None:
            k, v = torch.cat([past.keys, k], dim=2), torch.cat([past.values, v], dim=2)
        causal = past is None and x.shape[1] > 1
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self._rest(x, attended, memory, memory_mask, where), Cache(k, v)


class DecoderBlocks(nn.Module):
    """A stack of decoder blocks and a final norm; the state is a tuple of caches, or None before the first input."""

    def __init__(self, layers: int, width: int, heads: int, feedforward: int, rate: float, cross: bool) -> None:
        super().__init__()
        self.rate = rate
        self.blocks = nn.ModuleList(DecoderBlock(width, heads, feedforward, rate, cross) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(
        self,
        x: Tensor,
        past: tuple[Cache, ...] | None,
        memories: tuple[Cache, ...] | None = None,
        memory_mask: Tensor | None = None,
        where: Tensor | None = None,
    ) -> tuple[Tensor, tuple[Cache, ...]]:
        """Map [R,T,width] to [R,T,width], or to [N,width] at the N positions of ``where`` [R,T].

        With ``where`` the last block computes no other positions.
        """
        first, count = 0 if past is None else past[0].keys.shape[2], x.shape[1]
        x = dropout(x + sinusoids(first, count, x), self.rate, self.training)
        mask = None
        if past is not None and count > 1:
            mask = torch.ones(count, first + count, dtype=torch.bool, device=x.device).tril(first)
        present = []
        for number, block in enumerate(self.blocks):
            x, cache = block(
                x,
                None if past is None else past[number],
                mask,
                None if memories is None else memories[number],
                memory_mask,
                where if number == len(self.blocks) - 1 else None,
            )
            present.append(cache)
        return self.norm(x), tuple(present)


def sinusoids(first: int, count: int, like: Tensor) -> Tensor:
    """Return positions ``first`` … ``first + count − 1`` as [count,width] sines and cosines (Vaswani et al. 2017, 3.5).

    Half of the features are sin(t / 10000^(2i/width)), half the cosines. There is no largest position.

    >>> sinusoids(0, 1, torch.zeros(1, 4))
    tensor([[0., 0., 1., 1.]])
    """
    size = max(256, 1 << (first + count - 1).bit_length())
    return _sinusoid_table(size, like.shape[-1], like.dtype, like.device)[first : first + count]


@lru_cache(maxsize=16)
def _sinusoid_table(size: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        half = (width + 1) // 2
        rates = torch.exp(torch.arange(half, dtype=torch.float64) * (-2 * math.log(10000) / width))
        angles = torch.arange(size, dtype=torch.float64).unsqueeze(1) * rates
        return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width].to(device=device, dtype=dtype)


# Networks


class TransformerShared(NamedTuple):
    """What all hypotheses of an example share."""

    memories: tuple[Cache, ...] | None = None  # cross-attention keys and values of each layer, [R,heads,S,d]
    mask: Tensor | None = None  # [R,1,1,S] bool, or None if nothing is padded
    class_vector: Tensor | None = None  # [R,width], added to every input


class TransformerDecoder(TargetTokens):
    """The decoder of both networks; its state carries each layer's keys and values."""

    decoder: DecoderBlocks

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        features, carry = self._decode(state, inputs)
        return features, DecoderState(carry, state.shared)

    def advance_at(self, state: DecoderState, inputs: Tensor, where: Tensor) -> Tensor:
        return self._decode(state, inputs, where)[0]

    def _decode(
        self, state: DecoderState, inputs: Tensor, where: Tensor | None = None
    ) -> tuple[Tensor, tuple[Cache, ...]]:
        memories, mask, class_vector = state.shared
        if class_vector is not None:
            inputs = inputs + class_vector.unsqueeze(1)
        found: tuple[Tensor, tuple[Cache, ...]] = self.decoder(inputs, state.carry, memories, mask, where)
        return found


@dataclass(frozen=True)
class Transformer(EncoderDecoderOptions):
    """A Transformer over token ids or over the cells of a convolutional encoder (images).

    Blocks are pre-norm and bias-free, with ReLU, dropout on each residual branch and sinusoidal positions.
    """

    convolution: Convolution = field(default_factory=Convolution)  # encoder of images

    def build(self, sizes: Sizes) -> "TransformerModel":
        if sizes.source is None and sizes.image is None:
            raise InputError("the Transformer reads token ids or images, and this data has neither: use causal")
        self.check_vocabularies(sizes)
        return TransformerModel(self, sizes)


class TransformerModel(TransformerDecoder):
    """The network of `Transformer`."""

    def __init__(self, spec: Transformer, sizes: Sizes) -> None:
        super().__init__(sizes.target, spec.width, tie=spec.tie)
        self.spec = spec
        self.source: ConvolutionalEncoder | None = None
        self.source_embedding: nn.Parameter | None = None
        if sizes.image is not None:
            self.source = ConvolutionalEncoder(sizes.image, spec.convolution, spec.width, spec.dropout)
        elif sizes.source is not None and not spec.share_source:
            self.source_embedding = embedding_matrix(sizes.source, spec.width)
        self.encoder = nn.ModuleList(EncoderBlock(*spec.shape) for _ in range(spec.encoder_layers))
        self.encoder_norm = nn.LayerNorm(spec.width)
        self.cross = linear(spec.width, spec.width, blocks=2 * spec.decoder_layers)  # keys and values of all layers
        self.decoder = DecoderBlocks(spec.decoder_layers, *spec.shape, cross=True)

    def start(self, batch: Batch) -> DecoderState:
        x, mask = self._sources(batch)
        mask = None if mask is None else mask[:, None, None]  # [B,1,1,S]
        for block in self.encoder:
            x = block(x, mask)
        parts = split_heads(self.cross(self.encoder_norm(x)), 2 * self.spec.decoder_layers, self.spec.heads)
        memories = tuple(Cache(k, v) for k, v in zip(parts[::2], parts[1::2]))
        return DecoderState(None, TransformerShared(memories, mask))

    def _sources(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        if self.source is not None:
            memory = self.source(batch)
            return memory.states, memory.mask
        ids, mask = source_tokens(batch)
        table = self.embedding if self.source_embedding is None else self.source_embedding
        x = F.embedding(ids, table) * self.scale
        return dropout(x + sinusoids(0, x.shape[1], x), self.spec.dropout, self.training), mask


@dataclass(frozen=True)
class Causal(TransformerOptions):
    """A decoder-only Transformer over tokens or pixels, with the blocks of `Transformer`.

    If the data has classes, an embedding of the class is added to every input.
    """

    layers: Count = 4  # number of blocks

    def build(self, sizes: Sizes) -> "CausalModel":
        if sizes.source is not None or sizes.image is not None:
            kind = "token ids" if sizes.source is not None else "images"
            raise InputError(
                f"the causal model has no encoder, but this data has sources of {kind}: use lstm or transformer"
            )
        return CausalModel(self, sizes)


class CausalModel(TransformerDecoder):
    """The network of `Causal`."""

    def __init__(self, spec: Causal, sizes: Sizes) -> None:
        super().__init__(sizes.target, spec.width, tie=spec.tie)
        self.spec = spec
        self.classes = None if sizes.classes is None else nn.Embedding(sizes.classes, spec.width)
        self.decoder = DecoderBlocks(spec.layers, *spec.shape, cross=False)

    def start(self, batch: Batch) -> DecoderState:
        return DecoderState(None, TransformerShared(class_vector=class_vectors(self.classes, batch)))
