"""The learning rate as a function of the update's number."""

from __future__ import annotations

import math

from unforced.training.options import Training


def learning_rate(options: Training, step: int, total: int) -> float:
    """The rate of update ``step`` (the first is 1) out of ``total``.

    Linear warm-up over w updates, then with s = (step − w) / (total − w): the peak itself, peak · (1 − s),
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
