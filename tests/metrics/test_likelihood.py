"""Metrics of likelihoods, by hand; and the likelihoods they are given, against enumeration."""

import numpy as np
import pytest
import torch

from unforced.metrics.likelihood import NLL
from unforced.models.transformer import Causal
from unforced.protocols import FittedTask, LikelihoodMetric, Metric
from unforced.tasks.synthetic import Palindromes
from unforced.training.evaluation import evaluate, gold_likelihoods
from unforced.types import Example


def test_perplexity_of_a_fair_die_is_its_number_of_faces() -> None:
    metric = NLL("perplexity", per_token=True)
    rows = metric.likelihood_statistics([(n * np.log(6), n, 0.0, 0.0) for n in (1, 4, 2)])
    assert float(metric.score(rows.sum(axis=0))) == pytest.approx(6)
    assert metric.score(rows) == pytest.approx([6, 6, 6])


def test_the_two_kinds_of_metric_are_told_apart() -> None:
    for metric in (NLL("perplexity", per_token=True), NLL("sequence_nll")):
        assert isinstance(metric, LikelihoodMetric)
        assert not isinstance(metric, Metric)


def small() -> tuple[torch.nn.Module, FittedTask]:
    task = Palindromes(alphabet=3, length=3, size=20, held_out=20)
    codec = task.fit(task.read("train"))
    torch.manual_seed(0)
    spec = Causal(width=8, heads=2, layers=1, feedforward=8, dropout=0.5)
    return spec.build(codec.sizes), FittedTask(task, codec)


def test_probabilities_of_all_strings_sum_to_what_is_not_banned() -> None:
    """27 strings over three letters; the rest of the mass sits on symbols that are never emitted."""
    model, fitted = small()
    letters = [fitted.codec.decode([i])[0] for i in range(3)]
    strings = [Example(None, a + b + c) for a in letters for b in letters for c in letters]
    found = gold_likelihoods(model, fitted, strings, batch_rows=4)
    assert all(each.tokens == 3 for each in found)
    total = sum(np.exp(-each.nll) for each in found)
    assert 0 < total <= 1 + 1e-6
    again = gold_likelihoods(model, fitted, strings, batch_rows=27)
    assert [each.nll for each in again] == pytest.approx([each.nll for each in found], abs=1e-5)
    assert model.training


def test_evaluation_without_outputs() -> None:
    model, fitted = small()
    examples = fitted.task.read("dev")

    def decoder(model: object, batch: object, *, rng: object = None) -> None:
        raise AssertionError("nothing looks at outputs, so nothing should be decoded")

    found = evaluate(model, fitted, examples, decoder, quiet=True, predictions=False)  # type: ignore[arg-type]
    expected = np.mean([each.nll for each in gold_likelihoods(model, fitted, examples)])
    assert found.scores == {"sequence_nll": pytest.approx(expected)}
    assert found.outputs == []
