"""What can be set about training: the ``[training]`` table of a recipe."""

import math
from dataclasses import dataclass
from typing import Literal

from unforced.errors import InputError


@dataclass(frozen=True)
class Training:
    """How long, how fast and on how much at a time a model is trained, and what is kept of it.

    An update is one step of the optimiser over one global batch: what all processes and all ``accumulate``
    micro-batches see together. Changing the number of processes or micro-batches leaves the updates what they were.

    >>> Training(epochs=None, steps=100).batch_tokens
    4096
    >>> Training(warmup=-1)
    Traceback (most recent call last):
    unforced.errors.InputError: warmup must be at least 0, not -1
    """

    epochs: float | None = 10  # passes over the data ...
    steps: int | None = None  # ... and updates: whichever ends first
    batch_tokens: int = 4096  # source and target tokens of a global batch, padding included; images count nothing
    max_rows: int | None = None  # examples in a global batch
    accumulate: int = 1  # micro-batches that a process makes of its part, one after another
    learning_rate: float = 1e-3
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "constant"  # after the warm-up
    warmup: int = 0  # updates in which the learning rate grows from zero
    weight_decay: float = 0.0  # decoupled, as in AdamW
    betas: tuple[float, float] = (0.9, 0.98)
    clip: float | None = 1.0  # bound on the norm of the gradient
    precision: Literal["float32", "bf16"] = "float32"
    validate: str = "greedy"  # which decoder of [decoding] judges on the development set
    validate_every: int | None = None  # updates; None: after each epoch
    dev_examples: int | None = None  # decode only so many, evenly spread over the development set
    patience: int | None = None  # stop after so many validations without improvement, behind the warmup
    keep: int = 2  # newest checkpoints kept, besides the best
    save_every: int | None = None  # updates; checkpoints are always written after a validation
    average: int = 1  # at the end, try the mean of so many last checkpoints as a candidate for the best
    warm_start: str | None = None  # a run folder whose best weights to begin with; "variant:NAME" in a comparison
    log_every: int = 20  # updates
    tensorboard: bool = False
    log_samples: bool = False  # write the example ids of every update to samples.jsonl

    def __post_init__(self) -> None:
        if self.epochs is None and self.steps is None:
            raise InputError("one of epochs and steps must be given, or training never ends")
        for name in ("batch_tokens", "accumulate", "keep", "average", "log_every"):
            self._at_least(name, 1)
        for name in ("steps", "max_rows", "validate_every", "dev_examples", "patience", "save_every"):
            self._at_least(name, 1)
        for name in ("warmup", "weight_decay"):
            self._at_least(name, 0)
        for name in ("epochs", "learning_rate", "clip"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise InputError(f"{name} must be a positive number, not {value}")
        if not math.isfinite(self.weight_decay):
            raise InputError(f"weight_decay must be a finite number, not {self.weight_decay}")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"betas must be two numbers in [0, 1), not {self.betas}")
        if self.schedule not in ("constant", "linear", "cosine", "inverse_sqrt"):
            raise InputError(f"schedule must be constant, linear, cosine or inverse_sqrt, not {self.schedule}")
        if self.precision not in ("float32", "bf16"):
            raise InputError(f"precision must be float32 or bf16, not {self.precision}")
        if self.schedule == "inverse_sqrt" and self.warmup < 1:
            raise InputError("schedule inverse_sqrt needs a warmup of at least 1")

    def _at_least(self, name: str, least: int) -> None:
        value = getattr(self, name)
        if value is not None and not value >= least:
            raise InputError(f"{name} must be at least {least}, not {value}")
