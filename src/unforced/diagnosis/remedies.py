"""The remedy for each row of a diagnosis, and short trainings that try the most promising ones."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from unforced.diagnosis.subject import Subject
from unforced.errors import InputError
from unforced.metrics.significance import Interval
from unforced.recipes import recipe as recipes
from unforced.training.evaluation import read_split
from unforced.training.loading import fastest_device, load
from unforced.training.progress import Display
from unforced.training.run_folder import RunFolder
from unforced.training.trainer import train

RAW_BEAM = ("decoding.raw_beam.method=beam", "decoding.raw_beam.scores=global", "training.validate=raw_beam")
REMEDIES = {  # row -> the settings to try
    "history": ("objective=parallel_scheduled_sampling",),
    "normalisation": ("objective=soft_beam", "objective.scores=global", "objective.clip=0.1", *RAW_BEAM),
    "search": ("objective=soft_beam", "objective.clip=0.1"),
    "ranking": ("objective=minimum_risk",),
    "confidence": ("objective=token_smoothing",),
}
CONTINUED = "continued"  # the baseline of trials: more training by the run's own objective
MOST = 2  # remedies tried
SHARE = 4  # a trial makes one in this many of the updates of the run
LEAST = 20  # updates of a trial


class Trial(NamedTuple):
    """A remedy, and what it won over continuing the run as it was trained."""

    name: str  # row of the diagnosis
    run: Path
    gain: Interval  # on the development set, positive if better


def promising(found: Mapping[str, Any]) -> list[str]:
    """Return the rows of diagnosis.json with a headroom above zero beyond chance, the largest first.

    ``ranking`` comes after the other rows in points, because its headroom is that of an oracle.
    """
    rows = [name for name in REMEDIES if found[name]["interval"][0] > 0]
    return sorted(rows, key=lambda name: (found[name]["unit"] != "points", name == "ranking", -found[name]["headroom"]))


def command_to_try(name: str, run: Path) -> str:
    """Return the command that continues a run with the remedy for a row."""
    target = run.with_name(f"{run.name}-{name}")
    words = ["unforced", "train", str(run), *REMEDIES[name], f"training.warm_start={run}", "--run", str(target)]
    return shlex.join(words)


def try_remedies(run: str | Path, found: Mapping[str, Any], *, quiet: bool = False) -> list[Trial]:
    """Continue a run by its own objective and by the two most promising remedies, and compare development scores.

    Each trial makes a quarter of the run's updates, in a folder beside the run. Trials that were interrupted are
    resumed, and finished ones are only read.
    """
    folder, display = RunFolder(run), Display(quiet)
    finished = folder.finished()
    if finished is None:
        raise InputError(f"{folder.path}: training has not finished; resume it first")
    steps, rows, trials = max(LEAST, finished["steps"] // SHARE), {}, []
    for name in (CONTINUED, *promising(found)[:MOST]):
        path = folder.path.with_name(f"{folder.path.name}-try-{name}")
        display.say(f"trying {name}: {steps} updates in {path}")
        words = [f"training.warm_start={folder.path}", "training.epochs=none", f"training.steps={steps}"]
        words += ["training.patience=none", f"training.validate_every={max(1, steps // SHARE)}"]
        recipe = recipes.load(folder.path, [*words, *REMEDIES.get(name, ())]).single()
        train(recipe, path, resume=path.exists(), quiet=quiet)
        model, task = load(path, device=fastest_device())
        subject = Subject(model, task, read_split(task, "dev", recipe.training.batch_tokens), seed=recipe.seeds[0])
        outputs = subject.decode(recipe.decoding[recipe.training.validate])
        rows[name] = subject.statistics([each.outputs[0] for each in outputs])
        if name != CONTINUED:
            trials.append(Trial(name, path, subject.gain(rows[name], rows[CONTINUED])))
    return trials
