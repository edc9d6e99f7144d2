"""A transition table as a `StepDecoder`: small enough to enumerate, and an example of the protocol."""

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.models.layers import source_classes, source_tokens
from unforced.options import Options
from unforced.types import Batch, DecoderState, Sizes


@dataclass(frozen=True)
class Toy(Options):
    """score(y_t = w) = table[context, w] + Σ over source tokens x of table[x, w].

    The context is the last token, or the last two (the state then carries a token).
    """

    order: Literal[1, 2] = 1  # number of tokens in the context
    scale: float = 1.0  # factor of the normal random entries

    def build(self, sizes: Sizes) -> "ToyModel":
        if sizes.image is not None:
            raise InputError("the toy model cannot read images")
        return ToyModel(self, sizes)


class ToyModel(nn.Module):
    """The network of `Toy`: tokens are one-hot vectors, features one-hot contexts and counts of source tokens.

    Scores are linear in each input token, so a mixture of tokens gives the expected scores.
    """

    def __init__(self, spec: Toy, sizes: Sizes) -> None:
        super().__init__()
        self.spec, self.sizes = spec, sizes
        source = sizes.source or sizes.classes or 0
        self.table = nn.Parameter(spec.scale * torch.randn(sizes.target**spec.order + source, sizes.target))

    def start(self, batch: Batch) -> DecoderState:
        previous = self.embed(torch.full_like(batch.prefix[:, 0], batch.symbols.bos))  # [B,V]
        return DecoderState(carry=previous if self.spec.order == 2 else None, shared=self._counts(batch))

    def _counts(self, batch: Batch) -> Tensor | None:
        """Count the source tokens: [B,X]."""
        if self.sizes.source is not None:
            ids, mask = source_tokens(batch)
            seen = F.one_hot(ids, self.sizes.source).to(self.table.dtype)
            return (seen if mask is None else seen * mask.unsqueeze(-1)).sum(dim=1)
        if self.sizes.classes is not None:
            return F.one_hot(source_classes(batch), self.sizes.classes).to(self.table.dtype)
        return None

    def embed(self, ids: Tensor) -> Tensor:
        return F.one_hot(ids, self.sizes.target).to(self.table.dtype)

    def embed_mix(self, weights: Tensor) -> Tensor:
        return weights

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        features, carry = inputs, state.carry
        if self.spec.order == 2:
            before = torch.cat([carry.unsqueeze(1), inputs[:, :-1]], dim=1)  # [R,T,V]
            features = (before.unsqueeze(-1) * inputs.unsqueeze(-2)).flatten(-2)  # [R,T,V·V]
            carry = inputs[:, -1]
        if state.shared is not None:
            counts = state.shared.unsqueeze(1).expand(-1, inputs.shape[1], -1)
            features = torch.cat([features, counts], dim=-1)
        return features, DecoderState(carry, state.shared)

    def score(self, features: Tensor) -> Tensor:
        return features @ self.table
