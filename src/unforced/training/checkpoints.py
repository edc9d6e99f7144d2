"""Checkpoints: folders of safetensors and JSON with hashes, written atomically. No pickle is used."""

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import safetensors.torch
import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.training.run_folder import (
    PART,
    STEP,
    RunFolder,
    read_bytes,
    read_json,
    sync_folder,
    writable,
    write_bytes,
)

TENSORS = ("model.safetensors", "optimizer.safetensors", "random.safetensors")  # files of a checkpoint
MANIFEST = "manifest.json"  # the hashes of all its files


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by name; tied weights appear once, under their first name.

    >>> model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "project": nn.Linear(3, 5)})
    >>> model["project"].weight = model["embed"].weight
    >>> list(model_tensors(model))
    ['embed.weight', 'project.bias']
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            raise InputError(f"the state of the model has {name}, which is not a tensor and can't be saved")
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


@torch.no_grad()
def fill_model(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy weights into a model; raise `InputError` with the names and shapes that do not match."""
    own = model_tensors(model)
    wrong = [f"{name} is missing" for name in own if name not in tensors]
    wrong += [f"{name} is not in the model" for name in tensors if name not in own]
    wrong += [
        f"{name} is {list(tensors[name].shape)} instead of {list(own[name].shape)}"
        for name in own
        if name in tensors and tensors[name].shape != own[name].shape
    ]
    if wrong:
        shown = "; ".join(wrong[:8]) + (f"; and {len(wrong) - 8} more" if len(wrong) > 8 else "")
        raise InputError(f"{where}: the weights don't fit the model: {shown}")
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def optimizer_tensors(optimizer: torch.optim.Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimiser's state by parameter name: ``embed.weight/exp_avg`` …"""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def fill_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load what `optimizer_tensors` returned."""
    parameters = dict(model.named_parameters())
    for full, value in tensors.items():
        name, _, key = full.rpartition("/")
        optimizer.state[parameters[name]][key] = value.to(parameters[name].device)


# Writing


class Checkpoint(NamedTuple):
    """Everything that training needs to continue: tensors by name, and plain JSON data."""

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    state: dict[str, Any]


def step_name(step: int) -> str:
    """Return the name of the checkpoint of a step.

    >>> step_name(120)
    'step-00000120'
    """
    return f"{STEP}{step:08d}"


def publish(folder: Path, name: str, checkpoint: Checkpoint) -> Path:
    """Write a checkpoint as ``folder/name``; if this fails, nothing of it is left and older ones are unchanged."""
    target, part, old = folder / name, folder / f"{PART}{name}", folder / f"{PART}old-{name}"
    *tensors, state = checkpoint
    files = {file: safetensors.torch.save(_plain(table)) for file, table in zip(TENSORS, tensors) if table}
    files["state.json"] = json.dumps(state, indent=1).encode()
    hashes = {file: hashlib.sha256(data).hexdigest() for file, data in files.items()}
    files[MANIFEST] = json.dumps({"format": 1, "sha256": hashes}, indent=1).encode()
    try:
        with writable(target):
            folder.mkdir(parents=True, exist_ok=True)
            part.mkdir()
            for file, data in files.items():
                write_bytes(part / file, data)
            sync_folder(part)
            if target.exists():
                os.rename(target, old)
            os.rename(part, target)
            sync_folder(folder)
    except BaseException:
        if old.exists() and not target.exists():
            os.rename(old, target)
        raise
    finally:
        shutil.rmtree(part, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)
    return target


def _plain(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return copies that share no memory, which safetensors needs."""
    contiguous = torch.contiguous_format
    return {name: tensor.detach().cpu().clone(memory_format=contiguous) for name, tensor in tensors.items()}


# Reading


def read(path: Path) -> Checkpoint:
    """Read a checkpoint; raise `InputError` if a file does not match the manifest."""
    files = _verified(path)
    model, optimizer, random = (safetensors.torch.load(files[file]) if file in files else {} for file in TENSORS)
    return Checkpoint(model, optimizer, random, json.loads(files["state.json"]))


def read_model(path: Path) -> dict[str, Tensor]:
    """Read only the weights of a checkpoint."""
    return safetensors.torch.load(_verified(path, TENSORS[0])[TENSORS[0]])


def load_weights(model: nn.Module, path: Path) -> None:
    """Copy the weights of a checkpoint into a model."""
    fill_model(model, read_model(path), str(path))


def _verified(path: Path, *files: str) -> dict[str, bytes]:
    """Return the content of these files, or of all; raise `InputError` if one does not match the manifest."""
    hashes = read_json(path / MANIFEST, {"sha256": {"state.json": str, TENSORS[0]: str, ...: str}})["sha256"]
    content = {file: read_bytes(path / file) for file in files or hashes}
    for file, data in content.items():
        if hashlib.sha256(data).hexdigest() != hashes.get(file):
            raise InputError(f"{path / file}: is damaged (its hash differs from the manifest)")
    return content


def newest(run: RunFolder) -> Path | None:
    """Return the newest undamaged checkpoint, or None if there is no checkpoint.

    Damaged ones are reported in a warning and renamed to ``damaged-…``, so that they are ignored from then on.
    """
    published = run.checkpoints()
    for path in reversed(published):
        try:
            _verified(path)
        except InputError as error:
            warnings.warn(f"{error}; an older checkpoint is used", stacklevel=2)
            continue
        for damaged in published[published.index(path) + 1 :]:
            with writable(damaged):
                aside = damaged.with_name(damaged.name.replace(STEP, "damaged-"))
                shutil.rmtree(aside, ignore_errors=True)
                os.rename(damaged, aside)
        return path
    if published:
        raise InputError(f"{run.path}: all {len(published)} checkpoints are damaged, so the run can't be resumed")
    return None


def rotate(run: RunFolder, keep: int) -> None:
    """Remove all checkpoints except the newest ``keep`` and those that these record as the best."""
    published = run.checkpoints()
    wanted = {path.name for path in published[-keep:]}
    for path in published[-keep:]:
        best = read_json(path / "state.json").get("best")
        wanted.add(best["checkpoint"] if best else "")
    for path in published:
        if path.name not in wanted:
            with writable(path):
                gone = path.with_name(f"{PART}{path.name}")
                os.rename(path, gone)  # not a checkpoint from now on, even if removing its files fails
                shutil.rmtree(gone)


def average(paths: list[Path]) -> dict[str, Tensor]:
    """Return the mean weights of several checkpoints; tensors that are not floating-point come from the last."""
    parts = [read_model(path) for path in paths]
    return {
        name: torch.stack([part[name].double() for part in parts]).mean(dim=0).to(tensor.dtype)
        if tensor.is_floating_point()
        else tensor
        for name, tensor in parts[-1].items()
    }
