"""What a network may attend to: the source side of a batch, checked, and the memory an encoder makes of it."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.types import Batch


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
        raise InputError(
            "sources must be padded at their end, but the source mask has a hole or starts false"
        )
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
        raise InputError(
            f"this model was built without a source, but the batch has {_described(batch.source)}"
        )
    return None


def _described(source: Tensor | None) -> str:
    return "no source" if source is None else f"{source.dtype} sources of shape {tuple(source.shape)}"
