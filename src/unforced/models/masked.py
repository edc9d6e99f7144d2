"""What masked models share: rows of a batch with hidden tokens, and Transformer blocks that see both ways."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.models.layers import TargetTokens, source_tokens
from unforced.models.transformer import Cache, ReadingBlock, check_heads, linear, sinusoids, split_heads
from unforced.ops.kernels import dropout
from unforced.options import Count, Fraction, Natural, Options
from unforced.protocols import require
from unforced.types import Batch, Sizes


class Rows(NamedTuple):
    """Token ids [R,T] with 0 where there is nothing to read, and which positions there are and which are hidden."""

    ids: Tensor  # [R,T] long
    there: Tensor  # [R,T] bool
    hidden: Tensor  # [R,T] bool
    copies: int  # K: rows of each example


def rows_of(batch: Batch, tokens: Tensor, masked: Tensor) -> Rows:
    """Check R = B·K rows against their batch; ``batch.mask`` says which positions there are, whatever is in the others.

    >>> from unforced.types import Symbols
    >>> gold = torch.tensor([[3, 4], [5, 0]])
    >>> batch = Batch.of_gold(gold, gold != 0, Symbols(pad=0, bos=1, eos=None))
    >>> rows_of(batch, gold, gold == 4).ids
    tensor([[3, 0],
            [5, 0]])
    """
    copies, rest = divmod(len(tokens), max(1, len(batch)))
    if rest or masked.shape != tokens.shape or tokens.shape[1:] != batch.mask.shape[1:]:
        raise InputError(
            f"tokens of shape {tuple(tokens.shape)} with a mask of shape {tuple(masked.shape)} are no rows of a batch "
            f"of shape {tuple(batch.mask.shape)}"
        )
    if bool((batch.mask[:, 1:] & ~batch.mask[:, :-1]).any()):
        raise InputError("sequences must be padded at their end, but the batch's mask has a hole or starts false")
    there = batch.mask if copies == 1 else batch.mask.repeat_interleave(copies, dim=0)
    hidden = masked & there
    return Rows(tokens.masked_fill(hidden | ~there, 0), there, hidden, copies)


def refuse_source(batch: Batch, model: str) -> None:
    """Raise ``InputError`` for a batch with something to read that the model would pass over."""
    if batch.source is not None:
        raise InputError(f"the {model} model was built without a source, but the batch has one: use conditional_masked")


class Normalizer(nn.Module):
    """log Z of each number of tokens, learnt like any other weight: what noise-contrastive estimation can ask for.

    >>> Normalizer(3)(torch.tensor([1, 3])).tolist()
    [0.0, 0.0]
    """

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(longest + 1))

    def forward(self, lengths: Tensor) -> Tensor:
        if lengths.numel() and int(lengths.max()) >= len(self.table):
            raise InputError(
                f"log Z is learnt up to {len(self.table) - 1} tokens, but a sequence has {int(lengths.max())}: "
                "raise normalizer"
            )
        return self.table[lengths]


class LengthTable(nn.Module):
    """How likely outputs of 1, 2, … tokens are, whatever the example: learnt scores [B,longest]."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(longest))

    def forward(self, batch: Batch) -> Tensor:
        return self.table.expand(len(batch), -1)


class MaskedTokens(TargetTokens, ABC):
    """A ``MaskedModel`` but for its ``features``: target tokens, a vector for hidden ones, and a bias of the scores."""

    def __init__(
        self, size: int, width: int, features: int | None = None, tie: bool = False, normalizer: int | None = None
    ) -> None:
        super().__init__(size, width, features, tie)
        self.mask = nn.Parameter(torch.randn(width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(size))
        self.normalizer = None if normalizer is None else Normalizer(normalizer)

    @abstractmethod
    def features(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        """[R,T] ids and [R,T] bool -> [R,T,H]: what ``score`` projects to the vocabulary."""

    def inputs(self, rows: Rows) -> Tensor:
        """[R,T,E]."""
        return torch.where(rows.hidden.unsqueeze(-1), self.mask * self.scale, self.embed(rows.ids))

    def score(self, features: Tensor) -> Tensor:
        return super().score(features) + self.bias

    def scores(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        """[R,T] ids and [R,T] bool -> [R,T,V]."""
        return self.score(self.features(batch, tokens, masked))

    def lengths(self, batch: Batch, n: int = 1) -> Tensor:
        """[B,n] the likeliest lengths of outputs, the best first; the end symbol is not counted."""
        require(self, "a guess of the length", "length_scores")
        scores: Tensor = self.length_scores(batch)  # type: ignore[operator]
        if not 1 <= n <= scores.shape[1]:
            raise InputError(f"between 1 and {scores.shape[1]} lengths can be asked for, not {n}")
        return scores.topk(n, dim=1).indices + 1

    def log_z(self, batch: Batch) -> Tensor:
        """[B] what has been learnt of each example's log Z."""
        require(self, "a learnt log Z", "normalizer")
        assert self.normalizer is not None
        return self.normalizer(lengths_of(batch))


def lengths_of(batch: Batch) -> Tensor:
    """How many tokens each example's output has, the end symbol not counted: [B]."""
    mask = batch.mask if batch.symbols.eos is None else batch.mask & (batch.gold != batch.symbols.eos)
    return mask.sum(dim=1)


class MutualBlock(ReadingBlock):
    """x += self-attention(norm x), everything sees everything; x += cross-attention(norm x); x += feed-forward(norm x)."""

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        memory: Cache | None,
        memory_mask: Tensor | None,
        places: Tensor | None = None,
    ) -> Tensor:
        """[R,T,width] -> [R,T,width], or [R,P,width] at the ``places`` [R,P], where the others are only looked at."""
        normed, width = self.self_norm(x), x.shape[-1]
        if places is None:
            q, k, v = split_heads(self.qkv(normed), 3, self.heads)
        else:
            k, v = split_heads(F.linear(normed, self.qkv.weight[width:]), 2, self.heads)
            (q,) = split_heads(F.linear(picked(normed, places), self.qkv.weight[:width]), 1, self.heads)
            x = picked(x, places)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # [R,heads,T,d]
        return self._rest(x, seen, memory, memory_mask)


def picked(x: Tensor, places: Tensor) -> Tensor:
    """[R,T,E] at the places [R,P]: [R,P,E].

    >>> picked(torch.arange(6.0).view(1, 3, 2), torch.tensor([[2, 0]]))
    tensor([[[4., 5.],
             [0., 1.]]])
    """
    return x.gather(1, places.unsqueeze(2).expand(-1, -1, x.shape[2]))


class MutualBlocks(nn.Module):
    """Positions, a stack of blocks in which every position sees all others, and its last norm.

    Positions are sinusoids, or learnt where ``longest`` says up to which.
    """

    def __init__(
        self,
        layers: int,
        width: int,
        heads: int,
        feedforward: int,
        rate: float,
        cross: bool = False,
        longest: int | None = None,
    ) -> None:
        super().__init__()
        self.rate = rate
        self.positions = None if longest is None else nn.Parameter(torch.randn(longest, width) / width**0.5)
        self.blocks = nn.ModuleList(MutualBlock(width, heads, feedforward, rate, cross) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(
        self,
        x: Tensor,
        there: Tensor | None,
        memories: tuple[Cache, ...] | None = None,
        memory_mask: Tensor | None = None,
        places: Tensor | None = None,
    ) -> Tensor:
        """[R,T,width] -> [R,T,width], or [R,P,width] if only some ``places`` [R,P] are asked for.

        ``there`` [R,T] says which positions are seen, None that all are.
        """
        x = dropout(x + self._places(x), self.rate, self.training)
        mask = None if there is None or bool(there.all()) else there[:, None, None]  # [R,1,1,T]
        last = len(self.blocks) - 1
        for number, block in enumerate(self.blocks):
            memory = None if memories is None else memories[number]
            x = block(x, mask, memory, memory_mask, places if number == last else None)
        return self.norm(x)

    def _places(self, x: Tensor) -> Tensor:
        if self.positions is None:
            return sinusoids(0, x.shape[1], x)
        if x.shape[1] > len(self.positions):
            raise InputError(
                f"positions are learnt up to {len(self.positions)}, but a sequence has {x.shape[1]}: raise longest"
            )
        return self.positions[: x.shape[1]]


def check_nothing_to_read(model: str, sizes: Sizes) -> None:
    """Raise ``InputError`` for data with sources."""
    if sizes.source is not None or sizes.image is not None or sizes.classes is not None:
        hint = ": use conditional_masked" if sizes.source is not None else ""
        raise InputError(f"the {model} model reads no source, but this data has some{hint}")


# Masked language model: a Transformer that sees the tokens on both sides of those that are hidden.

Positions = Literal["sinusoidal", "learned"]


@dataclass(frozen=True)
class Masked(Options):
    """Blocks as those of ``Transformer``'s encoder, over tokens of which some are hidden behind one learnt vector.

    It reads no source: for source → target there is ``conditional_masked``. Scores have a bias of their own; ``tie`` shares
    the embedding with the output. ``lengths`` adds a table of how likely each length is, which objectives of masked models
    learn along; ``normalizer`` one of log Z by length, which only ``noise_contrastive`` learns.

    >>> import torch
    >>> model = Masked(width=8, heads=2, layers=1, feedforward=16).build(Sizes(target=10))
    >>> model.score(torch.zeros(1, 8)).shape
    torch.Size([1, 10])
    """

    width: Count = 256
    heads: Count = 4
    layers: Count = 4
    feedforward: Count = 1024
    dropout: Fraction = 0.1
    tie: bool = True
    positions: Positions = "sinusoidal"
    longest: Count = 512  # positions there are, where they are learnt
    lengths: Count | None = None  # learn how long sequences are, up to so many tokens
    normalizer: Count | None = None  # longest sequence that has a learnt log Z

    def check(self) -> None:
        check_heads(self.width, self.heads)

    def build(self, sizes: Sizes) -> "MaskedTransformer":
        check_nothing_to_read("masked", sizes)
        return MaskedTransformer(self, sizes)


class MaskedTransformer(MaskedTokens):
    """The network of a ``Masked`` specification."""

    def __init__(self, spec: Masked, sizes: Sizes) -> None:
        super().__init__(sizes.target, spec.width, tie=spec.tie, normalizer=spec.normalizer)
        self.spec = spec
        self.blocks = MutualBlocks(
            spec.layers,
            spec.width,
            spec.heads,
            spec.feedforward,
            spec.dropout,
            longest=spec.longest if spec.positions == "learned" else None,
        )
        self.length_scores = None if spec.lengths is None else LengthTable(spec.lengths)

    def features(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        return self.features_at(batch, tokens, masked, None)

    def features_at(self, batch: Batch, tokens: Tensor, masked: Tensor, positions: Tensor | None) -> Tensor:
        """The features at positions [R,P] alone, [R,P,H]; at all of them if None."""
        refuse_source(batch, "masked")
        rows = rows_of(batch, tokens, masked)
        return self.blocks(self.inputs(rows), rows.there, places=positions)


# Conditional masked language model: source → target with hidden target tokens, and a guess of the target's length.


@dataclass(frozen=True)
class ConditionalMasked(Options):
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

    width: Count = 256
    heads: Count = 4
    encoder_layers: Natural = 3
    decoder_layers: Count = 3
    feedforward: Count = 1024
    dropout: Fraction = 0.1
    tie: bool = True
    share_source: bool = False
    longest: Count = 200  # most tokens of a target, the end symbol not counted

    def check(self) -> None:
        check_heads(self.width, self.heads)

    def build(self, sizes: Sizes) -> "ConditionalMaskedModel":
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
            self.source_embedding = nn.Parameter(torch.randn(sizes.source or 0, spec.width) / math.sqrt(spec.width))
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
