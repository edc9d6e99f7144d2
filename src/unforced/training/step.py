"""One optimiser step: the loss of each micro-batch as a sum, and one division of the gradients by the total count."""

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.objectives.schedules import schedules_of
from unforced.protocols import HasUnit, Objective
from unforced.types import Batch, Loss, Progress

FEW = 0.02  # with a smaller share of the model's own tokens, training is nearly teacher forcing


class ObjectiveStep(nn.Module):
    """A model and an objective as one module, whose ``forward`` returns the loss of a micro-batch.

    Distributed wrappers and autocast hook ``forward``, so every pass through the model must happen inside of it. Call
    ``backward`` on ``Loss.total``, a sum, for each micro-batch, and `scale_gradients` once after the last one.

    Under bf16, autocast caches the casts of the weights until ``forward`` returns. Casts made in a no-grad pass carry
    no gradient. An objective that starts with such a pass must call ``torch.clear_autocast_cache()`` after it
    (pytorch#112583, pytorch#65766).
    """

    def __init__(self, model: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.model = model
        self.objective = objective

    def forward(self, batch: Batch, progress: Progress, rng: torch.Generator) -> Loss:
        return self.objective(self.model, batch, progress=progress, rng=rng)


def scale_gradients(parameters: Iterable[nn.Parameter], count: Tensor, processes: int = 1) -> None:
    """Divide the gradients of a sum by its ``count`` over all micro-batches and processes.

    Distributed wrappers average gradients over the processes; the factor ``processes`` restores the sum. The result is
    exactly the gradient of ``total / count``, however the batch was split.
    """
    _multiply(_gradients(parameters), processes / count.clamp(min=1))


def scale_and_clip_gradients(
    parameters: Iterable[nn.Parameter], count: Tensor, processes: int = 1, clip: float | None = None
) -> Tensor:
    """Scale the gradients and bound their norm by ``clip`` in one multiplication; return the norm before clipping."""
    gradients, scale = _gradients(parameters), processes / count.clamp(min=1)
    norm = nn.utils.get_total_norm(gradients) * scale
    if clip is not None:
        scale = scale * (clip / (norm + 1e-6)).clamp(max=1.0)
    _multiply(gradients, scale)
    return norm


def _gradients(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _multiply(gradients: list[Tensor], scale: Tensor) -> None:
    if gradients:
        torch._foreach_mul_(gradients, scale.to(gradients[0].dtype))


class Watch:
    """Stop a training in which nothing is scored, and warn if it hardly feeds the model's own tokens.

    Schedules in fractions of the training are trusted, because their warm-up ends in every training.
    """

    def __init__(self, objective: Objective) -> None:
        units = {schedule.unit for schedule in schedules_of(objective).values() if isinstance(schedule, HasUnit)}
        self.warns = units != {"fraction"}
        self.updates = 0  # since the last check, with what they summed up
        self.sums: dict[str, tuple[Any, Any]] = {}

    def add(self, planned: int, metrics: Mapping[str, tuple[Any, Any]]) -> None:
        """Add the sums and counts of an update, those of ``loss`` included; check them after a tenth of the training.

        ``planned`` is the number of updates of the training.
        """
        self.updates += 1
        for name in metrics.keys() & {"loss", "fed"}:
            total, count = self.sums.get(name, (0.0, 0.0))
            self.sums[name] = (total + metrics[name][0], count + metrics[name][1])
        tenth = min(planned, max(10, planned // 10))
        if self.updates not in (tenth, min(tenth, 100)):  # nothing in 100 updates is enough to stop
            return
        if float(self.sums["loss"][1]) == 0:
            raise InputError(
                f"nothing was scored in {self.updates} updates: the targets are empty or have special tokens only, as "
                "when a tokenizer does not fit its model"
            )
        if self.updates < tenth:
            return
        fed, inputs = map(float, self.sums.get("fed", (1.0, 1.0)))
        if self.warns and fed < FEW * inputs:
            self.warns = False
            warnings.warn(
                f"only {fed / inputs:.1%} of the inputs were the model's own tokens in a tenth of the training, so the "
                'method is nearly cross-entropy: feed them earlier, or use a schedule with unit = "fraction"',
                stacklevel=2,
            )
        self.updates, self.sums = 0, {}
