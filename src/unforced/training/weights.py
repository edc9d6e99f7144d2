"""The tensors of a model and its optimiser by name, and back."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from unforced.errors import InputError


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; one that goes by several names (tied weights) is there once, by the first.

    >>> model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "project": nn.Linear(3, 5)})
    >>> model["project"].weight = model["embed"].weight
    >>> list(model_tensors(model))
    ['embed.weight', 'project.bias']
    """
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if not isinstance(tensor, Tensor):
            raise InputError(f"the model keeps {name}, which is no tensor and can't be saved")
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    return tensors


@torch.no_grad()
def fill_model(model: nn.Module, tensors: Mapping[str, Tensor], where: str) -> None:
    """Copy weights into a model; raises ``InputError`` listing the names and shapes that don't match."""
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
    """The optimiser's state by the names of the parameters: ``embed.weight/exp_avg`` …"""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def fill_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Undo ``optimizer_tensors``."""
    parameters = dict(model.named_parameters())
    for full, value in tensors.items():
        name, _, key = full.rpartition("/")
        optimizer.state[parameters[name]][key] = value.to(parameters[name].device)
