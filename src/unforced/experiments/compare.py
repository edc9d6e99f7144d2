"""Train and score the variants of recipes with every seed, and compare them with the baseline."""

import os
import shlex
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from unforced.errors import InputError
from unforced.experiments.comparison import Comparison, RunState
from unforced.experiments.parallel import Make, execute
from unforced.experiments.plan import Planned, existing_runs, plan
from unforced.experiments.runs import Run
from unforced.experiments.statistics import add_statistics, summarize
from unforced.protocols import ReadsText, SupportsRemarks
from unforced.recipes.recipe import Recipe
from unforced.training.progress import Display
from unforced.training.run_folder import RunFolder, replace_bytes

Publish = Callable[[Path, Comparison, Sequence[Run], bool], Path]  # writes a report that may reload into the folder
PUBLISH_EVERY = 120.0  # seconds


def make_run(run: Planned, quiet: bool) -> None:
    """Train a run or continue it, then decode and score the splits without scores."""
    from unforced.training.evaluation import evaluate, read_split, write_evaluation
    from unforced.training.loading import fastest_device, load
    from unforced.training.trainer import train

    folder = RunFolder(run.folder)
    if folder.finished() is None:
        train(run.recipe, run.folder, resume=run.folder.is_dir() and any(run.folder.iterdir()), quiet=quiet)
    if not (missing := run.unscored()):
        return
    model, fitted = load(run.folder, device=fastest_device(), recipe=run.recipe)
    for split in dict.fromkeys(split for split, _ in missing):
        examples = read_split(fitted, split, run.recipe.training.batch_tokens)
        for decoder in [name for each, name in missing if each == split]:
            method = run.recipe.decoding[decoder]
            final = split == "test"  # expensive metrics are computed on the test split only
            found = evaluate(model, fitted, examples, method, seed=run.seed, quiet=quiet, final=final)
            write_evaluation(folder, split, decoder, method, found, examples, fitted.codec)


def compare(
    recipes: Sequence[Recipe],
    root: Path,
    *,
    jobs: int = 1,
    quiet: bool = False,
    command: str = "",
    publish: Publish | None = None,
    make: Make = make_run,
    samples: int = 1000,
    permutations: int = 10000,
) -> Comparison:
    """Run every variant of the recipes with every seed, and compare them with the first recipe's baseline.

    Runs are kept in ``<root>/<recipe>/<variant>-<seed>``: finished ones are read, interrupted ones continued, and runs
    of a different recipe raise `InputError`. ``comparison.json`` is written to ``<root>/<recipe>/`` (several names are
    joined by +) after every run. A failed run does not stop the others; see `Comparison.failures`.

    Args:
        jobs: Number of runs at a time. With more than one, each is made in a process of its own with its share of the
            threads, and scripts must call this under ``if __name__ == "__main__":``.
        command: The command that repeats the comparison, for the report.
        publish: Called every few minutes, at the end and when interrupted, to write a report.
        make: Trains and scores one run.
    """
    if jobs < 1:
        raise InputError(f"jobs must be at least 1, got {jobs}")
    planned = plan(recipes, root)
    runs = {run: found for run, found in existing_runs(planned).items() if found.finished and not run.unscored()}
    names = [recipe.name for recipe in recipes]
    folder = root / "+".join(names)
    states = {
        run: RunState(
            variant=run.label,
            seed=run.seed,
            folder=Path(os.path.relpath(run.folder, folder)).as_posix(),
            state="finished" if run in runs else "waiting",
        )
        for run in planned
    }
    notes = _notes(planned)
    for recipe in recipes:
        name = "recipe.toml" if len(recipes) == 1 else f"{recipe.name}.toml"
        replace_bytes(folder / name, recipe.to_toml().encode())

    def summary() -> Comparison:
        return summarize(
            [runs[run] for run in planned if run in runs],
            name=folder.name,
            description="; ".join(recipe.description for recipe in recipes if recipe.description),
            command=command or shlex.join(["unforced", "compare", *names, "--root", str(root)]),
            baseline=f"{names[0]}/{recipes[0].baseline}" if len(recipes) > 1 else recipes[0].baseline,
            states=list(states.values()),
            notes=notes,
        )

    def write(comparison: Comparison) -> None:
        replace_bytes(folder / "comparison.json", comparison.to_json().encode())

    def report(comparison: Comparison, running: bool = False) -> None:
        if publish is not None and runs:
            page = publish(folder, comparison, [runs[run] for run in planned if run in runs], running)
            if comparison.complete:
                display.say(f"report: {page}")

    display = Display(quiet)
    if runs:
        display.say(f"{len(runs)} of {len(planned)} runs are finished already")
    result, published = summary(), -PUBLISH_EVERY
    try:
        with closing(execute(planned, make, done=list(runs), jobs=jobs, display=display)) as outcomes:
            for run, failure in outcomes:
                states[run] = replace(states[run], state="failed" if failure else "finished", reason=failure)
                if not failure:
                    runs[run] = Run(run.folder, run.label)
                result = summary()
                write(result)
                if time.monotonic() - published >= PUBLISH_EVERY and not result.complete:
                    report(result, running=True)
                    published = time.monotonic()
        if not runs:
            raise InputError(f"all runs failed; the first one: {states[planned[0]].reason}")
        task = planned[0].recipe.task
        by_source = isinstance(task, ReadsText) and task.reads_text
        found = [runs[run] for run in planned if run in runs]
        result = add_statistics(
            result, found, task.metrics(), samples=samples, permutations=permutations, by_source=by_source
        )
        write(result)
    finally:
        report(result)
    return result


def _notes(planned: Sequence[Planned]) -> list[str]:
    """Return notes on training costs that exclude other variants, and the remarks of the tasks."""
    needed: dict[tuple[str, ...], dict[str, None]] = {}
    for run in planned:
        if run.needs:
            needed.setdefault(run.needs, {})[run.label] = None
    notes = [
        f"training cost of {', '.join(labels)}: without the training of {' and '.join(needs)}, which "
        f"{'it needs' if len(labels) == 1 else 'they need'}."
        for needs, labels in needed.items()
    ]
    tasks = [run.recipe.task for run in planned]
    return notes + list(
        dict.fromkeys(remark for task in tasks if isinstance(task, SupportsRemarks) for remark in task.remarks())
    )
