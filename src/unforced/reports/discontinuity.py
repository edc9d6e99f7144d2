"""A picture of why scheduled sampling is relaxed: its loss jumps along a line in parameter space (DSS, Figure 1)."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from unforced.models.lstm import LSTM
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.reports.figures import Line, Panel, check_format, draw_panels
from unforced.tasks.synthetic import Palindromes
from unforced.types import Batch, Progress

ALPHAS = (1.0, 5.0, 25.0, 125.0)


def plot_discontinuity(path: Path, *, points: int = 601, seed: int = 6) -> Path:
    """Draw the loss of always feeding the model's own tokens, hard and relaxed, along a line through the weights.

    A small LSTM is trained on palindromes of three letters for a few seconds. The line leads through its weights in a
    random direction. The hard loss jumps where an argmax changes. The relaxed losses are continuous, and approach the
    hard one as α grows.
    """
    check_format(path)
    model, batch = train_small_lstm(seed)
    origin = nn.utils.parameters_to_vector(model.parameters()).detach()
    direction = random_direction(model, seed)
    distances = torch.linspace(-0.5, 0.5, points, dtype=origin.dtype)
    objectives = {"hard argmax": ScheduledSampling(feed="argmax", mixing=0.0)}
    for alpha in ALPHAS:
        label = f"soft argmax, α = {alpha:g}"
        objectives[label] = ScheduledSampling(feed="soft_argmax", mixing=0.0, alpha=alpha)
    lines = []
    for label, objective in objectives.items():
        losses = [loss_at(objective, model, batch, origin + float(step) * direction) for step in distances]
        lines.append(Line(label, distances.tolist(), losses))
    title = "a small LSTM that is fed its own tokens"
    return draw_panels([Panel(lines, "distance along a line through the weights", "loss per token", title)], path)


def train_small_lstm(seed: int, updates: int = 150) -> tuple[Any, Batch]:
    """Return a small LSTM trained by cross-entropy, and its training data."""
    task = Palindromes(size=64, length=3)
    codec = task.fit([])
    examples = [codec.encode(example) for example in task.read("train")]
    batch = codec.collate(examples, range(len(examples)))
    torch.manual_seed(seed)
    model = LSTM(hidden=16, embedding=8, dropout=0.0).build(codec.sizes).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for _ in range(updates):
        optimizer.zero_grad()
        CrossEntropy()(model, batch, progress=Progress(), rng=torch.Generator()).mean.backward()
        optimizer.step()
    return model, batch


def random_direction(model: nn.Module, seed: int) -> Tensor:
    """Return a random direction in which the part of each parameter is as long as the parameter."""
    rng = torch.Generator().manual_seed(seed)
    parts = []
    for parameter in model.parameters():
        part = torch.randn(parameter.shape, generator=rng, dtype=parameter.dtype)
        parts.append((part * parameter.norm() / part.norm()).flatten())
    return torch.cat(parts).detach()


@torch.no_grad()
def loss_at(objective: ScheduledSampling, model: nn.Module, batch: Batch, weights: Tensor) -> float:
    """Return the mean loss of the model with these weights."""
    nn.utils.vector_to_parameters(weights, model.parameters())
    found = objective(model, batch, progress=Progress(), rng=torch.Generator().manual_seed(0))  # type: ignore[arg-type]
    return found.mean.item()
