"""Progress on standard error: bars on a terminal, a line an event elsewhere, nothing when quiet."""

from collections.abc import MutableSequence
from types import TracebackType
from typing import ClassVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.text import Text


class Display:
    """What a person sees of a run.

    >>> with Display(quiet=True) as display:
    ...     bar = display.bar("training", total=10)
    ...     bar.move(3, note="loss 1.25")
    """

    steps: "ClassVar[MutableSequence[int] | None]" = None  # gets updates made and planned, to show in another process

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.quiet = quiet
        self.console = console or Console(stderr=True)
        self.live = not quiet and (self.console.is_terminal or self.steps is not None)
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()

    def bar(self, name: str, total: int, done: int = 0) -> "Bar":
        """A new bar for ``total`` pieces of work."""
        steps = self.steps if name == "training" else None
        return Bar(self._progress, self._progress.add_task(name, total=total, completed=done, note=""), total, steps)

    def say(self, text: str) -> None:
        """A line that stays."""
        if not self.quiet:
            self.console.print(Text(text), soft_wrap=True)  # paths stay whole

    def log(self, text: str) -> None:
        """A line for those who see no bars."""
        if not self.live:
            self.say(text)


class Bar:
    """One piece of work in progress."""

    def __init__(self, progress: Progress, task: TaskID, total: int, steps: MutableSequence[int] | None = None) -> None:
        self._progress = progress
        self._task = task
        self._total, self._steps = total, steps

    def move(self, done: int, note: str | None = None) -> None:
        """Say how much is done, and a word about it."""
        self._progress.update(self._task, completed=done)
        if self._steps is not None:
            self._steps[:] = [done, self._total]
        if note is not None:
            self._progress.update(self._task, note=note)

    def close(self) -> None:
        self._progress.remove_task(self._task)
