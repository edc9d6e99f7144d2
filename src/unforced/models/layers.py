"""A small convolutional encoder: an image as a memory that the LSTM and the Transformer attend to."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.ops.kernels import Deferred, dropout
from unforced.options import Count, NotEmpty, Options
from unforced.types import Batch


@dataclass(frozen=True)
class Convolution(Options):
    """A convolutional encoder's shape: a 3×3 convolution for each of ``channels``, all but the first of stride 2.

    >>> Convolution(channels=(16, 32))
    Convolution(channels=(16, 32))
    """

    channels: Annotated[tuple[Count, ...], NotEmpty()] = (32, 64, 128)


class _GroupNorm(nn.GroupNorm):
    """Groups of 16 channels, or one group; one image with one cell is no exception, as it is in PyTorch's check."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels // 16 if channels % 16 == 0 else 1, channels)

    def forward(self, x: Tensor) -> Tensor:
        return torch.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class ConvolutionalEncoder(nn.Module):
    """[B,C,H,W] images -> a memory [B,S,M] with one position for each cell of the last feature map, row by row.

    A stage is convolution, group normalisation (examples never see each other) and ReLU; a linear layer then makes
    M = ``width`` features and a learnt vector is added for each position.

    >>> encoder = ConvolutionalEncoder((3, 24, 24), Convolution(), width=16)
    >>> encoder.encode(torch.zeros(2, 3, 24, 24)).shape
    torch.Size([2, 36, 16])
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

    def encode(self, images: Tensor) -> Tensor:
        cells = self.stages(images).flatten(2).transpose(1, 2)  # [B,S,C']
        return dropout(self.project(cells) + self.positions, self.rate, self.training)

    def forward(self, batch: Batch) -> "Memory":
        states = self.encode(source_images(batch, self.image))
        return Memory(states, None, states.mean(dim=1))


# Target tokens going in and coming out: what every network here shares.


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
        self._deferred: tuple[Deferred, Deferred] | None = None  # of the output and of mixtures, while stepping

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
        return mixed.to(self.embedding.dtype) * self.scale  # under autocast the product comes in low precision

    def score(self, features: Tensor) -> Tensor:
        if self._deferred is not None:
            return self._deferred[0].linear(features)
        return F.linear(features, self._output)


# What a network may attend to: the source side of a batch, checked, and the memory an encoder makes of it.


class Memory(NamedTuple):
    """An encoded source: a state for each position, which of them count, and one vector for the whole."""

    states: Tensor  # [B,S,M]
    mask: Tensor | None  # [B,S] bool; None where nothing is padded
    summary: Tensor  # [B,M]


def source_tokens(batch: Batch) -> tuple[Tensor, Tensor | None]:
    """The source ids [B,S] and their mask, which is None where nothing is padded.

    Padding reads as id 0 whatever stood there. A batch of empty sources gets one masked position, so S ≥ 1.

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
        raise InputError(f"this model reads sources of token ids [B,S], but the batch has {_described(ids)}")
    if ids.shape[1] == 0:
        return ids.new_zeros(len(ids), 1), torch.zeros(len(ids), 1, dtype=torch.bool, device=ids.device)
    if mask is None or bool(mask.all()):
        return ids, None
    if mask.shape != ids.shape:
        raise InputError(
            f"the source mask is {tuple(mask.shape)} but the sources are {tuple(ids.shape)}: they must agree"
        )
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise InputError("sources must be padded at their end, but the source mask has a hole or starts false")
    return ids.masked_fill(~mask, 0), mask


def source_images(batch: Batch, image: tuple[int, int, int]) -> Tensor:
    """The source images [B,C,H,W]."""
    found = batch.source
    if found is None or not found.is_floating_point() or tuple(found.shape[1:]) != tuple(image):
        shape = "×".join(map(str, image))
        raise InputError(
            f"this model reads images of {shape} (channels, height, width), but the batch has {_described(found)}"
        )
    return found


def source_classes(batch: Batch) -> Tensor:
    """The class labels [B]."""
    labels = batch.source
    if labels is None or labels.dim() != 1 or labels.is_floating_point():
        raise InputError(f"this model reads class labels [B], but the batch has {_described(labels)}")
    return labels


def class_vectors(embedding: nn.Embedding | None, batch: Batch) -> Tensor | None:
    """[B,E] embeddings of the class labels for a model that has classes, and None for one that reads no source."""
    if embedding is not None:
        return embedding(source_classes(batch))
    if batch.source is not None:
        raise InputError(f"this model was built without a source, but the batch has {_described(batch.source)}")
    return None


def _described(source: Tensor | None) -> str:
    return "no source" if source is None else f"{source.dtype} sources of shape {tuple(source.shape)}"
