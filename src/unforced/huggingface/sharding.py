"""Models that are split over processes by FSDP2, and the step that runs an objective on them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.huggingface.decoder import WrappedModel
from unforced.training.step import ObjectiveStep
from unforced.types import Batch, Loss, Progress


def shard(model: nn.Module, **options: Any) -> nn.Module:
    """Split a model's parameters, gradients and optimizer state over all processes (FSDP2), as one unit.

    The model is gathered once at the start of a forward pass and stays gathered until the gradients are computed.
    Methods that go step by step take as many steps as their examples are long, so processes cannot meet at every
    layer of every step. ``options`` are passed to ``torch.distributed.fsdp.fully_shard``.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    if not torch.distributed.is_initialized():
        raise InputError("shard needs several processes: start the script with torchrun and create the arguments first")
    if options.get("mesh") is None:
        found = None if torch.distributed.get_backend() == "gloo" else torch.accelerator.current_accelerator()
        kind = "cpu" if found is None else found.type
        options["mesh"] = init_device_mesh(kind, (torch.distributed.get_world_size(),))
    fully_shard(model, **{"reshard_after_forward": False, **options})
    vars(model)["call_gathered"] = _call  # FSDP gathers only for methods that are registered
    register_fsdp_forward_method(model, "call_gathered")
    vars(model)["_is_distributed_loading_by_transformers"] = True  # so that trainers do not wrap it again
    return model


def _call(function: Callable[..., Any], *inputs: Any) -> Any:
    return function(*inputs)


class ShardedStep(ObjectiveStep):
    """An `ObjectiveStep` for a model that `shard` has split: it runs while the model is gathered."""

    def forward(self, batch: Batch, progress: Progress, rng: torch.Generator) -> Loss:
        split: Any = self.model.model if isinstance(self.model, WrappedModel) else self.model
        found: Loss = split.call_gathered(super().forward, batch, progress, rng)
        return found


def is_sharded(model: nn.Module) -> bool:
    """Return whether `shard` has split the model."""
    return "call_gathered" in vars(model)


@contextmanager
def gathered(model: Any) -> Iterator[None]:
    """Gather a model that `shard` has split in each process; do nothing for other models."""
    if not is_sharded(model):
        yield
        return
    model.unshard()
    try:
        yield
    finally:
        model.reshard()


def full_state_dict(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights of a split model in the main process; all processes must call this."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    found: Any = get_model_state_dict(model, options=options)
    return dict(found)
