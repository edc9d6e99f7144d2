"""One optimiser step: the loss of each micro-batch as a sum, and one division of the gradients by the total count."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from unforced.protocols import Objective
from unforced.types import Batch, Loss, Progress


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
