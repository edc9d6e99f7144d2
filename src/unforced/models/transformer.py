"""Pre-norm Transformer blocks with functional key/value state, shared by the encoder-decoder and the causal model."""

import math
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.models.layers import Convolution, ConvolutionalEncoder, TargetTokens, class_vectors, source_tokens
from unforced.ops.kernels import dropout
from unforced.options import Count, Fraction, Natural, Options
from unforced.types import Batch, DecoderState, Sizes


class Cache(NamedTuple):
    """Keys and values of the positions a layer has read, each [R,heads,T,d]; extended by a copy, never in place."""

    keys: Tensor
    values: Tensor


def check_heads(width: int, heads: int) -> None:
    """Raise `InputError` unless the heads divide the width."""
    if width % heads:
        raise InputError(f"width must be a multiple of heads, {heads}, got {width}")


def linear(inputs: int, outputs: int, blocks: int = 1) -> nn.Linear:
    """A bias-free linear layer of ``blocks`` stacked matrices, each with Xavier's uniform initialisation."""
    layer = nn.Linear(inputs, outputs * blocks, bias=False)
    for block in layer.weight.data.chunk(blocks):
        nn.init.xavier_uniform_(block)
    return layer


def split_heads(x: Tensor, parts: int, heads: int) -> tuple[Tensor, ...]:
    """[R,T,parts·heads·d] -> ``parts`` tensors [R,heads,T,d], without a copy."""
    return x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


class Block(nn.Module):
    """The parameters that blocks of both sides have; each side's forward says how they are used."""

    def __init__(self, width: int, heads: int, feedforward: int, rate: float) -> None:
        super().__init__()
        self.heads, self.rate = heads, rate
        self.self_norm = nn.LayerNorm(width)
        self.qkv = linear(width, width, blocks=3)
        self.self_out = linear(width, width)
        self.feed_norm = nn.LayerNorm(width)
        self.feed_in = linear(width, feedforward)
        self.feed_out = linear(feedforward, width)

    def _feed(self, x: Tensor) -> Tensor:
        return self._add(x, self.feed_out(F.relu(self.feed_in(self.feed_norm(x)), inplace=True)))

    def _add(self, x: Tensor, change: Tensor) -> Tensor:
        return x + dropout(change, self.rate, self.training)


class EncoderBlock(Block):
    """x += self-attention(norm x); x += feed-forward(norm x)."""

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """[B,S,width] -> [B,S,width]; every position sees all those that ``mask`` [B,1,1,S] allows."""
        q, k, v = split_heads(self.qkv(self.self_norm(x)), 3, self.heads)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self._feed(self._add(x, self.self_out(_merge(seen))))


class CrossAttention(nn.Module):
    """What a decoder block reads from a memory; keys and values [R,heads,S,d] are made elsewhere, once."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.query = linear(width, width)
        self.out = linear(width, width)

    def forward(self, x: Tensor, memory: Cache, mask: Tensor | None, where: Tensor | None = None) -> Tensor:
        """[R,T,width] -> [R,T,width]; with ``where`` [R,T], [N,width] -> [N,width] for the N positions that it marks."""
        q = self.query(self.norm(x))
        if where is not None:
            q = q.new_zeros(*where.shape, q.shape[-1]).masked_scatter_(where.unsqueeze(-1), q)
        (q,) = split_heads(q, 1, self.heads)
        seen = _merge(F.scaled_dot_product_attention(q, memory.keys, memory.values, attn_mask=mask))
        return self.out(seen if where is None else seen[where])


class ReadingBlock(Block):
    """A block that may read from a memory between its self-attention and its feed-forward part."""

    def __init__(self, width: int, heads: int, feedforward: int, rate: float, cross: bool) -> None:
        super().__init__(width, heads, feedforward, rate)
        self.cross = CrossAttention(width, heads) if cross else None

    def _rest(
        self, x: Tensor, seen: Tensor, memory: Cache | None, mask: Tensor | None, where: Tensor | None = None
    ) -> Tensor:
        """What comes behind self-attention, which has ``seen`` [R,heads,T,d]; with ``where`` [R,T], only there: [N,width]."""
        seen = _merge(seen)
        if where is not None:
            x, seen = x[where], seen[where]
        x = self._add(x, self.self_out(seen))
        if self.cross is not None and memory is not None:
            x = self._add(x, self.cross(x, memory, mask, where))
        return self._feed(x)


class DecoderBlock(ReadingBlock):
    """x += self-attention(norm x); x += cross-attention(norm x) if there is a memory; x += feed-forward(norm x)."""

    def forward(
        self,
        x: Tensor,
        past: Cache | None,
        mask: Tensor | None,
        memory: Cache | None = None,
        memory_mask: Tensor | None = None,
        where: Tensor | None = None,
    ) -> tuple[Tensor, Cache]:
        """[R,T,width] after the ``past`` positions -> [R,T,width] and the keys and values of past and present.

        ``mask`` [T,P+T] says which of past and present each position sees; None is causal if there is no past, and
        everything if there is one (a single step). With ``where`` [R,T] the output is that of the positions it marks, [N,width].
        """
        q, k, v = split_heads(self.qkv(self.self_norm(x)), 3, self.heads)
        if past is not None:
            k, v = torch.cat([past.keys, k], dim=2), torch.cat([past.values, v], dim=2)
        causal = past is None and x.shape[1] > 1
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self._rest(x, seen, memory, memory_mask, where), Cache(k, v)


def _merge(x: Tensor) -> Tensor:
    return x.transpose(1, 2).flatten(2)  # [R,heads,T,d] -> [R,T,heads·d]


class DecoderBlocks(nn.Module):
    """A stack of decoder blocks and its last norm; the state is a tuple of caches, or None before the first input."""

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
        """[R,T,width] -> [R,T,width], or [N,width] at the positions that ``where`` [R,T] marks: the last block makes no others."""
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
    """Positions ``first`` … ``first + count − 1`` as [count, width] sines and cosines (Vaswani et al. 2017, 3.5).

    Half of the features are sin(t / 10000^(2i/width)), half the cosines; there is no longest length.

    >>> sinusoids(0, 1, torch.zeros(1, 4))
    tensor([[0., 0., 1., 1.]])
    """
    size = max(256, 1 << (first + count - 1).bit_length())
    return _table(size, like.shape[-1], like.dtype, like.device)[first : first + count]


@lru_cache(maxsize=16)
def _table(size: int, width: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():
        half = (width + 1) // 2
        rates = torch.exp(torch.arange(half, dtype=torch.float64) * (-2 * math.log(10000) / width))
        angles = torch.arange(size, dtype=torch.float64).unsqueeze(1) * rates
        return torch.cat([angles.sin(), angles.cos()], dim=1)[:, :width].to(device=device, dtype=dtype)


# Transformer encoder-decoder (Vaswani et al. 2017), pre-norm, with functional key/value state.


@dataclass(frozen=True)
class Transformer(Options):
    """Encoder blocks over token ids or the cells of a convolutional encoder (images), and decoder blocks over those.

    Blocks are pre-norm and bias-free, with ReLU, dropout on what each adds to its residual stream, and sinusoidal
    positions. ``tie`` shares the target embedding with the output; ``share_source`` has one embedding for both
    sides and needs one vocabulary for both; ``convolution`` matters for images.

    >>> model = Transformer(width=8, heads=2, feedforward=16).build(Sizes(target=10, source=12))
    >>> model.score(torch.zeros(1, 8)).shape
    torch.Size([1, 10])
    """

    width: Count = 256
    heads: Count = 4
    encoder_layers: Natural = 3
    decoder_layers: Count = 3
    feedforward: Count = 1024
    dropout: Fraction = 0.1
    tie: bool = True
    share_source: bool = False
    convolution: Convolution = field(default_factory=Convolution)

    def check(self) -> None:
        check_heads(self.width, self.heads)

    def build(self, sizes: Sizes) -> "TransformerModel":
        if sizes.source is None and sizes.image is None:
            raise InputError("the Transformer reads token ids or images, and this data has neither: use causal")
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
            self.source_embedding = nn.Parameter(torch.randn(sizes.source, spec.width) / math.sqrt(spec.width))
        self.encoder = nn.ModuleList(EncoderBlock(*shape) for _ in range(spec.encoder_layers))
        self.encoder_norm = nn.LayerNorm(spec.width)
        self.cross = linear(spec.width, spec.width, blocks=2 * spec.decoder_layers)  # all layers' keys and values
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


# Decoder-only Transformer for text and pixels, optionally conditioned on a class.


@dataclass(frozen=True)
class Causal(Options):
    """A language model over tokens or pixels; with classes, an embedding of the class is added to every input.

    Blocks are those of ``Transformer``, without a memory to attend to. Data with a source to read is refused.

    >>> import torch
    >>> model = Causal(width=8, heads=2, layers=1, feedforward=16).build(Sizes(target=10, classes=3))
    >>> model.score(torch.zeros(1, 8)).shape
    torch.Size([1, 10])
    """

    width: Count = 256
    heads: Count = 4
    layers: Count = 4
    feedforward: Count = 1024
    dropout: Fraction = 0.1
    tie: bool = True

    def check(self) -> None:
        check_heads(self.width, self.heads)

    def build(self, sizes: Sizes) -> "CausalModel":
        if sizes.source is not None or sizes.image is not None:
            kind = "token ids" if sizes.source is not None else "images"
            raise InputError(
                f"the causal model has no encoder, but this data has sources of {kind}: use lstm or transformer"
            )
        return CausalModel(self, sizes)


class CausalModel(TargetTokens):
    """The network of a ``Causal`` specification; its state carries each layer's keys and values."""

    def __init__(self, spec: Causal, sizes: Sizes) -> None:
        super().__init__(sizes.target, spec.width, tie=spec.tie)
        self.spec = spec
        self.classes = None if sizes.classes is None else nn.Embedding(sizes.classes, spec.width)
        self.decoder = DecoderBlocks(spec.layers, spec.width, spec.heads, spec.feedforward, spec.dropout, cross=False)

    def start(self, batch: Batch) -> DecoderState:
        return DecoderState(None, class_vectors(self.classes, batch))

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        features, carry = self.decoder(self._inputs(state, inputs), state.carry)
        return features, DecoderState(carry, state.shared)

    def advance_at(self, state: DecoderState, inputs: Tensor, where: Tensor) -> Tensor:
        return self.decoder(self._inputs(state, inputs), state.carry, where=where)[0]

    def _inputs(self, state: DecoderState, inputs: Tensor) -> Tensor:
        return inputs if state.shared is None else inputs + state.shared.unsqueeze(1)
