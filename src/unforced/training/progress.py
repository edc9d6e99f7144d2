"""What a run reports: progress on standard error, metrics.jsonl, samples.jsonl and TensorBoard."""

import io
import time
from collections.abc import Mapping, MutableSequence, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text

from unforced.errors import InputError, standard_error, write_error
from unforced.training.options import Training
from unforced.training.run_folder import LineLog

EVERY = 10.0  # seconds between lines of progress


class ErrorStream(io.TextIOBase):
    """Standard error as a stream that never fails: writing progress must not end a run."""

    def write(self, text: str) -> int:
        write_error(text)
        return len(text)

    def isatty(self) -> bool:
        stream = standard_error()
        isatty = getattr(stream, "isatty", None)  # standard error may be any object that writes
        return isatty is not None and bool(isatty())

    @property
    def encoding(self) -> str:  # type: ignore[override]  # rich draws bars with the characters that it allows
        stream = standard_error()
        return getattr(stream, "encoding", None) or "utf-8"


class Display:
    """Progress on standard error: bars on a terminal, lines elsewhere, nothing if ``quiet``.

    >>> with Display(quiet=True) as display:
    ...     bar = display.bar("training", total=10)
    ...     bar.move(3, note="loss 1.25")
    """

    steps: "ClassVar[MutableSequence[int] | None]" = None  # gets updates made and planned, to show in another process

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.console = Console(file=ErrorStream())  # type: ignore[arg-type]  # a stream without a file
        self.live = not quiet and (self.console.is_terminal or self.steps is not None)
        self._next_line = time.monotonic() + EVERY
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeRemainingColumn(),
            console=self.console,
            refresh_per_second=4,
            disable=quiet or not self.console.is_terminal,
            transient=True,
        )

    def __enter__(self) -> "Display":
        self._progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._progress.stop()

    def bar(self, name: str, total: int, done: int = 0) -> "Bar":
        """Add a bar for ``total`` units of work."""
        steps = self.steps if name == "training" else None
        return Bar(self._progress, self._progress.add_task(name, total=total, completed=done, note=""), total, steps)

    def say(self, text: str) -> None:
        """Print a line."""
        if not self.quiet:
            self.console.print(Text(text), soft_wrap=True)  # soft: paths are not broken

    def log(self, text: str) -> None:
        """Print a line if no bars are shown."""
        if not self.live:
            self.say(text)

    def line_due(self) -> bool:
        """Return whether to print a line of progress: every 10 seconds, if no bars are shown."""
        now = time.monotonic()
        if self.quiet or self.live or now < self._next_line:
            return False
        self._next_line = now + EVERY
        return True


class Bar:
    """A progress bar."""

    def __init__(self, progress: Progress, task: TaskID, total: int, steps: MutableSequence[int] | None = None) -> None:
        self._progress = progress
        self._task = task
        self._total, self._steps = total, steps

    def move(self, done: int, note: str = "") -> None:
        """Show how many units are done, with a note."""
        self._progress.update(self._task, completed=done, note=note)
        if self._steps is not None:
            self._steps[:] = [done, self._total]

    def close(self) -> None:
        self._progress.remove_task(self._task)


def duration(seconds: float) -> str:
    """Write a time for a reader.

    >>> duration(7.4), duration(200), duration(4000)
    ('7 s', '3 min', '1 h 7 min')
    """
    minutes = round(seconds / 60)
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


class RunLog:
    """The open log files of a run, truncated to the ``sizes`` that a checkpoint remembers."""

    def __init__(self, folder: Path, options: Training, sizes: Mapping[str, int], step: int) -> None:
        self.files = {
            name: LineLog(folder / name, sizes.get(name, 0))
            for name in (["metrics.jsonl", "samples.jsonl"] if options.log_samples else ["metrics.jsonl"])
        }
        self.board = _tensorboard(folder / "tensorboard", step) if options.tensorboard else None

    def __enter__(self) -> "RunLog":
        return self

    def __exit__(self, *exception: object) -> None:
        with ExitStack() as stack:
            for file in self.files.values():
                stack.callback(file.close)
            if self.board is not None:
                stack.callback(self.board.close)

    def event(self, event: Mapping[str, Any]) -> None:
        """Write a line of metrics.jsonl, and its numbers to TensorBoard as ``kind/name``."""
        self.files["metrics.jsonl"].append(event)
        if self.board is not None:
            for name, value in event.items():
                if isinstance(value, int | float) and name != "step":
                    self.board.add_scalar(f"{event['kind']}/{name}", value, event["step"])

    def sample(self, step: int, epoch: int, rows: Sequence[int]) -> None:
        """Write which examples an update used, if ``log_samples`` is set."""
        if "samples.jsonl" in self.files:
            self.files["samples.jsonl"].append({"step": step, "epoch": epoch, "ids": list(rows)})

    def sync(self) -> dict[str, int]:
        """Flush everything to disk; return the size of each file."""
        if self.board is not None:
            self.board.flush()
        return {name: file.sync() for name, file in self.files.items()}


def _tensorboard(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "training.tensorboard needs TensorBoard: pip install 'unforced[tensorboard]', or turn it off"
        ) from None
    return SummaryWriter(str(folder), purge_step=step + 1)
