"""Decoder-only Transformer for text and pixels, optionally conditioned on a class."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from unforced.errors import InputError
from unforced.models._blocks import DecoderBlocks, check_shape
from unforced.models._sources import class_vectors
from unforced.models._tokens import TargetTokens
from unforced.types import Batch, DecoderState, Sizes


@dataclass(frozen=True)
class Causal:
    """A language model over tokens or pixels; with classes, an embedding of the class is added to every input.

    Blocks are those of ``Transformer``, without a memory to attend to. Data with a source to read is refused.

    >>> import torch
    >>> model = Causal(width=8, heads=2, layers=1, feedforward=16).build(Sizes(target=10, classes=3))
    >>> model.score(torch.zeros(1, 8)).shape
    torch.Size([1, 10])
    """

    width: int = 256
    heads: int = 4
    layers: int = 4
    feedforward: int = 1024
    dropout: float = 0.1
    tie: bool = True

    def __post_init__(self) -> None:
        check_shape(self.width, self.heads, self.feedforward, self.dropout)
        if self.layers < 1:
            raise InputError(f"layers must be at least 1, not {self.layers}")

    def build(self, sizes: Sizes) -> CausalModel:
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
        self.decoder = DecoderBlocks(
            spec.layers, spec.width, spec.heads, spec.feedforward, spec.dropout, cross=False
        )

    def start(self, batch: Batch) -> DecoderState:
        return DecoderState(None, class_vectors(self.classes, batch))

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        features, carry = self.decoder(self._inputs(state, inputs), state.carry)
        return features, DecoderState(carry, state.shared)

    def advance_at(self, state: DecoderState, inputs: Tensor, where: Tensor) -> Tensor:
        return self.decoder(self._inputs(state, inputs), state.carry, where=where)[0]

    def _inputs(self, state: DecoderState, inputs: Tensor) -> Tensor:
        return inputs if state.shared is None else inputs + state.shared.unsqueeze(1)
