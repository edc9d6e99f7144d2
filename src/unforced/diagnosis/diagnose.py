"""Diagnose a trained model: run all measurements, and say in one table which remedy could win how much."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from unforced.diagnosis.confidence import measure_confidence
from unforced.diagnosis.history import measure_history
from unforced.diagnosis.normalisation import measure_normalisation
from unforced.diagnosis.ranking import measure_ranking
from unforced.diagnosis.search_errors import measure_search
from unforced.diagnosis.subject import Finding, Subject
from unforced.models.modes import evaluation_mode
from unforced.protocols import FittedTask
from unforced.training.evaluation import spread
from unforced.training.progress import Display
from unforced.types import Example

REMEDIES = {  # name of a finding -> the objective to try, as words of a command
    "history": "objective=parallel_scheduled_sampling",
    "normalisation": "objective=soft_beam objective.scores=global objective.clip=0.1",
    "search": "objective=soft_beam objective.clip=0.1",
    "ranking": "objective=minimum_risk",
    "confidence": "objective=token_smoothing",
}


@dataclass(frozen=True)
class Diagnosis:
    """What each kind of remedy could win on a trained model."""

    metric: str
    examples: int
    split: str
    seconds: float
    findings: dict[str, Finding]
    too_early: str | None = None  # why training should go on before a remedy is chosen

    def to_json(self) -> dict[str, Any]:
        """Return the content of diagnosis.json."""
        head = {"metric": self.metric, "examples": self.examples, "split": self.split, "seconds": self.seconds}
        head["too_early"] = self.too_early
        return head | {name: finding.to_json() for name, finding in self.findings.items()}


def diagnose(
    model: nn.Module,
    task: FittedTask,
    examples: Sequence[Example],
    *,
    split: str = "dev",
    train: Sequence[Example] = (),
    most: int | None = 1000,
    events: Sequence[dict[str, Any]] = (),
    batch_rows: int = 64,
    seed: int = 1,
    quiet: bool = False,
) -> Diagnosis:
    """Measure what each kind of remedy could win on a trained model, without training.

    Args:
        examples: Examples with targets that the model was not trained on.
        split: Their name, for the record.
        train: Training examples, to compare the likelihood of both.
        most: Number of examples to use, at even distances; all if None.
        events: Lines of metrics.jsonl, which show whether the model was still improving.
    """
    began = time.perf_counter()
    chosen = spread(examples, most)
    measures: dict[str, Callable[[Subject], Finding]] = {
        "history": measure_history,
        "normalisation": measure_normalisation,
        "search": measure_search,
        "ranking": measure_ranking,
        "confidence": lambda subject: measure_confidence(subject, list(train)),
    }
    findings = {}
    subject = Subject(model, task, chosen, batch_rows, seed)
    with evaluation_mode(model), Display(quiet) as display:
        bar = display.bar("diagnosing", total=len(measures))
        for done, (name, measure) in enumerate(measures.items()):
            bar.move(done, note=name)
            findings[name] = measure(subject)
        bar.close()
    metric, seconds = subject.metric, time.perf_counter() - began
    early = still_improving(events, metric.name, metric.higher_is_better)
    return Diagnosis(metric.name, len(chosen), split, seconds, findings, early)


def still_improving(events: Sequence[dict[str, Any]], metric: str, higher_is_better: bool) -> str | None:
    """Return a sentence if the development score was still rising when training ended.

    It was if the last quarter of the validations brought more than 5 % of the whole gain.

    >>> events = [{"kind": "dev", "step": step, "accuracy": score} for step, score in enumerate([10, 40, 60, 70, 80])]
    >>> still_improving(events, "accuracy", True)
    'accuracy was still improving when training ended: train longer first'
    >>> still_improving(events[:4] + [{"kind": "dev", "step": 5, "accuracy": 71}], "accuracy", True) is None
    True
    """
    sign = 1 if higher_is_better else -1
    scores = [sign * event[metric] for event in events if event.get("kind") == "dev" and metric in event]
    if len(scores) < 4:
        return None
    before = max(scores[: len(scores) - max(1, len(scores) // 4)])
    whole, last = max(scores) - scores[0], max(scores) - before
    if whole <= 0 or last <= 0.05 * whole:
        return None
    return f"{metric} was still improving when training ended: train longer first"
