"""Options of training: the ``[training]`` table of a recipe."""

import math
from dataclasses import dataclass
from typing import Literal

from unforced.errors import InputError
from unforced.options import Count, Fraction, Natural, NonNegative, Options, Positive


@dataclass(frozen=True)
class Training(Options):
    """How long and how fast a model is trained, and what is kept of it.

    An update is one step of the optimiser over one global batch: the examples of all processes and all ``accumulate``
    micro-batches together. The number of processes or micro-batches does not change the updates.
    """

    epochs: Positive | None = 10  # passes over the data
    steps: Count | None = None  # updates; training ends with `epochs` if they end before (none: only `steps` count)
    batch_tokens: Count = 4096  # source and target tokens of a global batch, padding included; images count nothing
    max_rows: Count | None = None  # examples in a global batch
    accumulate: Count = 1  # micro-batches into which each process splits its part
    learning_rate: Positive = 1e-3  # of AdamW, after the warm-up
    schedule: Literal["constant", "linear", "cosine", "inverse_sqrt"] = "constant"  # after the warm-up
    warmup: Natural = 0  # updates in which the learning rate grows from zero
    weight_decay: NonNegative = 0.0  # decoupled, as in AdamW
    betas: tuple[Fraction, Fraction] = (0.9, 0.98)  # of AdamW: decay rates of its two running means
    clip: Positive | None = 1.0  # maximum norm of the gradient
    precision: Literal["float32", "bf16"] = "float32"  # of the forward pass; weights are float32
    validate: str = "greedy"  # the decoder of [decoding] that is used on the development set
    validate_every: Count | None = None  # updates between validations; None: after each epoch
    dev_examples: Count | None = None  # decode only this many, evenly spread over the development set
    patience: Count | None = None  # stop after this many validations without improvement, not counting the warm-up
    keep: Count = 2  # newest checkpoints kept, in addition to the best
    save_every: Count | None = None  # updates between checkpoints; each validation writes one too
    average: Count = 1  # at the end, try the mean of this many last checkpoints as a candidate for the best
    # run folder whose best weights to start from; "variant:NAME" is the run of that variant with the same seed
    warm_start: str | None = None
    log_every: Count = 20  # updates between lines of metrics.jsonl
    tensorboard: bool = False  # also write TensorBoard logs
    log_samples: bool = False  # write the example ids of every update to samples.jsonl

    def check(self) -> None:
        if self.epochs is None and self.steps is None:
            raise InputError("set epochs or steps, or training never ends")
        if self.schedule == "inverse_sqrt" and self.warmup < 1:
            raise InputError("schedule inverse_sqrt needs a warmup of at least 1")


def learning_rate(options: Training, step: int, total: int) -> float:
    """Return the learning rate of update ``step`` (the first is 1) out of ``total``.

    After a linear warm-up over w updates, with s = (step − w) / (total − w): the peak itself, peak · (1 − s),
    peak · (1 + cos πs) / 2, or peak · √(w / step). Linear and cosine reach zero just after the last update.

    >>> options = Training(learning_rate=1.0, schedule="linear", warmup=2)
    >>> [round(learning_rate(options, step, total=6), 2) for step in range(1, 7)]
    [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]
    """
    peak, warmup = options.learning_rate, options.warmup
    if step <= warmup:
        return peak * step / warmup
    done = (step - warmup) / (total - warmup + 1)
    if options.schedule == "linear":
        return peak * (1 - done)
    if options.schedule == "cosine":
        return peak * (1 + math.cos(math.pi * done)) / 2
    if options.schedule == "inverse_sqrt":
        return peak * math.sqrt(warmup / step)
    return peak
