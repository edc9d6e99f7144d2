"""Target tokens going in and coming out: what every network here shares."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.models._deferred import Deferred


class TargetTokens(nn.Module):
    """The half of a ``StepDecoder`` that knows the vocabulary: an embedding matrix and an output projection.

    embed(y) = scale · E[y],  embed_mix(w) = scale · w E,  score(h) = h Pᵀ, with P = E where they are tied
    (one parameter, so that it is stored, counted and saved once).

    >>> tokens = TargetTokens(5, width=3)
    >>> ids = torch.tensor([[1, 4]])
    >>> torch.allclose(tokens.embed_mix(F.one_hot(ids, 5).float()), tokens.embed(ids))
    True
    >>> tokens.score(torch.zeros(2, 3)).shape
    torch.Size([2, 5])
    """

    def __init__(self, size: int, width: int, features: int | None = None, tie: bool = False) -> None:
        super().__init__()
        features = width if features is None else features
        self.scale = math.sqrt(width)
        self.embedding = nn.Parameter(torch.randn(size, width) / math.sqrt(width))
        self.projection = None if tie else nn.Parameter(torch.randn(size, features) / math.sqrt(features))
        self._deferred: tuple[Deferred, Deferred] | None = (
            None  # of the output and of mixtures, while stepping
        )

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """For passes with gradient that go step by step: weight gradients are made once, not at every step.

        Under autocast, whose casts belong to the usual operators, nothing changes; nor within another such pass.
        """
        plain = not torch.is_grad_enabled() or torch.is_autocast_enabled(self.embedding.device.type)
        if plain or self._deferred is not None:
            yield
            return
        self._deferred = Deferred(self._output), Deferred(self.embedding)
        try:
            yield
        finally:
            self._deferred = None

    @property
    def _output(self) -> nn.Parameter:
        return self.embedding if self.projection is None else self.projection

    def embed(self, ids: Tensor) -> Tensor:
        if self._deferred is not None:
            return self._deferred[1].rows(ids) * self.scale
        return F.embedding(ids, self.embedding) * self.scale

    def embed_mix(self, weights: Tensor) -> Tensor:
        if self._deferred is not None:
            return self._deferred[1].mix(weights.to(self.embedding.dtype)) * self.scale
        mixed = weights.to(self.embedding.dtype) @ self.embedding
        return (
            mixed.to(self.embedding.dtype) * self.scale
        )  # under autocast the product comes in low precision

    def score(self, features: Tensor) -> Tensor:
        if self._deferred is not None:
            return self._deferred[0].linear(features)
        return F.linear(features, self._output)
