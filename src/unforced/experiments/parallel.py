"""Run the runs of a comparison, one after another or several at a time in processes of their own."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Collection, Generator, MutableSequence, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait

from rich.text import Text

from unforced.errors import InputError, plain_warnings, write_error
from unforced.experiments.plan import Planned
from unforced.training.distributed import catch_signals
from unforced.training.progress import Display

Make = Callable[[Planned, bool], None]  # trains and scores a run, quietly if the second argument is true
PAUSE = 0.2  # seconds between checks of signals


def execute(
    planned: Sequence[Planned], make: Make, *, done: Collection[Planned] = (), jobs: int = 1, display: Display
) -> Generator[tuple[Planned, str]]:
    """Make the runs that are not ``done``, up to ``jobs`` at a time; yield each when it has ended, and why it failed.

    A run starts after those that it needs; if one of these fails, it fails too. With one job, runs are made in this
    process. With several, each is made in a process of its own, with its share of the threads. SIGTERM and SIGINT are
    passed on to these processes; when they have saved their checkpoints, this process exits as well.
    """
    failures = {(run.label, run.seed): "" for run in done}  # of the runs that have ended
    waiting = [run for run in planned if run not in done]

    def failed_need(run: Planned) -> str:
        failed = [label for label in run.needs if failures.get((label, run.seed))]
        return f"it needs {failed[0]}, which failed" if failed else ""

    def end(run: Planned, failure: str) -> tuple[Planned, str]:
        failures[run.label, run.seed] = failure
        state = f"failed: {failure}" if failure else "finished"
        display.say(f"[{len(failures)}/{len(planned)}] {run.label}, seed {run.seed}: {state}")
        return run, failure

    if jobs == 1:
        for run in waiting:
            display.say(f"{run.label}, seed {run.seed}: {run.folder}")
            yield end(run, failed_need(run) or attempt(make, run, display.quiet))
        return
    needed = {(label, run.seed) for run in waiting for label in run.needs}
    waiting.sort(key=lambda run: (run.label, run.seed) not in needed)  # runs that others need come first
    running: list[Worker] = []
    with catch_signals() as signals, display:
        bar = display.bar("runs", total=len(planned), done=len(failures))
        try:
            while waiting or running:
                for run in list(waiting):
                    if failure := failed_need(run):
                        waiting.remove(run)
                        yield end(run, failure)
                    elif len(running) < jobs and all((label, run.seed) in failures for label in run.needs):
                        waiting.remove(run)
                        display.say(f"{run.label}, seed {run.seed}: {run.folder}")
                        running.append(Worker(run, make, jobs, display))
                wait([worker.process.sentinel for worker in running], timeout=PAUSE)
                if signals.received is not None:
                    display.say("stopping: the runs save their checkpoints")
                    raise SystemExit(signals.exit_code)
                for worker in [worker for worker in running if not worker.process.is_alive()]:
                    running.remove(worker)
                    yield end(worker.run, worker.close())
                bar.move(len(failures), note=", ".join(worker.progress() for worker in running))
        finally:
            for worker in running:
                worker.process.terminate()
            for worker in running:
                worker.close()
            bar.close()


def attempt(make: Make, run: Planned, quiet: bool) -> str:
    """Make a run and return why it failed, or an empty text."""
    try:
        make(run, quiet)
    except InputError as error:
        return " ".join(str(error).split())
    except Exception as error:
        write_error(traceback.format_exc())
        return " ".join(str(error).split()) or type(error).__name__
    return ""


# One process a run


class Worker:
    """A process that makes one run. What it prints is printed here, after the name of the run."""

    def __init__(self, run: Planned, make: Make, jobs: int, display: Display) -> None:
        import torch

        self.run, self.display, self.name = run, display, f"{run.label}-{run.seed}"
        context = multiprocessing.get_context("spawn")
        self.steps = context.RawArray("q", 2)  # updates made and planned
        self.result, result = context.Pipe(duplex=False)
        output, printed = context.Pipe(duplex=False)
        threads = max(1, torch.get_num_threads() // jobs)
        words = (make, run, display.quiet, threads, self.steps if display.live else None, result, printed)
        self.process = context.Process(target=_work, args=words, name=self.name)
        self.process.start()
        result.close()
        printed.close()
        self.forwarder = threading.Thread(target=self._forward, args=(output,), daemon=True)
        self.forwarder.start()

    def progress(self) -> str:
        made, planned = self.steps
        return f"{self.name} {made}/{planned}" if planned else self.name

    def close(self) -> str:
        """Wait for the end of the process, and return why it failed or an empty text."""
        self.process.join()
        self.forwarder.join()
        with self.result, suppress(EOFError):
            failure: str = self.result.recv()
            return failure
        code = self.process.exitcode or 0
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(-code if code < 0 else code - 128)
        return f"its process was ended by {name}" if name else f"its process ended with code {code}"

    def _forward(self, output: Connection) -> None:
        with os.fdopen(os.dup(output.fileno()), "rb") as lines, output:
            for line in lines:
                if text := line.decode(errors="replace").rstrip():
                    self.display.console.print(Text(f"{self.name}: {text}"), soft_wrap=True)


def _work(
    make: Make,
    run: Planned,
    quiet: bool,
    threads: int,
    steps: MutableSequence[int] | None,
    result: Connection,
    printed: Connection,
) -> None:
    """Make a run in a process of its own."""
    import torch

    os.setsid()  # a Ctrl-C in the terminal reaches the parent alone, which passes it on
    for stream in (1, 2):
        os.dup2(printed.fileno(), stream)
    printed.close()
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    Display.steps = steps
    with plain_warnings():
        result.send(attempt(make, run, quiet))


def _stop_with_parent() -> None:
    """Save and stop, as after SIGTERM, when the parent process ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    nowhere = os.open(os.devnull, os.O_WRONLY)  # writing to a closed pipe would be an error
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.kill(os.getpid(), signal.SIGTERM)
