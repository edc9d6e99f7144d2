"""Masked language model: a Transformer that sees the tokens on both sides of those that are hidden."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from unforced.errors import InputError, check_choice
from unforced.models._blocks import check_shape
from unforced.models._masked import (
    LengthTable,
    MaskedTokens,
    MutualBlocks,
    check_nothing_to_read,
    check_tables,
    refuse_source,
    rows_of,
)
from unforced.types import Batch, Sizes

Positions = Literal["sinusoidal", "learned"]


@dataclass(frozen=True)
class Masked:
    """Blocks as those of ``Transformer``'s encoder, over tokens of which some are hidden behind one learnt vector.

    It reads no source: for source → target there is ``conditional_masked``. Scores have a bias of their own; ``tie`` shares
    the embedding with the output. ``lengths`` adds a table of how likely each length is, which objectives of masked models
    learn along; ``normalizer`` one of log Z by length, which only ``noise_contrastive`` learns.

    >>> import torch
    >>> model = Masked(width=8, heads=2, layers=1, feedforward=16).build(Sizes(target=10))
    >>> model.score(torch.zeros(1, 8)).shape
    torch.Size([1, 10])
    """

    width: int = 256
    heads: int = 4
    layers: int = 4
    feedforward: int = 1024
    dropout: float = 0.1
    tie: bool = True
    positions: Positions = "sinusoidal"
    longest: int = 512  # positions there are, where they are learnt
    lengths: int | None = None  # learn how long sequences are, up to so many tokens
    normalizer: int | None = None  # longest sequence that has a learnt log Z

    def __post_init__(self) -> None:
        check_shape(self.width, self.heads, self.feedforward, self.dropout)
        check_choice("positions", self.positions, Positions)
        check_tables(lengths=self.lengths, normalizer=self.normalizer)
        for name in ("layers", "longest"):
            if getattr(self, name) < 1:
                raise InputError(f"{name} must be at least 1, not {getattr(self, name)}")

    def build(self, sizes: Sizes) -> MaskedTransformer:
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
