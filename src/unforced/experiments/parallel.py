"""Runs of a comparison side by side: each in a process of its own, with its share of the cores."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from typing import Any

from rich.text import Text

from unforced.experiments.plan import Planned
from unforced.experiments.runs import Outcome, made
from unforced.training.distributed import catch_signals
from unforced.training.progress import Display

STEP = re.compile(r"step (\d+) of (\d+):")  # how a run tells of its progress where it sees no terminal
PAUSE = 0.2  # seconds between two looks at the processes


class Process:
    """A run that is being made by ``unforced.experiments.child``.

    It is told of the run by its standard input, which stays open: when it ends with this process, the child saves what it has and
    stops. Its answer is one line of JSON on its standard output. What it says on the way is passed on with the run's name before it.
    """

    def __init__(self, run: Planned, threads: int, display: Display) -> None:
        self.run, self.display, self.name = run, display, f"{run.label}-{run.seed}"
        self.now = "begun"  # how far it has come, where there is a bar to show it
        own = {"PYTHONPATH": os.pathsep.join(sys.path)}  # it finds what this process finds, and nothing else
        own |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-m", "unforced.experiments.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=os.environ | own,
            start_new_session=True,  # a terminal's Ctrl-C is for this process, which passes it on once
        )
        assert self.child.stdin is not None
        with suppress(BrokenPipeError):  # it has died already, as its outcome will say
            self.child.stdin.write(told(run, display.quiet).encode() + b"\n")
            self.child.stdin.flush()
        self.listener = threading.Thread(target=self.listen, daemon=True)
        self.listener.start()

    def listen(self) -> None:
        assert self.child.stderr is not None
        with self.child.stderr as lines:
            for line in lines:
                text = line.decode(errors="replace").rstrip()
                step = STEP.match(text)
                if self.display.live and step:
                    self.now = f"{step[1]}/{step[2]}"
                elif text:  # also if quiet: then these are warnings and errors
                    with suppress(OSError, SystemExit):  # nobody reads any more; the run goes on
                        self.display.console.print(Text(f"{self.name}: {text}"), soft_wrap=True)

    def outcome(self) -> Outcome | None:
        """How it ended; None if it has not."""
        code = self.child.poll()
        if code is None:
            return None
        self.listener.join()
        assert self.child.stdout is not None
        assert self.child.stdin is not None
        with self.child.stdout, suppress(BrokenPipeError), self.child.stdin:
            answer = self.child.stdout.read().decode().splitlines()[-1:]
        if answer and answer[0].startswith("{"):  # whatever it may have died of afterwards
            return Outcome(self.run, failure=json.loads(answer[0])["failure"])
        names = {number.value: number.name for number in signal.Signals}
        name = names.get(-code if code < 0 else code - 128)
        return Outcome(
            self.run, failure=f"its process was ended by {name}" if name else f"its process ended with code {code}"
        )

    def stop(self) -> None:
        """Ask it to save and stop, unless it has ended."""
        if self.child.poll() is None:
            self.child.terminate()

    def wait(self) -> None:
        self.child.wait()
        self.listener.join()


def told(run: Planned, quiet: bool) -> str:
    """A planned run as a line of JSON, for the child to read."""
    folder, recipe = str(run.folder), run.recipe.to_toml()
    words = {"label": run.label, "seed": run.seed, "recipe": recipe, "folder": folder, "needs": run.needs}
    return json.dumps({**words, "quiet": quiet})


def side_by_side(
    planned: Sequence[Planned],
    jobs: int,
    state: Callable[[str, int], str],
    begin: Callable[[Planned], None],
    start: Callable[[Planned], Any],
    display: Display,
) -> Generator[Outcome]:
    """Make runs, up to ``jobs`` at a time, each as soon as those it builds on are there, and tell how each ended. Those that others
    build on come first, so that nobody waits for them at the end.

    ``state`` of a label and a seed is "finished", "failed" or neither yet, and is asked anew after each outcome; ``begin`` is
    called before a run is started, ``start`` starts its process. A signal is passed on to all of them; when they have saved and
    stopped it ends this process as well.
    """
    built_on = {(name, run.seed) for run in planned for name in run.needs}
    waiting = sorted(planned, key=lambda run: (run.label, run.seed) not in built_on)
    running = list[Any]()

    def told_of(outcome: Outcome) -> Outcome:
        run, number = outcome.run, len(planned) - len(waiting) - len(running)
        how = f"failed: {outcome.failure}" if outcome.failure else "finished"
        how = how if outcome.news else "was trained before"
        display.say(f"[{number}/{len(planned)}] {run.label}, seed {run.seed}: {how}")
        return outcome

    with catch_signals() as signals, display:
        bar = display.bar("runs", total=len(planned))
        try:
            while waiting or running:
                for run in list(waiting):
                    needs = {name: state(name, run.seed) for name in run.needs}
                    lost = [name for name, each in needs.items() if each == "failed"]
                    ready = all(each == "finished" for each in needs.values())
                    if made(run):
                        waiting.remove(run)
                        yield told_of(Outcome(run, news=False))
                    elif lost:
                        waiting.remove(run)
                        yield told_of(Outcome(run, failure=f"it builds on {lost[0]}, which failed"))
                    elif ready and len(running) < jobs:
                        waiting.remove(run)
                        begin(run)
                        display.say(f"{run.label}, seed {run.seed}: {run.folder}")
                        running.append(start(run))
                time.sleep(PAUSE)
                if signals.received is not None:
                    display.say("stopping: runs that are on their way save what they have learnt")
                    raise SystemExit(signals.exit_code)
                for process in list(running):
                    outcome = process.outcome()
                    if outcome is not None:
                        running.remove(process)
                        yield told_of(outcome)
                done = len(planned) - len(waiting) - len(running)
                bar.move(done, note=", ".join(f"{each.name} {each.now}" for each in running))
        finally:
            for process in running:
                process.stop()
            for process in running:
                process.wait()
            bar.close()
