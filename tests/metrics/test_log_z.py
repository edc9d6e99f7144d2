"""Mean and variance of the log normaliser: by hand, against the scores themselves, and as metrics of tasks."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unforced.decoding.greedy import Greedy
from unforced.metrics.likelihood import LogZ
from unforced.metrics.significance import interval
from unforced.models.lstm import LSTM
from unforced.protocols import FittedTask, LikelihoodMetric, LikelihoodRow, Metric, Task
from unforced.tasks.pairs import Pairs
from unforced.tasks.tagging import Tagging
from unforced.tasks.text import Dialogue, Summarization, Translation
from unforced.training import evaluation
from unforced.training.evaluation import evaluate, gold_likelihoods

FIXTURES = Path(__file__).parent.parent / "fixtures"
PAIRS = Pairs(train=str(FIXTURES / "text_pairs.tsv"), hold_out=0.2, log_z=True)
CONLL = {split: str(FIXTURES / "tagging" / f"{split}.conll") for split in ("train", "dev", "test")}
TAGGING = Tagging(**CONLL, tag_column=2, comment_prefix="# text", min_count=1, log_z=True)  # type: ignore[arg-type]
TASKS = [pytest.param(PAIRS, id="pairs"), pytest.param(TAGGING, id="tagging")]


def rows_of(values: list[list[float]]) -> list[LikelihoodRow]:
    """What examples with these log Z at their tokens are described by; the likelihood plays no part."""
    return [(7.0, len(of), sum(of), sum(z * z for z in of)) for of in values]


def small(task: Task) -> tuple[Any, FittedTask]:
    codec = task.fit(task.read("train"))
    torch.manual_seed(0)
    return LSTM(hidden=8, embedding=8, dropout=0.5).build(codec.sizes), FittedTask(task, codec)


def direct(model: Any, fitted: FittedTask) -> list[np.ndarray]:
    """log Z at each gold token of each development example, one example at a time."""
    model.eval()
    found = []
    for example in fitted.task.read("dev"):
        batch = fitted.batch([example], device="cpu")
        with torch.no_grad():
            features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
            found.append(torch.logsumexp(model.score(features).double(), dim=-1)[0].numpy())
    return found


def test_a_known_set() -> None:
    values = [[1.0, 2.0], [-3.0], [4.0, 4.0, 1.5]]
    flat = np.concatenate(values)
    for metric, expected in ((LogZ("mean"), flat.mean()), (LogZ("variance"), flat.var())):
        rows = metric.likelihood_statistics(rows_of(values))
        assert float(metric.score(rows.sum(axis=0))) == pytest.approx(expected)
        assert metric.score(rows) == pytest.approx([{"log_z_mean": np.mean, "log_z_variance": np.var}[metric.name](of) for of in values])  # fmt: skip


def test_statistics_add_up() -> None:
    values = [[1.0, 2.0], [-3.0], [4.0, 4.0, 1.5]]
    for metric in (LogZ("mean"), LogZ("variance")):
        assert isinstance(metric, LikelihoodMetric)
        assert not isinstance(metric, Metric)
        apart = metric.likelihood_statistics(rows_of(values)).sum(axis=0)
        joined = metric.likelihood_statistics(rows_of([[z for of in values for z in of]])).sum(axis=0)
        assert apart == pytest.approx(joined)
        assert metric.likelihood_statistics([]).shape == (0, 3)
        assert float(metric.score(np.zeros(3))) == 0


def test_equal_values_have_no_variance() -> None:
    metric = LogZ("variance")
    score = float(metric.score(metric.likelihood_statistics(rows_of([[0.1 + 20] * 7] * 9)).sum(axis=0)))
    assert 0 <= score < 1e-10


def test_intervals_hold_the_score() -> None:
    draw = np.random.default_rng(0)
    values = [list(draw.normal(3.0, 2.0, size=5)) for _ in range(400)]
    for metric, true in ((LogZ("mean"), 3.0), (LogZ("variance"), 4.0)):
        low, high = interval(metric.score, metric.likelihood_statistics(rows_of(values)), samples=200)
        assert low < true < high
        assert high - low < 0.8


@pytest.mark.parametrize("task", TASKS)
def test_likelihoods_carry_the_sums(task: Task) -> None:
    model, fitted = small(task)
    found = gold_likelihoods(model, fitted, task.read("dev"), batch_rows=3)
    expected = direct(model, fitted)
    assert [each.tokens for each in found] == [len(of) for of in expected]
    assert [each.log_z for each in found] == pytest.approx([of.sum() for of in expected], rel=1e-5)
    squares = [float((of**2).sum()) for of in expected]
    assert [each.log_z_squared for each in found] == pytest.approx(squares, rel=1e-5)


@pytest.mark.parametrize("task", TASKS)
def test_a_task_reports_them(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the task's own metrics, from one pass over the gold, and the same whatever the batches."""
    passes: list[int] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        passes.append(1)
        return gold_likelihoods(*arguments, **options)

    monkeypatch.setattr(evaluation, "gold_likelihoods", counted)
    model, fitted = small(task)
    examples = task.read("dev")
    whole = evaluate(model, fitted, examples, Greedy(), quiet=True)
    assert len(passes) == 1
    assert len(whole.outputs) == len(examples)
    assert list(whole.scores)[-2:] == ["log_z_mean", "log_z_variance"]
    assert next(iter(whole.scores)) in ("bleu", "f1")
    flat = np.concatenate(direct(model, fitted))
    assert whole.scores["log_z_mean"] == pytest.approx(flat.mean(), rel=1e-5)
    assert whole.scores["log_z_variance"] == pytest.approx(flat.var(), rel=1e-3)
    single = evaluate(model, fitted, examples, Greedy(), batch_rows=1, quiet=True)
    assert single.scores == pytest.approx(whole.scores, rel=1e-3)


@pytest.mark.parametrize("cls", [Translation, Dialogue, Summarization])
def test_every_task_on_text_can_report_them(cls: Any) -> None:
    plain = [metric.name for metric in cls().metrics()]
    more = [metric.name for metric in cls(log_z=True).metrics()]
    assert more == [*plain, "log_z_mean", "log_z_variance"]
    assert "log_z_mean" not in plain
