"""The logs of a run: metrics.jsonl always, samples.jsonl and TensorBoard on request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from unforced.errors import InputError
from unforced.training.files import LineLog
from unforced.training.options import Training


class Logs:
    """Open logs, cut back to the ``sizes`` that a checkpoint remembers (nothing, where it remembers none)."""

    def __init__(self, folder: Path, options: Training, sizes: Mapping[str, int], step: int) -> None:
        self.metrics = LineLog(folder / "metrics.jsonl", sizes.get("metrics.jsonl", 0))
        self.samples = None
        if options.log_samples:
            self.samples = LineLog(folder / "samples.jsonl", sizes.get("samples.jsonl", 0))
        self.board = _board(folder / "tensorboard", step) if options.tensorboard else None

    def event(self, event: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl; its numbers go to TensorBoard as ``kind/name``."""
        self.metrics.append(event)
        if self.board is not None:
            for name, value in event.items():
                if isinstance(value, int | float) and name != "step":
                    self.board.add_scalar(f"{event['kind']}/{name}", value, event["step"])

    def sample(self, step: int, epoch: int, rows: Sequence[int]) -> None:
        """Which examples an update saw."""
        if self.samples is not None:
            self.samples.append({"step": step, "epoch": epoch, "ids": list(rows)})

    def sync(self) -> dict[str, int]:
        """Bring all to the disk; returns the sizes by name."""
        if self.board is not None:
            self.board.flush()
        return {log.path.name: log.sync() for log in (self.metrics, self.samples) if log is not None}

    def close(self) -> None:
        self.metrics.close()
        if self.samples is not None:
            self.samples.close()
        if self.board is not None:
            self.board.close()


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "training.tensorboard needs TensorBoard: pip install 'unforced[tensorboard]', or leave it off"
        ) from None
    return SummaryWriter(str(folder), purge_step=step + 1)
