"""Options of training: the ``[training]`` table of a recipe."""

from dataclasses import dataclass
from typing import Literal

from unforced.errors import InputError
from unforced.options import Count, Fraction, Natural, NonNegative, Options, Positive


@dataclass(frozen=True)
class Training(Options):
    """How long, how fast and on how much at a time a model is trained, and what is kept of it.

    An update is one step of the optimiser over one global batch: what all processes and all ``accumulate``
    micro-batches see together. Changing the number of processes or micro-batches leaves the updates what they were.

    >>> Training(epochs=None, steps=100).batch_tokens
    4096
    >>> Training(warmup=-1)
    Traceback (most recent call last):
    unforced.errors.InputError: warmup must be at least 0, got -1
    """

    epochs: Positive | None = 10  # passes over the data ...
    steps: Count | None = None  # ... and updates: whichever ends first
    batch_tokens: Count = 4096  # source and target tokens of a global batch with padding; images count nothing
    max_rows: Count | None = None  # examples in a global batch
    accumulate: Count = 1  # micro-batches that a process makes of its part, one after another
    learning_rate: Positive = 1e-3
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "constant"  # after the warm-up
    warmup: Natural = 0  # updates in which the learning rate grows from zero
    weight_decay: NonNegative = 0.0  # decoupled, as in AdamW
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)
    clip: Positive | None = 1.0  # bound on the norm of the gradient
    precision: Literal["float32", "bf16"] = "float32"
    validate: str = "greedy"  # which decoder of [decoding] judges on the development set
    validate_every: Count | None = None  # updates; None: after each epoch
    dev_examples: Count | None = None  # decode only so many, evenly spread over the development set
    patience: Count | None = None  # stop after so many validations without improvement, behind the warmup
    keep: Count = 2  # newest checkpoints kept, besides the best
    save_every: Count | None = None  # updates; checkpoints are always written after a validation
    average: Count = 1  # at the end, try the mean of so many last checkpoints as a candidate for the best
    # a run folder whose best weights to begin with; "variant:NAME" in a comparison
    warm_start: str | None = None
    log_every: Count = 20  # updates
    tensorboard: bool = False
    log_samples: bool = False  # write the example ids of every update to samples.jsonl

    def check(self) -> None:
        if self.epochs is None and self.steps is None:
            raise InputError("one of epochs and steps must be given, or training never ends")
        if self.schedule == "inverse_sqrt" and self.warmup < 1:
            raise InputError("schedule inverse_sqrt needs a warmup of at least 1")
