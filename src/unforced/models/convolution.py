"""A small convolutional encoder: an image as a memory that the LSTM and the Transformer attend to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.models._dropout import dropout
from unforced.models._sources import Memory, source_images
from unforced.types import Batch


@dataclass(frozen=True)
class Convolution:
    """A convolutional encoder's shape: a 3×3 convolution for each of ``channels``, all but the first of stride 2.

    >>> Convolution(channels=(16, 32))
    Convolution(channels=(16, 32))
    """

    channels: tuple[int, ...] = (32, 64, 128)

    def __post_init__(self) -> None:
        if not self.channels or min(self.channels) < 1:
            raise InputError(
                f"convolution.channels must be one or more positive numbers, not {self.channels}"
            )


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

    def __init__(
        self, image: tuple[int, int, int], shape: Convolution, width: int, rate: float = 0.0
    ) -> None:
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

    def forward(self, batch: Batch) -> Memory:
        states = self.encode(source_images(batch, self.image))
        return Memory(states, None, states.mean(dim=1))
