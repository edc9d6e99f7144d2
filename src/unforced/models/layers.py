"""Parts that several networks share: target tokens, source inputs, a convolutional encoder."""

import math
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.ops.kernels import dropout
from unforced.options import Count, NotEmpty, Options
from unforced.types import Batch


class TargetTokens(nn.Module):
    """The embedding matrix E and the output projection P of a `StepDecoder`.

    embed(y) = scale · E[y],  embed_mix(w) = scale · w E,  score(h) = h Pᵀ. With ``tie`` P and E are one parameter.

    >>> tokens = TargetTokens(5, width=3)
    >>> ids = torch.tensor([[1, 4]])
    >>> torch.allclose(tokens.embed_mix(F.one_hot(ids, 5).float()), tokens.embed(ids))
    True
    """

    def __init__(self, size: int, width: int, features: int | None = None, tie: bool = False) -> None:
        super().__init__()
        features = width if features is None else features
        self.scale = math.sqrt(width)
        self.embedding = embedding_matrix(size, width)
        self.projection = None if tie else embedding_matrix(size, features)

    @property
    def _output(self) -> nn.Parameter:
        return self.embedding if self.projection is None else self.projection

    def embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.embedding) * self.scale

    def embed_mix(self, weights: Tensor) -> Tensor:
        mixed = weights.to(self.embedding.dtype) @ self.embedding
        return mixed.to(self.embedding.dtype) * self.scale  # under autocast the product has low precision

    def score(self, features: Tensor) -> Tensor:
        return F.linear(features, self._output)


def embedding_matrix(size: int, width: int) -> nn.Parameter:
    """Return a new matrix [size,width] of normal entries with variance 1 / width."""
    return nn.Parameter(torch.randn(size, width) / math.sqrt(width))


# Sources of a batch


def source_tokens(batch: Batch) -> tuple[Tensor, Tensor | None]:
    """Return the source ids [B,S] and their mask, which is None if nothing is padded.

    Padding is replaced by id 0. A batch of empty sources gets one masked position, so that S ≥ 1.

    >>> from unforced.types import Symbols
    >>> gold = torch.zeros(2, 1, dtype=torch.long)
    >>> source = torch.tensor([[5, 6], [7, 9]])
    >>> mask = torch.tensor([[True, True], [True, False]])
    >>> source_tokens(Batch.of_gold(gold, gold == 0, Symbols(0, 1, 2), source=source, source_mask=mask))[0]
    tensor([[5, 6],
            [7, 0]])
    """
    ids, mask = batch.source, batch.source_mask
    if ids is None or ids.dim() != 2 or ids.is_floating_point():
        raise InputError(f"this model reads sources of token ids [B,S], but the batch has {_describe(ids)}")
    if ids.shape[1] == 0:
        return ids.new_zeros(len(ids), 1), torch.zeros(len(ids), 1, dtype=torch.bool, device=ids.device)
    if mask is None or bool(mask.all()):
        return ids, None
    return ids.masked_fill(~mask, 0), mask


def source_images(batch: Batch, image: tuple[int, int, int]) -> Tensor:
    """Return the source images [B,C,H,W]."""
    images = batch.source
    if images is None or not images.is_floating_point() or tuple(images.shape[1:]) != tuple(image):
        shape = "×".join(map(str, image))
        raise InputError(
            f"this model reads images of {shape} (channels, height, width), but the batch has {_describe(images)}"
        )
    return images


def source_classes(batch: Batch) -> Tensor:
    """Return the class labels [B]."""
    labels = batch.source
    if labels is None or labels.dim() != 1 or labels.is_floating_point():
        raise InputError(f"this model reads class labels [B], but the batch has {_describe(labels)}")
    return labels


def class_vectors(embedding: nn.Embedding | None, batch: Batch) -> Tensor | None:
    """Return embeddings [B,E] of the class labels, or None for a model without an embedding of classes."""
    if embedding is not None:
        vectors: Tensor = embedding(source_classes(batch))
        return vectors
    if batch.source is not None:
        raise InputError(f"this model was built without a source, but the batch has {_describe(batch.source)}")
    return None


def _describe(source: Tensor | None) -> str:
    return "no source" if source is None else f"{source.dtype} sources of shape {tuple(source.shape)}"


# Encoded sources


class Memory(NamedTuple):
    """An encoded source."""

    states: Tensor  # [B,S,M]
    mask: Tensor | None  # [B,S] bool; None if nothing is padded
    summary: Tensor  # [B,M], one vector per source


@dataclass(frozen=True)
class Convolution(Options):
    """The shape of a convolutional encoder."""

    channels: Annotated[tuple[Count, ...], NotEmpty()] = (
        32,
        64,
        128,
    )  # one 3×3 convolution each, all but the first with stride 2


class ConvolutionalEncoder(nn.Module):
    """Encode images [B,C,H,W] as a memory [B,S,M] with one position per cell of the last feature map, row by row.

    Each stage is a convolution, a group normalisation (so examples are independent) and a ReLU. A linear layer gives
    M = ``width`` features, to which a learned vector per position is added.
    """

    def __init__(self, image: tuple[int, int, int], shape: Convolution, width: int, rate: float = 0.0) -> None:
        super().__init__()
        self.image, self.width, self.rate = image, width, rate
        stages: list[nn.Module] = []
        previous, height, breadth = image
        for number, channels in enumerate(shape.channels):
            stride = 1 if number == 0 else 2
            stages.append(nn.Conv2d(previous, channels, 3, stride=stride, padding=1, bias=False))
            stages.extend([_GroupNorm(channels), nn.ReLU(inplace=True)])
            previous = channels
            height, breadth = (height - 1) // stride + 1, (breadth - 1) // stride + 1
        self.stages = nn.Sequential(*stages)
        self.project = nn.Linear(previous, width)
        self.positions = nn.Parameter(torch.randn(height * breadth, width) * 0.02)

    def forward(self, batch: Batch) -> Memory:
        cells = self.stages(source_images(batch, self.image)).flatten(2).transpose(1, 2)  # [B,S,C']
        states = dropout(self.project(cells) + self.positions, self.rate, self.training)
        return Memory(states, None, states.mean(dim=1))


class _GroupNorm(nn.GroupNorm):
    """Groups of 16 channels, or one group; unlike PyTorch's module it accepts a single image with one cell."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels // 16 if channels % 16 == 0 else 1, channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)
