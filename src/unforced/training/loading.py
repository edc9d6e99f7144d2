"""Load the trained model of a run folder, with its task."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from unforced.errors import InputError, nearest
from unforced.models.modes import evaluation_mode
from unforced.options import checked, show
from unforced.protocols import Codec, FittedTask, MaskedModel, ModelSpec, SupportsReading, Task, TokenizerIds
from unforced.recipes.recipe import Recipe
from unforced.training.checkpoints import load_weights
from unforced.training.run_folder import RunFolder
from unforced.types import Batch, DecoderState, Sizes

OwnModel = nn.Module | ModelSpec | Callable[[Sizes], nn.Module]
REQUIRED = ("start", "embed", "advance", "score")  # methods of a StepDecoder; only some objectives need embed_mix


class Loaded(NamedTuple):
    """A trained model, ready to decode, and its task with the codec that the model was trained with."""

    model: nn.Module
    task: FittedTask


@checked
def load(
    run: str | Path,
    checkpoint: str = "best",
    model: OwnModel | None = None,
    task: Task | None = None,
    device: str | torch.device = "cpu",
    recipe: Recipe | None = None,
) -> Loaded:
    """Load the model and the task of a run.

    ``checkpoint`` is "best", "last" or a name such as ``step-00000120``. Pass ``model`` or ``task`` if the run was
    trained with a model or a task of your own. ``recipe`` is that of the run, which is read if not given.
    """
    folder = RunFolder(run)
    if recipe is None:
        recipe = read_recipe(run)
    own = recipe.model if model is None else model
    kind = recipe.task if task is None else task
    if own is None or kind is None:
        what = "model" if own is None else "task"
        raise InputError(f"{folder.path}: was trained with a {what} of your own; load(run, {what}=…) needs it")
    try:
        codec = kind.codec(folder.codec())
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{folder.path / 'codec.json'}: is from another task ({error!r})") from None
    with torch.random.fork_rng(devices=[]):  # the initial weights are replaced, so no random numbers are used up
        network = build_network(own, codec)
    load_weights(network, find_checkpoint(folder, checkpoint))
    return Loaded(network.to(device).eval(), FittedTask(kind, codec))


def fastest_device() -> torch.device:
    """Return the accelerator of this machine, or the CPU with denormal numbers flushed to zero."""
    torch.set_flush_denormal(True)
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def read_recipe(run: str | Path) -> Recipe:
    """Return the recipe of a run folder."""
    folder = RunFolder(run)
    folder.info()  # raises an error for runs of other versions
    try:
        return Recipe.from_data(folder.recipe())
    except InputError as error:
        where = str(folder.path / "recipe.toml")
        raise InputError(f"{'' if where in str(error) else f'{where}: '}{error}") from None


def find_checkpoint(folder: RunFolder, name: str) -> Path:
    """Return the folder of the checkpoint "best", "last" or of this name."""
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


def check_outputs(network: nn.Module, batch: Batch, size: int) -> None:
    """Raise `InputError` if a user's network fails on a batch, or does not score ``size`` tokens at each position."""
    name, asked = type(network).__name__, tuple(batch.prefix.shape)
    step_decoder: Any = network
    try:
        with evaluation_mode(network), torch.no_grad(), torch.random.fork_rng(devices=[]):
            if isinstance(network, MaskedModel):
                scores = network.scores(batch, batch.gold, batch.mask)
            else:
                state = step_decoder.start(batch)
                features, state = step_decoder.advance(state, step_decoder.embed(batch.prefix))
                scores = step_decoder.score(features)
                if not isinstance(state, DecoderState):
                    raise InputError(f"{name}.advance must return features and a DecoderState, got {show(state)}")
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{name} fails on training examples: {type(error).__name__}: {error}") from error
    if tuple(scores.shape) != (*asked, size):
        raise InputError(
            f"{name} must score all {size} tokens of the vocabulary: the scores of a batch of {asked[0]} examples and "
            f"{asked[1]} positions must have the shape {[*asked, size]}, got {list(scores.shape)}"
        )


def load_frozen(folder: str, like: nn.Module) -> nn.Module:
    """Return a copy of ``like`` with the best weights of a run, in evaluation mode and without gradients."""
    frozen = copy.deepcopy(like)
    load_weights(frozen, RunFolder(folder).best_checkpoint())
    return frozen.eval().requires_grad_(False)


def build_network(own: OwnModel, codec: Codec) -> nn.Module:
    """Return the network of a module, a class, a function or a specification; raise `InputError` if methods are
    missing.
    """
    if isinstance(own, SupportsReading) and not isinstance(codec, TokenizerIds):
        raise InputError("this model has its own tokenizer: pass model.reading(task) as the task")
    network: Any
    if isinstance(own, nn.Module):
        network = own
    elif isinstance(own, ModelSpec) and not isinstance(own, type):
        network = own.build(codec.sizes)
    else:
        network = own(codec.sizes)
    if not isinstance(network, nn.Module):
        raise InputError(f"a model must be a torch.nn.Module, not {type(network).__name__}")
    missing = [name for name in REQUIRED if not callable(getattr(network, name, None))]
    if missing and not isinstance(network, MaskedModel):
        raise InputError(
            f"{type(network).__name__} has no {', '.join(missing)}: a StepDecoder needs {', '.join(REQUIRED)}"
        )
    vars(network)["codec"] = codec  # so that unforced.batch(model, …) works
    return network
