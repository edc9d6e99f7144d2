"""What training is given, what it remembers and what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import nn

from unforced.decoding.protocol import Decoder
from unforced.objectives.protocol import Objective
from unforced.tasks.protocol import FittedTask
from unforced.training.options import Training
from unforced.types import Examples


@dataclass(frozen=True)
class Job:
    """All that training needs: a model with an objective, data, how to judge, and for how long."""

    model: nn.Module
    objective: Objective
    fitted: FittedTask
    train: Examples
    dev: Examples
    decoder: Decoder  # judges on the development set
    options: Training
    seed: int
    recipe: str = ""  # the resolved recipe, stored as it is
    about: Mapping[str, Any] = field(default_factory=dict)  # added to run.json


@dataclass
class State:
    """How far a run has come; with weights, optimiser and random state, all that a checkpoint holds."""

    step: int = 0  # updates made
    epoch: int = 0  # the next update takes batch ``offset`` of this epoch
    offset: int = 0
    tokens: int = 0  # target tokens trained on
    seconds: float = 0.0  # spent in updates
    validated: int = 0  # step of the last validation
    stale: int = 0  # validations since the best one
    best: dict[str, Any] | None = None  # what best.json says
    window: dict[str, list[float]] = field(default_factory=dict)  # sums and counts since the last log line


class Finished(NamedTuple):
    """How a run ended; ``reason`` is "epochs", "steps" or "patience", ``seconds`` were spent in updates alone."""

    steps: int
    epochs: float
    seconds: float
    tokens: int
    reason: str
    best: dict[str, Any] | None
