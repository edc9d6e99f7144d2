"""Training tells an objective of the vocabulary and of the examples, once."""

import json
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import CopyCodec, copies, job

from unforced.objectives.beam_search_optimization import BeamSearchOptimization
from unforced.objectives.costs import WeightedHamming, WeightedId
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.sequence_smoothing import SequenceSmoothing
from unforced.objectives.soft_beam import SoftBeam
from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.protocols import fitted
from unforced.training.options import Training
from unforced.training.trainer import train
from unforced.types import Batch, Loss, Progress

SEEN: list[tuple[Any, Any]] = []


@dataclass(frozen=True)
class Curious:
    """Remembers what it was told."""

    def fitted(self, codec: Any, examples: Any) -> "Curious":
        SEEN.append((codec, examples))
        return self

    def __call__(self, model: Any, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        return CrossEntropy()(model, batch, progress=progress, rng=rng)


STOP: list[int | None] = [None]


@dataclass(frozen=True)
class Stopping:
    """Another objective, which a signal comes to at step ``STOP``."""

    inner: Any

    def fitted(self, codec: Any, examples: Any) -> "Stopping":
        return Stopping(self.inner.fitted(codec, examples))

    def __call__(self, model: Any, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        if progress.step == STOP[0]:
            signal.raise_signal(signal.SIGTERM)
        return self.inner(model, batch, progress=progress, rng=rng)


def test_an_objective_is_told_once(folder: Path) -> None:
    SEEN.clear()
    made = job(options=Training(steps=2), objective=Curious())
    train(made, folder / "run", quiet=True)
    ((codec, examples),) = SEEN
    assert codec is made.fitted.codec
    assert [example.target for example in examples] == [codec.encode(example).target for example in made.train]


def test_objectives_without_a_wish_stay_as_they_are() -> None:
    objective = CrossEntropy()
    assert fitted(objective, CopyCodec()) is objective


@pytest.mark.parametrize("kind", [SoftBeam, BeamSearchOptimization])
def test_costs_learn_the_vocabulary_through_their_objective(kind: Any) -> None:
    class Tags(CopyCodec):
        def token_names(self) -> tuple[str, ...]:
            return ("<pad>", "<bos>", "<eos>", *self.letters)

    objective = kind(cost=WeightedHamming(token="b", weight=3.0))
    assert fitted(objective, Tags(), []).cost == WeightedId(4, 3.0)  # type: ignore[attr-defined]
    assert objective.fitted(Tags()).cost == WeightedId(4, 3.0)
    assert fitted(kind(), Tags(), []) == kind()


@pytest.mark.parametrize(
    "objective",
    [
        TokenSmoothing(tau=0.1, vectors="co-occurrence", nearest=4),
        SequenceSmoothing(reward="cider", tau=0.1, proposal_tau=0.5, samples=3),
        TokenSequenceSmoothing(
            TokenSmoothing(tau=0.1, vectors="co-occurrence", mix=0.5), SequenceSmoothing(tau=0.4, mix=0.5)
        ),
    ],
    ids=lambda objective: type(objective).__name__,
)
def test_smoothing_is_told_what_it_needs_and_resumes_exactly(objective: Any, folder: Path) -> None:
    weights = []
    for name, stops in (("whole", [None]), ("parts", [4, None])):
        for stop in stops:
            made = job(options=Training(steps=8, log_every=4), objective=Stopping(objective))
            STOP[:] = [stop]
            if stop is None:
                train(made, folder / name, resume=True, quiet=True)
            else:
                with pytest.raises(SystemExit):
                    train(made, folder / name, quiet=True)
        weights.append([parameter.detach().clone() for parameter in made.model.parameters()])
    assert all(map(torch.equal, *weights))
    lines = (folder / "whole" / "metrics.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    assert any("ess" in event or "kl" in event for event in events)


def test_more_examples_change_what_co_occurrence_says() -> None:
    codec = CopyCodec()
    few, many = (
        TokenSmoothing(vectors="co-occurrence").fitted(codec, [codec.encode(e) for e in copies(n, 1)])
        for n in (20, 200)
    )
    assert few.known is not None
    assert many.known is not None
    assert not torch.equal(few.known.near.weights, many.known.near.weights)  # type: ignore[union-attr]
