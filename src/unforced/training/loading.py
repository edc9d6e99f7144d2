"""A trained model and its task, read back from a run folder."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from unforced.errors import InputError, nearest
from unforced.protocols import Codec, FittedTask, ModelSpec, StepDecoder, Task
from unforced.recipes.recipe import Recipe
from unforced.training import checkpoints
from unforced.training.checkpoints import fill_model
from unforced.training.run_folder import RunFolder
from unforced.types import Sizes

OwnModel = nn.Module | ModelSpec | Callable[[Sizes], nn.Module]


class Loaded(NamedTuple):
    """A trained model, ready to decode, and its task with the codec it was trained with."""

    model: nn.Module
    task: FittedTask


def load(
    run: str | Path,
    checkpoint: str = "best",
    model: OwnModel | None = None,
    task: Task | None = None,
    device: str | torch.device = "cpu",
) -> Loaded:
    """The model and the task of a run; ``checkpoint`` is "best", "last" or the name of one (``step-00000120``).

    A run of the user's own model or task needs that model or task again.
    """
    folder = RunFolder(run)
    single = read_recipe(folder)
    own = single.model if model is None else model
    kind = single.task if task is None else task
    if own is None or kind is None:
        what = "model" if own is None else "task"
        raise InputError(f"{folder.path}: was trained with a {what} of your own; load(run, {what}=…) needs it")
    codec = kind.codec(folder.codec())
    with torch.random.fork_rng(devices=[]):  # the first weights are thrown away, so nothing is drawn
        network = build_network(own, codec)
    path = find_checkpoint(folder, checkpoint)
    fill_model(network, checkpoints.read_model(path), str(path))
    return Loaded(network.to(device).eval(), FittedTask(kind, codec))


def fastest_device() -> torch.device:
    """The accelerator of this machine, or else the CPU, with denormal numbers flushed to zero."""
    torch.set_flush_denormal(True)
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def read_recipe(folder: RunFolder) -> Recipe:
    """The recipe that a run folder keeps."""
    text = folder.recipe()
    try:
        return Recipe.from_data(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, InputError) as error:
        raise InputError(f"{folder.path / 'recipe.toml'}: {error}") from None


def find_checkpoint(folder: RunFolder, name: str) -> Path:
    if name == "best":
        return folder.best_checkpoint()
    found = {path.name: path for path in folder.checkpoints()}
    if not found:
        raise InputError(f"{folder.path}: has no checkpoint yet")
    if name == "last":
        return list(found.values())[-1]
    if name not in found:
        raise InputError(f'{folder.path}: has no checkpoint "{name}"; {nearest(name, ["best", "last", *found])}')
    return found[name]


def build_network(own: OwnModel, codec: Codec) -> nn.Module:
    """The module that a user gave or a specification builds, with the protocol's methods or an error that names them."""
    if hasattr(own, "reading") and not hasattr(codec, "tokenizer"):
        raise InputError("this model reads text by its own tokenizer: give model.reading(task) for the task")
    if isinstance(own, nn.Module):
        network: Any = own
    elif isinstance(own, type) or not hasattr(own, "build"):
        network = own(codec.sizes)
    else:
        network = own.build(codec.sizes)
    if not isinstance(network, nn.Module):
        raise InputError(f"a model must be a torch.nn.Module, not {type(network).__name__}")
    needed = [name for name in dir(StepDecoder) if not name.startswith("_") and name != "embed_mix"]  # for some methods
    missing = [name for name in needed if not callable(getattr(network, name, None))]
    if missing and not callable(getattr(network, "scores", None)):
        raise InputError(
            f"{type(network).__name__} has no {', '.join(missing)}: a StepDecoder needs {', '.join(needed)}"
        )
    network.codec = codec  # type: ignore[assignment]  # so that ``batch(model, …)`` works
    return network
