"""A model whose ``forward`` can run an objective.

Distributed wrappers and autocast hook ``forward`` and nothing else, and what a trainer saves must be the user's model with its
own names. So the model stays the outermost module, and for the time of training its class is one that has another
``forward``: given an ``update``, that runs the update's objective on the model, and else it does what it always did.
"""

import functools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.huggingface.batches import batch, numbered
from unforced.huggingface.decoder import WrappedDecoder
from unforced.ops.random_streams import generator
from unforced.protocols import Objective
from unforced.types import Loss, Progress

KNOWN = ("input_ids", "attention_mask", "labels", "decoder_input_ids", "token_type_ids")
UNUSED = ("decoder_attention_mask",)  # of collators; padding is seen from the others


class Update:
    """An objective at a moment of training, as the argument of a forward pass.

    It is no tuple and no dataclass: distributed wrappers look for tensors in those, and copy them.
    """

    def __init__(self, wrapped: Any, objective: Objective, progress: Progress, seed: int) -> None:
        self.wrapped, self.objective, self.progress, self.seed = wrapped, objective, progress, seed

    def loss(self, inputs: Mapping[str, Any]) -> Loss:
        """The objective's loss of what a collator gave. Draws depend on the seed, the step and each example alone."""
        given = arguments(self.wrapped, inputs)
        if "labels" not in given and isinstance(self.wrapped, WrappedDecoder):
            raise InputError("the batch has no labels, so there is nothing to learn from it")
        data = numbered(batch(self.wrapped, **given))
        rng = generator(data.gold.device, self.seed, self.progress.step)
        return self.objective(self.wrapped, data, progress=self.progress, rng=rng)


def arguments(wrapped: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    """What ``batch`` takes of a collator's output; what nothing here would look at is an ``InputError``."""
    main = getattr(wrapped.model, "main_input_name", "input_ids")
    if main not in inputs:
        raise InputError(f"the batch has no {main}: it has {', '.join(inputs) or 'nothing'}")
    left = [name for name in inputs if name not in (*KNOWN, *UNUSED, main) and inputs[name] is not None]
    if left:
        raise InputError(f"the batch has {', '.join(left)}, which objectives know nothing of: leave it out of the data")
    found = {name: inputs[name] for name in KNOWN if inputs.get(name) is not None}
    return found | {"input_ids": inputs[main]}


@functools.cache
def learning(kind: type) -> type:
    """The class of a model with a ``forward`` that also takes an ``update``; of the same name, and cached."""

    def forward(self: Any, *args: Any, update: Update | None = None, **inputs: Any) -> Any:
        if update is not None:
            return update.loss(inputs)
        return kind.forward(self, *args, **inputs)  # type: ignore[attr-defined]

    forward = functools.wraps(kind.forward)(forward)  # type: ignore[attr-defined]
    members = {"forward": forward, "__module__": kind.__module__, "__qualname__": kind.__qualname__}
    return type(kind.__name__, (kind,), members)


@contextmanager
def lent(model: nn.Module) -> Iterator[None]:
    """While it lasts, the model's ``forward`` takes an ``update``."""
    kind: Any = type(model)
    model.__class__ = learning(kind)
    try:
        yield
    finally:
        model.__class__ = kind


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """While it lasts, a model that is split over processes is whole in each of them."""
    if not is_split(model):
        yield
        return
    model.unshard()  # type: ignore[operator]
    try:
        yield
    finally:
        model.reshard()  # type: ignore[operator]


def shard(model: nn.Module, **options: Any) -> nn.Module:
    """Split a model's parameters, gradients and optimiser state over all processes (FSDP2), as one unit.

    It is gathered once at the start of a forward pass and stays until its gradients are there: methods that go step by step
    take as many steps as their examples are long, so processes can't meet at every layer of every step. ``options`` are those of
    ``torch.distributed.fsdp.fully_shard``.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    if not torch.distributed.is_initialized():
        raise InputError("a model is split over processes, and there is but one: start it by torchrun")
    if options.get("mesh") is None:
        found = None if torch.distributed.get_backend() == "gloo" else torch.accelerator.current_accelerator()
        kind = "cpu" if found is None else found.type
        options["mesh"] = init_device_mesh(kind, (torch.distributed.get_world_size(),))
    fully_shard(model, **{"reshard_after_forward": False, **options})
    vars(model)["_is_distributed_loading_by_transformers"] = True  # so that trainers don't wrap it again
    return model


def is_split(model: nn.Module) -> bool:
    """Whether ``shard`` has split the model."""
    return hasattr(model, "unshard") and hasattr(model, "reshard")


def whole_state(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a model that is split, put together in the main process; all processes must call this."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    found: Any = get_model_state_dict(model, options=options)
    return dict(found)
