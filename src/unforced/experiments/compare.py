"""Train the variants of recipes with every seed, evaluate each with every decoder, and say which is better."""

import os
import shlex
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

from unforced.errors import InputError
from unforced.experiments.comparison import Comparison, RunState, State
from unforced.experiments.parallel import Process, side_by_side
from unforced.experiments.plan import Planned, check_data, check_folders, check_references, plan
from unforced.experiments.runs import Outcome, Score, Train, made, make, reason, score_run
from unforced.experiments.statistics import judge
from unforced.experiments.summary import summarize
from unforced.protocols import SupportsRemarks
from unforced.recipes.recipe import Recipe
from unforced.reports.page import write_report
from unforced.reports.runs import Run, read_run
from unforced.reports.tables import print_comparison
from unforced.training.progress import Display
from unforced.training.run_folder import RunFolder, replace_bytes
from unforced.training.trainer import train as training


def compare(
    recipes: Sequence[Recipe],
    root: Path,
    *,
    jobs: int = 1,
    quiet: bool = False,
    table: bool = True,
    command: str = "",
    train: Train | None = None,
    score: Score | None = None,
    samples: int = 1000,
    permutations: int = 10000,
) -> Comparison:
    """Run every variant of the recipes with every seed, and compare them with the first recipe's baseline.

    Runs go to ``<root>/<recipe>/<variant>-<seed>``. Finished ones are kept, interrupted ones continued, and those that
    another recipe made are an ``InputError``. The comparison and the report are written after every run, to
    ``<root>/<recipe>/`` (names joined by + where there are several recipes). A run that fails is noted and leaves the
    others alone: see ``Comparison.failures``.

    With ``jobs`` that many runs are made at a time, each in a process of its own and with its share of the threads; one run's scores
    are the same as by itself with as many threads.

    Progress goes to standard error unless ``quiet``, the table to standard output if ``table``. ``command`` is what the
    report says to repeat the comparison; ``train`` and ``score`` stand in for the real ones in tests, with one job.
    """
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, not {jobs}")
    if jobs > 1 and os.environ.get("WORLD_SIZE", "1") != "1":
        raise InputError("several jobs start processes of their own, so they can't be run below torchrun")
    if jobs > 1 and (train or score):
        raise InputError("functions can't be handed to other processes: train and score are for one job")
    planned = plan(recipes, Path(root))
    check_folders(planned)
    check_references(planned)
    check_data(planned)
    display = Display(quiet)
    record = Record(recipes, planned, Path(root), command)
    if jobs == 1:
        outcomes = in_turn(planned, train or training, score or score_run, record, display)
    else:
        import torch

        threads = max(1, torch.get_num_threads() // jobs)
        start = partial(Process, threads=threads, display=display)
        outcomes = side_by_side(planned, jobs, record.state, record.begin, start, display)
    with closing(outcomes):  # an error here stops what is running there
        for outcome in outcomes:
            record.end(outcome)
            if outcome.news:
                record.write(record.summary())
    if all(state.state == "failed" for state in record.states):
        raise InputError(f"all runs failed; the first one: {record.states[0].reason}")
    task = planned[0].recipe.task
    result = judge(
        record.summary(),
        record.runs(),
        task.metrics(),
        samples=samples,
        permutations=permutations,
        sources=getattr(task, "reads_text", False),
    )
    page = record.write(result)
    if table:
        print_comparison(result)
    display.say(f"report: {page}")
    return result


def in_turn(
    planned: Sequence[Planned], train: Train, score: Score, record: "Record", display: Display
) -> Generator[Outcome]:
    """Make one run after another in this process, and tell how each ended."""
    for number, run in enumerate(planned, start=1):
        display.say(f"[{number}/{len(planned)}] {run.label}, seed {run.seed}: {run.folder}")
        if made(run):
            display.say("  was trained before")
            yield Outcome(run, news=False)
            continue
        failure = ""
        try:
            if failed := [name for name in run.needs if record.state(name, run.seed) == "failed"]:
                raise InputError(f"it builds on {failed[0]}, which failed")
            record.begin(run)
            make(run, train, score, display.quiet)
        except Exception as error:
            failure = reason(error)
            display.say(f"{run.label}, seed {run.seed} failed: {error}")
            if not isinstance(error, InputError):
                display.console.print_exception()
        yield Outcome(run, failure=failure)


class Record:
    """What is known of a comparison so far, and the files that tell of it."""

    def __init__(self, recipes: Sequence[Recipe], planned: Sequence[Planned], root: Path, command: str) -> None:
        names = [recipe.name for recipe in recipes]
        self.name = "+".join(names)
        self.folder = root / self.name
        self.description = "; ".join(recipe.description for recipe in recipes if recipe.description)
        self.baseline = f"{names[0]}/{recipes[0].baseline}" if len(recipes) > 1 else recipes[0].baseline
        self.command = command or shlex.join(["unforced", "compare", *names, "--root", str(root)])
        self.recipes = {
            "recipe.toml" if len(recipes) == 1 else f"{recipe.name}.toml": recipe.to_toml() for recipe in recipes
        }
        self.planned = planned
        self.states = [
            RunState(run.label, run.seed, Path(os.path.relpath(run.folder, self.folder)).as_posix()) for run in planned
        ]

    def begin(self, run: Planned) -> None:
        self.mark(run, "unfinished")

    def end(self, outcome: Outcome) -> None:
        self.mark(outcome.run, "failed" if outcome.failure else "finished", outcome.failure)

    def mark(self, run: Planned, state: State, reason: str = "") -> None:
        i = self.planned.index(run)
        self.states[i] = replace(self.states[i], state=state, reason=reason)

    def state(self, label: str, seed: int) -> State:
        return next(state.state for state in self.states if (state.variant, state.seed) == (label, seed))

    def runs(self) -> list[Run]:
        """The runs that have ended well, in the order of the recipes' variants and seeds."""
        return [
            read_run(run.folder, run.label)
            for run, state in zip(self.planned, self.states)
            if state.state == "finished"
        ]

    def summary(self) -> Comparison:
        summary = summarize(
            self.runs(),
            name=self.name,
            description=self.description,
            command=self.command,
            baseline=self.baseline,
            states=self.states,
        )
        built: dict[tuple[str, ...], dict[str, None]] = {}
        for run in self.planned:
            if run.needs:
                built.setdefault(run.needs, {})[run.label] = None
        notes = [
            f"cost of {', '.join(labels)}: without the training of {' and '.join(needs)}, on which "
            f"{'it builds' if len(labels) == 1 else 'they build'}."
            for needs, labels in built.items()
        ]
        tasks = [run.recipe.task for run in self.planned]
        notes += dict.fromkeys(
            remark for task in tasks if isinstance(task, SupportsRemarks) for remark in task.remarks()
        )
        return replace(summary, notes=tuple(notes))

    def write(self, comparison: Comparison) -> Path:
        """Write comparison.json, the recipes with all their variants, and the report; returns the report's path."""
        for name, text in self.recipes.items():
            replace_bytes(self.folder / name, text.encode())
        replace_bytes(self.folder / "comparison.json", comparison.to_json().encode())
        page = self.folder / "report.html"
        if any(RunFolder(run.folder).exists() for run in self.planned):
            write_report([self.folder], page)
        return page
