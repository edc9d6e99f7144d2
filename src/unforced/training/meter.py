"""What updates measured: kept on the device, read as late as possible, checked, and summed for the next log line."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from unforced.errors import InputError
from unforced.training.update import Measured


class Reading(NamedTuple):
    """The numbers of one update on the host; ``stop`` says that a process of the run got a signal."""

    step: int
    epoch: int
    rows: list[int]
    loss: float
    stop: bool


class Meter:
    """Numbers of updates that nobody has looked at yet. A window is ``name -> [sum, count]`` since the last log line."""

    def __init__(self) -> None:
        self.unread: list[tuple[int, int, list[int], Measured]] = []

    def put(self, step: int, epoch: int, rows: list[int], measured: Measured) -> None:
        self.unread.append((step, epoch, rows, measured))

    def read(self, window: dict[str, list[float]]) -> Iterator[Reading]:
        """Give each unread update after adding it to the window; raises ``InputError`` at one that is no number."""
        unread, self.unread = self.unread, []
        for step, epoch, rows, measured in unread:
            sums, norm = measured.tables()
            stop = sums.pop("stop")[0] > 0
            loss = sums["loss"][0] / max(sums["loss"][1], 1.0)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = f"gradient's norm is {norm}" if math.isfinite(loss) else f"loss is {loss}"
                raise InputError(
                    f"the {what} at step {step}, epoch {epoch}, examples {some(rows)};"
                    " training stops, and nothing of this step or later is kept"
                )
            for name, (total, count) in {**sums, "grad_norm": (norm, 1.0)}.items():
                old = window.get(name, [0.0, 0.0])
                window[name] = [old[0] + total, old[1] + count]
            yield Reading(step, epoch, rows, loss, stop)


def means(window: dict[str, list[float]]) -> dict[str, float]:
    """The mean of each; where that of squares is known as well, the variance, too.

    >>> means({"loss": [6.0, 4.0]})
    {'loss': 1.5}
    >>> means({"log_z": [4.0, 2.0], "log_z_squared": [10.0, 2.0]})  # 1 and 3
    {'log_z': 2.0, 'log_z_squared': 5.0, 'log_z_variance': 1.0}
    """
    found = {name: total / max(count, 1.0) for name, (total, count) in window.items()}
    squared = {name: found[f"{name}_squared"] for name in found if f"{name}_squared" in found}
    return found | {
        f"{name}_variance": max(0.0, square - found[name] ** 2) for name, square in squared.items()
    }


def some(rows: Sequence[int], most: int = 50) -> str:
    """Row numbers for a message.

    >>> some([3, 1, 2], most=2)
    '3, 1 and 1 more'
    """
    more = f" and {len(rows) - most} more" if len(rows) > most else ""
    return ", ".join(map(str, rows[:most])) + more
