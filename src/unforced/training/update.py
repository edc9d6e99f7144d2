"""One update: forward and backward over the micro-batches of a global batch, then one step of the optimiser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.objectives.protocol import Objective
from unforced.training.batching import micro_batches
from unforced.training.options import Training
from unforced.training.randomness import generator
from unforced.types import Batch, Loss, Progress

FUSED = ("cpu", "cuda", "mps", "xpu")  # devices with a fused AdamW


class Step(nn.Module):
    """A model and its objective as one module: distributed wrappers and autocast hook ``forward``, and nothing else.

    Under bf16 the whole forward runs in autocast, which caches the casts of the weights until the end. Casts made in
    a no-grad pass carry no gradient, and a later pass that finds them in the cache trains nothing. An objective with
    a no-grad pass in front must therefore call ``torch.clear_autocast_cache()`` behind it (pytorch#112583, #65766).
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Batch, progress: Progress, rng: torch.Generator) -> Loss:
        return self.objective(self.model, batch, progress=progress, rng=rng)


class Measured(NamedTuple):
    """What an update saw: ``sums[name]`` is (sum, count) over the global batch, as [2K + 1] numbers on the device.

    ``names`` are "loss" and the objective's metrics; the last number is the gradient's norm before clipping.
    """

    names: tuple[str, ...]
    numbers: Tensor

    def tables(self) -> tuple[dict[str, tuple[float, float]], float]:
        """The sums by name and the norm, on the host."""
        *pairs, norm = self.numbers.tolist()
        return {name: (pairs[2 * i], pairs[2 * i + 1]) for i, name in enumerate(self.names)}, norm


class Updater:
    """Makes updates. The objective's ``total`` is a sum, so gradients of micro-batches and processes simply add up;
    they are divided once, by the count of the whole global batch:

        g = (Σ_parts ∇ total) / (Σ_parts count), clipped to norm ``clip``

    Every part is given a generator in the same state, a function of the run's seed and the step: an objective draws its
    numbers for each example apart (``unforced.streams``), so that they don't depend on how the batch is dealt out.

    A global batch is given as row numbers into ``lengths`` ([N,2], for dealing rows out evenly); ``collate`` turns
    them into a batch. ``stop`` is added to the sums, so that all processes learn of a signal that one of them got.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        options: Training,
        accelerator: Accelerator,
        collate: Callable[[Sequence[int]], Batch],
        lengths: np.ndarray,
        seed: int,
    ) -> None:
        self.accelerator = accelerator
        self.accumulate = options.accumulate
        self.collate = collate
        self.lengths = lengths
        self.seed = seed
        self.clip = options.clip
        self.module = accelerator.prepare_model(Step(model, objective))
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise InputError("the model has no parameters to train")
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=options.learning_rate,
            betas=options.betas,
            weight_decay=options.weight_decay,
            fused=accelerator.device.type in FUSED,
        )
        self.wide = torch.float32 if accelerator.device.type == "mps" else torch.float64

    def __call__(self, rows: Sequence[int], progress: Progress, rate: float, stop: bool = False) -> Measured:
        """Update the model on a global batch, of which this process sees its part."""
        names, numbers = self.gradients(rows, progress, stop)
        world = self.accelerator.num_processes
        if world > 1:
            numbers = self.accelerator.reduce(numbers, "sum")
        # DistributedDataParallel has averaged the gradients over the processes: undo that
        norm = self.scale_gradients(world / numbers[names.index("loss") * 2 + 1].clamp(min=1))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Measured(names, torch.cat([numbers, norm.to(self.wide).reshape(1)]))

    def gradients(
        self, rows: Sequence[int], progress: Progress, stop: bool = False
    ) -> tuple[tuple[str, ...], Tensor]:
        """Add this process's gradients of ``total`` to ``.grad``; returns names and (sum, count) pairs, flat."""
        parts, idle = self.parts(rows)
        sums: dict[str, Any] = {"stop": (float(stop), 1.0)}
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.module):
                batch = self.collate(part).to(self.accelerator.device)
                loss = self.module(batch, progress, generator(batch.gold.device, self.seed, progress.step))
                loss = nothing(loss) if idle else loss
                self.accelerator.backward(loss.total)
            for name, (total, count) in [("loss", (loss.total.detach(), loss.count)), *loss.metrics.items()]:
                old = sums.get(name, (0.0, 0.0))
                sums[name] = (old[0] + total, old[1] + count)
        names = tuple(sorted(sums))
        return names, torch.stack([self.number(value) for name in names for value in sums[name]])

    def parts(self, rows: Sequence[int]) -> tuple[list[list[int]], bool]:
        """This process's micro-batches, and whether they are not to count.

        Where there are fewer rows than processes, one without any goes through a row of another's, because the others
        wait for its gradients, and adds nothing to them.
        """
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = micro_batches(rows, self.lengths, parts=self.accumulate * world)[rank::world]
        filled = [part for part in mine if part]
        return (filled, False) if filled else ([list(rows[:1])], True)

    def number(self, value: Any) -> Tensor:
        return torch.as_tensor(value, dtype=self.wide, device=self.accelerator.device)

    def scale_gradients(self, scale: Tensor) -> Tensor:
        """Multiply the gradients by ``scale``, then clip them; returns their norm between the two."""
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients) * scale
        if self.clip is not None:
            scale = scale * (self.clip / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(gradients, scale.to(gradients[0].dtype))
        return norm


def nothing(loss: Loss) -> Loss:
    """The loss times zero."""
    return Loss(
        loss.total * 0,
        loss.count * 0,
        {name: (total * 0, count * 0) for name, (total, count) in loss.metrics.items()},
    )
