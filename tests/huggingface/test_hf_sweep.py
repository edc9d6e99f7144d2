"""Every architecture of transformers that can be built tiny, with the methods of its kind.

`tools/model_kinds.py` makes a table of what these tests find.
"""

import contextlib
import signal
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import MAPPINGS, Architecture, build, names_of
from trainer_cases import arguments

import unforced
from unforced.errors import InputError
from unforced.huggingface.parts import one_line
from unforced.objectives import (
    CrossEntropy,
    LabelSmoothing,
    MaskedLM,
    MinimumRisk,
    ParallelScheduledSampling,
    PseudoLikelihood,
    ScheduledSampling,
    SoftBeam,
)
from unforced.types import Progress

pytestmark = pytest.mark.slow
METHODS: dict[str, Any] = {
    "cross_entropy": CrossEntropy(),
    "label_smoothing": LabelSmoothing(),
    "parallel_scheduled_sampling": ParallelScheduledSampling(p=0.5),
    "scheduled_sampling": ScheduledSampling(mixing=0.5, feed="sample"),
    "soft_beam": SoftBeam(beam=2, alpha=1.0),
    "minimum_risk": MinimumRisk(samples=2, max_length=4),
}
MASKED_METHODS: dict[str, Any] = {
    "cross_entropy": CrossEntropy(),
    "masked_lm": MaskedLM(),
    "pseudo_likelihood": PseudoLikelihood(),
}
# how many architectures a method must train: fewer would mean that something broke
AT_LEAST = {
    "encoder-decoder": {"cross_entropy": 33, "minimum_risk": 31},
    "causal": {"cross_entropy": 155, "minimum_risk": 140},
    "masked": {"cross_entropy": 45, "masked_lm": 43},
    "speech": {"cross_entropy": 12, "minimum_risk": 10},
    "image-text": {"cross_entropy": 60, "minimum_risk": 55},
}


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def stop(*_: Any) -> None:
        raise TimeoutError(f"more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def outcome(found: Architecture, kind: str, objective: Any, folder: Path) -> str:
    """Train with the objective; return "" if it works, else what the error says."""
    try:
        trainer = unforced.UnforcedTrainer(
            objective=objective, model=found.model, args=arguments(folder), train_dataset=[found.inputs],
            wrapping={"mask": 3, "banned": (1, 2)} if kind == "masked" else {"start": 1, "pad": 0, "eos": 2},
        )  # fmt: skip
        step = trainer.step_module()
        batch = trainer.training_batch(found.inputs)
        loss = step(batch, Progress(0, 0.0, 10), torch.Generator().manual_seed(0))
        found.model.zero_grad()
        (loss.total / loss.count.clamp(min=1)).backward()
    except InputError as error:
        return str(error)
    assert loss.total.isfinite()
    grads = [parameter.grad for parameter in found.model.parameters() if parameter.grad is not None]
    assert any(grad.abs().sum() > 0 for grad in grads)
    assert all(grad.isfinite().all() for grad in grads)
    if isinstance(objective, CrossEntropy):
        expected = float(found.model(**found.inputs)["loss"].detach())
        assert float(loss.mean.detach()) == pytest.approx(expected, rel=2e-4, abs=2e-4)
    return ""


def reason(message: str, name: str) -> str:
    """The part of an error's message that holds for other classes, too."""
    return message.replace(name, "the model").split(": ")[0]


@pytest.mark.parametrize("kind", MAPPINGS)
def test_every_architecture(kind: str, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
    """Each method trains, or an `InputError` says what is missing; cross-entropy always equals the model's own loss."""
    methods = MASKED_METHODS if kind == "masked" else METHODS
    trained: dict[str, list[str]] = {method: [] for method in methods}
    not_built, missing, wrong = [], defaultdict(list), []
    for key, name in names_of(kind):
        with torch.random.fork_rng(devices=[]), time_limit(60):
            made = build(key, name, kind)
            if isinstance(made, str):
                not_built.append(key)
                print(f"{kind} {key} is not built: {made}")
                continue
            if kind == "masked" and made.model.config.is_encoder_decoder:
                continue  # counted as an encoder-decoder
            for method, objective in methods.items():
                try:
                    failure = outcome(made, kind, objective, tmp_path)
                except Exception as error:
                    wrong.append(f"{key} {method}: {type(error).__name__}: {one_line(error)}")
                    continue
                if failure:
                    missing[reason(failure, name)].append((key, method))
                else:
                    trained[method].append(key)
    counts = {method: len(keys) for method, keys in trained.items()}
    found = {"kind": kind, "trained": counts, "not_built": not_built, "missing": dict(missing)}
    record_property("sweep", found)
    assert not wrong, "\n".join(wrong)
    assert len(trained["cross_entropy"]) == max(counts.values())
    assert all(counts[method] >= least for method, least in AT_LEAST[kind].items())
