"""The identity of a run: facts stored in run.json that a resumed or compared run must share."""

import hashlib
import itertools
import platform
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from unforced import __version__
from unforced.errors import InputError
from unforced.protocols import Codec, ReadsFiles
from unforced.recipes.recipe import Recipe, flatten
from unforced.training.batching import source_length, token_lengths
from unforced.training.checkpoints import model_tensors
from unforced.training.run_folder import RunFolder, differences, digest
from unforced.types import Encoded, Examples

DATA_FACTS = {"training data", "vocabulary", "parameters", "world"}  # not determined by the recipe
FREE = {"training.keep", "training.save_every", "training.tensorboard"}  # may change when a run is resumed


def expected_facts(recipe: Recipe) -> dict[str, Any]:
    """Return the facts that the recipe of one variant and one seed determines, as a flat table.

    These are its settings, with the decoder of validation only, and digests of the files that the objective reads.
    ``"variant:NAME"`` stays as it is, so the facts do not depend on where runs are stored.
    """
    data, judge = recipe.to_data(), recipe.training.validate
    table = {
        **{key: data.get(key, _describe(getattr(recipe, key))) for key in ("task", "model", "objective")},
        "training": data["training"],
        "decoding": {judge: data["decoding"].get(judge, _describe(recipe.decoding[judge]))},
    }
    settings = {key: value for key, value in flatten(table).items() if key not in FREE}
    files = {f"file {path.name}": file_digest(path) for path in objective_files(recipe.objective)}
    return {"seed": recipe.seeds[0], **settings, **files}


def data_facts(codec: Codec, encoded: Sequence[Encoded], model: nn.Module) -> dict[str, Any]:
    """Return the facts that depend on the training data and the model."""
    shapes = {name: [str(tensor.dtype), *tensor.shape] for name, tensor in model_tensors(model).items()}
    return {
        "training data": training_data_fact(encoded),
        "vocabulary": f"{codec.sizes.target} symbols {digest(codec.to_json())}",
        "parameters": f"{sum(map(torch.numel, model.parameters()))} {digest(shapes)}",
    }


def training_data_fact(encoded: Sequence[Encoded]) -> str:
    """Return the number of training examples and their digest."""
    return f"{len(encoded)} examples {data_digest(encoded)}"


def check_facts(run: RunFolder, facts: Mapping[str, Any]) -> None:
    """Raise `InputError` if the folder holds a run with other facts."""
    changes = differences(run.facts(), facts) if run.exists() else []
    if changes:
        raise InputError(
            f"{run.path}: can't be resumed with other settings: {'; '.join(changes)}; use another folder or remove it"
        )


def data_digest(encoded: Sequence[Encoded]) -> str:
    """Return a short hash of encoded examples in their order.

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


def objective_files(objective: Any) -> list[Path]:
    """Return the files that an objective, or a part of it, lists in its ``files``."""
    parts = [getattr(objective, field.name) for field in fields(objective)] if is_dataclass(objective) else []
    own = objective.files if isinstance(objective, ReadsFiles) else ()
    return [*own, *(path for part in parts for path in objective_files(part))]


def file_digest(path: Path) -> str:
    """Return a short hash of a file's content; raise `InputError` if it can't be read."""
    try:
        with open(path, "rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()[:16]
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror or error}") from None


def _describe(own: Any) -> str:
    """Write an object of the user's own, without addresses, which differ from process to process."""
    if is_dataclass(own) and not isinstance(own, type):
        return re.sub(r" at 0x[0-9a-fA-F]+", "", repr(own))
    name: str = getattr(own, "__qualname__", type(own).__qualname__)
    return name


def describe(
    recipe: Recipe, facts: Mapping[str, Any], model: nn.Module, splits: Mapping[str, Examples], device: torch.device
) -> dict[str, Any]:
    """Return the content of run.json."""
    libraries = {library: version(library) for library in ("torch", "accelerate", "safetensors", "numpy")}
    return {
        "name": recipe.name,
        "variant": recipe.baseline,
        "seed": recipe.seeds[0],
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "versions": {"python": platform.python_version(), "unforced": __version__, **libraries},
        "device": str(device),
        "threads": torch.get_num_threads(),
        "world": facts["world"],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "examples": {
            split: {"read": len(found) + sum(found.dropped.values()), "kept": len(found), "dropped": found.dropped}
            for split, found in splits.items()
        },
        "facts": dict(facts),
    }
