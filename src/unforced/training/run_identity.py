"""What a run is: the facts a resumed run must share with the first, and what run.json tells of it."""

import hashlib
import itertools
import json
import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import nn

from unforced.errors import InputError
from unforced.protocols import Codec
from unforced.training.batching import source_length, token_lengths
from unforced.training.checkpoints import model_tensors
from unforced.training.options import Training
from unforced.types import Encoded, Example

FREE = {"keep", "save_every", "tensorboard"}  # options that a resumed run may change


def digest(data: Any) -> str:
    """A short hash of JSON data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]


def data_digest(encoded: Sequence[Encoded]) -> str:
    """A short hash of encoded examples in their order.

    >>> data_digest([Encoded([4], [5, 2])]) == data_digest([Encoded([4, 5], [2])])
    False
    >>> data_digest([Encoded([4], [5, 2], (5, 6))]) == data_digest([Encoded([4], [5, 2], (5, 7))])
    False
    """
    total = hashlib.blake2b(token_lengths(encoded).tobytes(), digest_size=8)
    tokens = itertools.chain.from_iterable(
        part for example in encoded for part in (example.source, example.target) if source_length(part)
    )
    total.update(np.fromiter(tokens, dtype=np.int64).tobytes())
    for number, example in enumerate(encoded):
        if len(example.references):
            total.update(np.asarray([number, *example.references], dtype=np.int64).tobytes())
    for example in encoded:
        if example.source is not None and not source_length(example.source):  # an image or a class
            total.update(np.asarray(example.source, dtype=np.float32).tobytes())
    return total.hexdigest()


def learnt_from(encoded: Sequence[Encoded]) -> str:
    """Which training examples a run has, in a word or two."""
    return f"{len(encoded)} examples {data_digest(encoded)}"


def facts(
    *,
    model: nn.Module,
    objective: Any,
    codec: Codec,
    encoded: Sequence[Encoded],
    options: Training,
    seed: int,
    world: int,
) -> dict[str, Any]:
    """What must be the same when a run is resumed, as a flat table."""
    shapes = {name: [str(tensor.dtype), *tensor.shape] for name, tensor in model_tensors(model).items()}
    return {
        "seed": seed,
        "world": world,
        "objective": _spelled(objective) if is_dataclass(objective) else type(objective).__qualname__,
        **{f"file {path.name}": file_digest(path) for path in files(objective)},
        "model": f"{type(model).__name__} {digest(shapes)}",
        "vocabulary": digest(codec.to_json()),
        "sizes": str(tuple(codec.sizes)),
        "training data": learnt_from(encoded),
        **{
            f"training.{field.name}": _plain(getattr(options, field.name))
            for field in fields(options)
            if field.name not in FREE
        },
    }


def files(objective: Any) -> list[Path]:
    """The files that an objective, or a part of it, says it reads by its ``files``."""
    parts = [getattr(objective, field.name) for field in fields(objective)] if is_dataclass(objective) else []
    return [*getattr(objective, "files", ()), *(path for part in parts for path in files(part))]


def file_digest(path: Path) -> str:
    """A short hash of a file's content; raises ``InputError`` where it can't be read."""
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()[:16]
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from None


def _spelled(objective: Any) -> str:
    """Its repr, without the addresses of functions among its fields: they differ from process to process."""
    return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(objective))


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def describe(
    *,
    about: Mapping[str, Any],
    facts: Mapping[str, Any],
    model: nn.Module,
    splits: Mapping[str, Sequence[Example]],
    accelerator: Accelerator,
) -> dict[str, Any]:
    """The content of run.json; ``about`` adds to it (name, variant, counts of other splits …)."""
    counts = {}
    for split, examples in splits.items():
        dropped = getattr(examples, "dropped", {})
        counts[split] = {"read": len(examples) + sum(dropped.values()), "kept": len(examples), "dropped": dropped}
    return {
        **about,
        "seed": facts["seed"],
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {"python": platform.python_version(), **_versions()},
        "device": str(accelerator.device),
        "threads": torch.get_num_threads(),
        "world": accelerator.num_processes,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "examples": {**counts, **about.get("examples", {})},
        "fingerprint": digest(dict(facts)),
        "facts": dict(facts),
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in ("unforced", "torch", "accelerate", "safetensors", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found
