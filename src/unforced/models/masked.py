"""Masked models: Transformers that see the tokens on both sides of those that are hidden."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.models.layers import TargetTokens, embedding_matrix, source_tokens
from unforced.models.transformer import (
    Cache,
    EncoderBlock,
    EncoderDecoderOptions,
    TransformerOptions,
    linear,
    sinusoids,
    split_heads,
)
from unforced.ops.kernels import dropout
from unforced.options import Count
from unforced.types import Batch, Sizes

# What all masked models share


class MaskedRows(NamedTuple):
    """R = B·K rows of tokens for B examples, and which positions are hidden."""

    ids: Tensor  # [R,T] long, 0 at hidden positions and padding
    valid: Tensor  # [R,T] bool, false for padding
    hidden: Tensor  # [R,T] bool
    copies: int  # K


def masked_rows(batch: Batch, tokens: Tensor, masked: Tensor) -> MaskedRows:
    """Prepare rows of tokens [R,T]; ``batch.mask`` says which positions are padding, whatever tokens are there.

    >>> from unforced.types import Symbols
    >>> gold = torch.tensor([[3, 4], [5, 0]])
    >>> batch = Batch.of_gold(gold, gold != 0, Symbols(pad=0, bos=1, eos=None))
    >>> masked_rows(batch, gold, gold == 4).ids
    tensor([[3, 0],
            [5, 0]])
    """
    copies = rows_per_example(batch, tokens)
    valid = batch.mask if copies == 1 else batch.mask.repeat_interleave(copies, dim=0)
    hidden = masked & valid
    return MaskedRows(tokens.masked_fill(hidden | ~valid, 0), valid, hidden, copies)


def rows_per_example(batch: Batch, tokens: Tensor) -> int:
    """Return K for tokens of B·K rows."""
    copies, rest = divmod(len(tokens), max(1, len(batch)))
    if rest or tokens.shape[1:] != batch.mask.shape[1:]:
        raise InputError(
            f"tokens of shape {tuple(tokens.shape)} do not match a batch of shape {tuple(batch.mask.shape)}: "
            "they need K rows per example and as many columns"
        )
    return copies


def check_no_source(model: str, sizes: Sizes) -> None:
    """Raise `InputError` for data with sources."""
    if sizes.source is not None or sizes.image is not None or sizes.classes is not None:
        hint = ": use conditional_masked" if sizes.source is not None else ""
        raise InputError(f"the {model} model reads no source, but this data has one{hint}")


def refuse_source(batch: Batch, model: str) -> None:
    """Raise `InputError` for a batch with a source, which the model would ignore."""
    if batch.source is not None:
        raise InputError(f"the {model} model was built without a source, but the batch has one: use conditional_masked")


class Normalizer(nn.Module):
    """A learned log Z for each number of tokens, for noise-contrastive estimation.

    >>> Normalizer(3)(torch.tensor([1, 3])).tolist()
    [0.0, 0.0]
    """

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(longest + 1))

    def forward(self, lengths: Tensor) -> Tensor:
        if lengths.numel() and int(lengths.max()) >= len(self.table):
            raise InputError(
                f"log Z is learned up to {len(self.table) - 1} tokens, but a sequence has {int(lengths.max())}: "
                "raise normalizer"
            )
        return self.table[lengths]


class LengthTable(nn.Module):
    """Learned scores [B,longest] of outputs of 1, 2, … tokens, the same for every example."""

    def __init__(self, longest: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(longest))

    def forward(self, batch: Batch) -> Tensor:
        return self.table.expand(len(batch), -1)


class MaskedTokens(TargetTokens, ABC):
    """A `MaskedModel` except for its ``features``.

    It has target tokens, a vector for hidden ones, and a bias of the scores.
    """

    length_table: LengthTable | None

    def __init__(
        self, size: int, width: int, features: int | None = None, tie: bool = False, normalizer: int | None = None
    ) -> None:
        super().__init__(size, width, features, tie)
        self.mask = nn.Parameter(torch.randn(width) / width**0.5)
        self.bias = nn.Parameter(torch.zeros(size))
        self.normalizer = None if normalizer is None else Normalizer(normalizer)

    @abstractmethod
    def features(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor: ...

    def inputs(self, rows: MaskedRows) -> Tensor:
        """Embed the rows: [R,T,E]."""
        return torch.where(rows.hidden.unsqueeze(-1), self.mask * self.scale, self.embed(rows.ids))

    def score(self, features: Tensor) -> Tensor:
        return super().score(features) + self.bias

    def scores(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        return self.score(self.features(batch, tokens, masked))

    def length_scores(self, batch: Batch) -> Tensor | None:
        return None if self.length_table is None else self.length_table(batch)

    def log_z(self, batch: Batch) -> Tensor:
        if self.normalizer is None:
            raise InputError("this model has no learned log Z: set its normalizer")
        mask = batch.mask if batch.symbols.eos is None else batch.mask & (batch.gold != batch.symbols.eos)
        log_z: Tensor = self.normalizer(mask.sum(dim=1))
        return log_z


class MaskedBlocks(nn.Module):
    """Positions, a stack of blocks in which every position sees all others, and a final norm.

    Positions are sinusoids, or learned up to ``longest``.
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
        self.blocks = nn.ModuleList(EncoderBlock(width, heads, feedforward, rate, cross) for _ in range(layers))
        self.norm = nn.LayerNorm(width)

    def forward(
        self,
        x: Tensor,
        valid: Tensor | None,
        memories: tuple[Cache, ...] | None = None,
        memory_mask: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Map [R,T,width] to [R,T,width], or to [R,P,width] at ``positions`` [R,P].

        Only the ``valid`` [R,T] positions are seen.
        """
        x = dropout(x + self._positions(x), self.rate, self.training)
        mask = None if valid is None or bool(valid.all()) else valid[:, None, None]  # [R,1,1,T]
        last = len(self.blocks) - 1
        for number, block in enumerate(self.blocks):
            memory = None if memories is None else memories[number]
            x = block(x, mask, memory, memory_mask, positions if number == last else None)
        features: Tensor = self.norm(x)
        return features

    def _positions(self, x: Tensor) -> Tensor:
        if self.positions is None:
            return sinusoids(0, x.shape[1], x)
        if x.shape[1] > len(self.positions):
            raise InputError(
                f"positions are learned up to {len(self.positions)}, but a sequence has {x.shape[1]}: raise longest"
            )
        return self.positions[: x.shape[1]]


# Masked language model

Positions = Literal["sinusoidal", "learned"]


@dataclass(frozen=True)
class Masked(TransformerOptions):
    """A bidirectional Transformer that predicts masked tokens, without a source."""

    layers: Count = 4  # number of blocks
    positions: Positions = "sinusoidal"  # position embeddings
    longest: Count = 512  # number of learned positions
    lengths: Count | None = None  # learn a distribution over output lengths up to this many tokens
    normalizer: Count | None = None  # learn log Z by length up to this many tokens (noise_contrastive only)

    def build(self, sizes: Sizes) -> "MaskedTransformer":
        check_no_source("masked", sizes)
        return MaskedTransformer(self, sizes)


class MaskedTransformer(MaskedTokens):
    """The network of `Masked`."""

    def __init__(self, spec: Masked, sizes: Sizes) -> None:
        super().__init__(sizes.target, spec.width, tie=spec.tie, normalizer=spec.normalizer)
        self.spec = spec
        longest = spec.longest if spec.positions == "learned" else None
        self.blocks = MaskedBlocks(spec.layers, *spec.shape, longest=longest)
        self.length_table = None if spec.lengths is None else LengthTable(spec.lengths)

    def features(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        return self.features_at(batch, tokens, masked, None)

    def features_at(self, batch: Batch, tokens: Tensor, masked: Tensor, positions: Tensor | None) -> Tensor:
        refuse_source(batch, "masked")
        rows = masked_rows(batch, tokens, masked)
        features: Tensor = self.blocks(self.inputs(rows), rows.valid, positions=positions)
        return features


# Conditional masked language model


@dataclass(frozen=True)
class ConditionalMasked(EncoderDecoderOptions):
    """A Transformer that predicts masked tokens of the target from a source (Ghazvininejad et al. 2019).

    The model also predicts the number of target tokens T, with the softmax of

        score(T) = a_T · s + d_(T − S) · s

    where s is the mean of the encoder's states and S the number of source tokens.
    """

    longest: Count = 200  # largest number of target tokens, end symbol excluded

    def build(self, sizes: Sizes) -> "ConditionalMaskedModel":
        if sizes.source is None:
            raise InputError(
                "conditional_masked reads sources of token ids, and this data has none: use masked or field"
            )
        self.check_vocabularies(sizes)
        return ConditionalMaskedModel(self, sizes)


class ConditionalMaskedModel(MaskedTokens):
    """The network of `ConditionalMasked`."""

    def __init__(self, spec: ConditionalMasked, sizes: Sizes) -> None:
        super().__init__(sizes.target, spec.width, tie=spec.tie)
        self.spec = spec
        self.source_embedding: nn.Parameter | None = None
        if not spec.share_source:
            self.source_embedding = embedding_matrix(sizes.source or 0, spec.width)
        self.encoder = MaskedBlocks(spec.encoder_layers, *spec.shape)
        self.cross = linear(spec.width, spec.width, blocks=2 * spec.decoder_layers)
        self.decoder = MaskedBlocks(spec.decoder_layers, *spec.shape, cross=True)
        self.by_length = nn.Linear(spec.width, spec.longest, bias=False)  # a
        self.by_difference = nn.Linear(spec.width, 2 * spec.longest, bias=False)  # d

    def encoded(self, batch: Batch) -> Batch:
        """Replace the sources by the encoder's states and the keys and values of all layers: [B,S,·]."""
        if batch.source is not None and batch.source.is_floating_point() and batch.source.dim() == 3:
            return batch  # is encoded
        ids, mask = source_tokens(batch)
        table = self.embedding if self.source_embedding is None else self.source_embedding
        states = self.encoder(F.embedding(ids, table) * self.scale, mask)
        return replace(batch, source=torch.cat([states, self.cross(states)], dim=-1), source_mask=mask)

    def _memory(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the encoder's states [B,S,width], keys and values [B,S,·] and the source mask [B,S]."""
        batch = self.encoded(batch)
        assert batch.source is not None
        states, keys_values = batch.source.tensor_split([self.spec.width], dim=-1)
        return states, keys_values, batch.source_mask

    def features(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        return self.features_at(batch, tokens, masked, None)

    def features_at(self, batch: Batch, tokens: Tensor, masked: Tensor, positions: Tensor | None) -> Tensor:
        rows = masked_rows(batch, tokens, masked)
        _, keys_values, mask = self._memory(batch)
        parts = split_heads(keys_values, 2 * self.spec.decoder_layers, self.spec.heads)
        mask = None if mask is None else mask[:, None, None]
        if rows.copies > 1:
            parts = tuple(part.repeat_interleave(rows.copies, dim=0) for part in parts)
            mask = None if mask is None else mask.repeat_interleave(rows.copies, dim=0)
        memories = tuple(map(Cache, parts[::2], parts[1::2]))
        features: Tensor = self.decoder(self.inputs(rows), rows.valid, memories, mask, positions)
        return features

    def length_scores(self, batch: Batch) -> Tensor:
        states, _, mask = self._memory(batch)
        b, s = states.shape[:2]
        valid = states.new_ones(b, s) if mask is None else mask.to(states.dtype)
        sizes = valid.sum(dim=1, keepdim=True)
        mean = (states * valid.unsqueeze(-1)).sum(dim=1) / sizes.clamp(min=1)
        longest = self.spec.longest
        lengths = torch.arange(1, longest + 1, device=mean.device)
        difference = lengths - sizes.long().clamp(max=longest) + longest  # [B,longest], in 1 … 2·longest
        scores: Tensor = self.by_length(mean) + self.by_difference(mean).gather(1, difference - 1)
        return scores
