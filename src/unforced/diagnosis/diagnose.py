"""Diagnose a trained model: run all measurements, and say which remedy could win how much."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from unforced.diagnosis.confidence import measure_confidence
from unforced.diagnosis.history import measure_history
from unforced.diagnosis.normalisation import measure_normalisation
from unforced.diagnosis.ranking import measure_ranking
from unforced.diagnosis.search_errors import measure_search
from unforced.diagnosis.subject import Finding, Subject
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.protocols import FittedTask, SupportsReading
from unforced.recipes import recipe as recipes
from unforced.training.evaluation import spread
from unforced.training.loading import build_network, fastest_device, load
from unforced.training.progress import Display
from unforced.training.run_folder import RunFolder
from unforced.types import Example


class Trained(NamedTuple):
    """A trained model with its task and, if it comes from a run, the folder of the run."""

    model: nn.Module
    task: FittedTask
    run: RunFolder | None = None


@dataclass(frozen=True)
class Diagnosis:
    """What each kind of remedy could win on a trained model."""

    metric: str
    examples: int
    split: str
    seconds: float
    findings: Mapping[str, Finding]
    too_early: str | None  # why training should go on before a remedy is chosen

    def to_json(self) -> dict[str, Any]:
        """Return the content of diagnosis.json."""
        head = {"metric": self.metric, "examples": self.examples, "split": self.split, "seconds": self.seconds}
        return {**head, "too_early": self.too_early, **{name: each.to_json() for name, each in self.findings.items()}}


def open_trained(source: str | Path, overrides: Sequence[str] = (), checkpoint: str = "best") -> Trained:
    """Open a run folder, or a recipe whose model has trained weights, such as ``model=hf:FOLDER``."""
    device, run = fastest_device(), RunFolder(source)
    if run.exists():
        if overrides:
            raise InputError(f"{run.path}: settings such as {overrides[0]} go with a recipe, not with a run folder")
        return Trained(*load(source, checkpoint, device=device), run)
    recipe = recipes.load(source, overrides).single()
    if not isinstance(recipe.model, SupportsReading):
        raise InputError(f"{source}: diagnose needs a trained model: a run folder, or a recipe with model=hf:FOLDER")
    model: Any = recipe.model
    codec = recipe.task.fit(recipe.task.read("train"))
    network = build_network(model, codec).to(device).eval()
    return Trained(network, FittedTask(recipe.task, codec))


def diagnose(
    trained: Trained,
    examples: Sequence[Example] | None = None,
    *,
    split: str = "dev",
    most: int | None = 1000,
    batch_rows: int = 64,
    seed: int = 1,
    quiet: bool = False,
) -> Diagnosis:
    """Measure what each kind of remedy could win on a trained model, without training it.

    The result is written into the folder of a run as diagnosis.json.

    Args:
        examples: Examples with targets that the model was not trained on; by default those of the ``split``.
        most: Number of examples to use, evenly spread; all if None.
    """
    began, task = time.perf_counter(), trained.task
    chosen = spread(task.task.read(split) if examples is None else examples, most)  # type: ignore[arg-type]
    train = [] if trained.run is None else task.task.read("train")
    measures: dict[str, Callable[[Subject], Finding]] = {
        "history": measure_history,
        "normalisation": measure_normalisation,
        "search": measure_search,
        "ranking": measure_ranking,
        "confidence": lambda subject: measure_confidence(subject, train),
    }
    subject, findings = Subject(trained.model, task, chosen, batch_rows, seed), {}
    with evaluation_mode(trained.model), Display(quiet) as display:
        bar = display.bar("diagnosing", total=len(measures))
        for done, (name, measure) in enumerate(measures.items()):
            bar.move(done, note=name)
            findings[name] = measure(subject)
        bar.close()
    metric = subject.metric
    events = [] if trained.run is None else trained.run.events("dev")
    early = still_improving(events, metric.name, metric.higher_is_better)
    found = Diagnosis(metric.name, len(chosen), split, time.perf_counter() - began, findings, early)
    if trained.run is not None:
        trained.run.write_diagnosis(found.to_json())
    return found


def still_improving(events: Sequence[Mapping[str, Any]], metric: str, higher_is_better: bool) -> str | None:
    """Return a sentence if the development score was still rising when training ended.

    It was if the last quarter of the validations brought more than 5 % of the whole gain.

    >>> events = [{"accuracy": score} for score in (10, 40, 60, 70, 80)]
    >>> still_improving(events, "accuracy", True)
    'accuracy was still improving when training ended: train longer first'
    >>> still_improving([*events[:4], {"accuracy": 71}], "accuracy", True) is None
    True
    """
    sign = 1 if higher_is_better else -1
    scores = [sign * event[metric] for event in events if metric in event]
    if len(scores) < 4:
        return None
    before = max(scores[: len(scores) - len(scores) // 4])
    whole, last = max(scores) - scores[0], max(scores) - before
    if last <= 0.05 * whole:
        return None
    return f"{metric} was still improving when training ended: train longer first"
