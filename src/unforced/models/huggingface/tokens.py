"""Tokens going into a Hugging Face model, hard or soft, by its own embedding."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.models._deferred import Deferred
from unforced.types import Symbols


class WrappedModel(nn.Module):
    """What all wrappers are: ``model`` is the Hugging Face model, whose parameters these are, ``symbols`` its special tokens;
    ``tokenizer`` is what the user named."""

    tokenizer: Any = None

    def __init__(self, model: nn.Module, symbols: Symbols) -> None:
        super().__init__()
        self.model = model
        self.symbols = symbols
        self.training = model.training
        self._inputs: Deferred | None = None  # the embedding's weight, while stepping

    @property
    def embedding(self) -> Any:
        """The embedding of the tokens that are fed."""
        return self.model.get_input_embeddings()  # type: ignore[operator]

    @property
    def tokens(self) -> int | None:
        """How many tokens have embeddings, where that can be seen."""
        weight = getattr(self.embedding, "weight", None)
        return len(weight) if isinstance(weight, Tensor) else None

    @cached_property
    def scale(self) -> float | None:
        """What the embedding multiplies its weight by; see ``embedding_scale``."""
        return embedding_scale(self.embedding)

    def embed(self, ids: Tensor) -> Tensor:
        if self._inputs is not None and self.scale is not None:
            vectors = self._inputs.rows(ids)
            padding = getattr(self.embedding, "padding_idx", None)
            if padding is not None:  # whose vector is not learnt
                vectors = torch.where((ids == padding).unsqueeze(-1), vectors.detach(), vectors)
            return vectors if self.scale == 1 else vectors * self.scale
        made: Tensor = self.embedding(ids)
        return made

    def embed_mix(self, weights: Tensor) -> Tensor:
        size = weights.shape[-1]
        if self.scale is None:
            table = self.embedding(torch.arange(size, device=weights.device))
            return (weights.to(table.dtype) @ table).to(table.dtype)
        table = self.embedding.weight
        if len(table) < size:
            raise InputError(
                f"mixtures of {size} tokens can't be fed where only {len(table)} have embeddings"
            )
        weights = weights.to(table.dtype)
        if self._inputs is not None and len(table) == size:
            mixed = self._inputs.mix(weights)
        else:  # a model may have embeddings that no score belongs to
            mixed = weights @ (table if len(table) == size else table[:size])
        mixed = mixed.to(table.dtype)  # under autocast the product comes in low precision
        return mixed if self.scale == 1 else mixed * self.scale


def embedding_scale(embedding: nn.Module) -> float | None:
    """The factor c of an embedding c · weight[ids]; None where it is something else, or can't be seen from its weights."""
    if type(embedding).forward is nn.Embedding.forward:
        return 1.0
    weight = getattr(embedding, "weight", None)
    if not isinstance(weight, Tensor) or weight.dim() != 2 or weight.is_meta:
        return None
    with torch.no_grad():
        ids = weight[:64].double().norm(dim=1).argsort(descending=True)[:8]
        plain, made = weight[ids].double(), embedding(ids)
        if not isinstance(made, Tensor) or made.shape != plain.shape or not plain.any():
            return None
        made = made.double()
        scale = float((plain * made).sum() / plain.square().sum())
        told = getattr(embedding, "embed_scale", None)
        if told is not None and abs(float(told) - scale) <= 1e-2 * abs(scale):
            scale = float(told)  # without the rounding of the weights
        near = torch.finfo(weight.dtype).eps * 4
        return scale if torch.allclose(plain * scale, made, rtol=near, atol=0) else None
