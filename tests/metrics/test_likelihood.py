"""Likelihoods and log Z as metrics: by hand, against enumeration and against objectives."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unforced.decoding.greedy import Greedy
from unforced.energy.mask_predict import MaskPredict
from unforced.errors import InputError
from unforced.experiments.compare import compare
from unforced.metrics.likelihood import NLL, LogZ, check_measures
from unforced.models.field import Field
from unforced.models.lstm import LSTM
from unforced.models.masked import Masked
from unforced.models.transformer import Causal
from unforced.objectives.exact_likelihood import ExactLikelihood
from unforced.objectives.masked_lm import MaskedLM
from unforced.objectives.pseudo_likelihood import PseudoLikelihood
from unforced.protocols import FittedTask, LikelihoodRow, Task
from unforced.recipes.recipe import load
from unforced.tasks.pairs import Pairs
from unforced.tasks.synthetic import Palindromes
from unforced.tasks.tagging import Tagging
from unforced.training import evaluation
from unforced.training.evaluation import evaluate, gold_likelihoods
from unforced.types import Example, Progress

# Models that predict the next token


def test_perplexity_of_a_fair_die_is_its_number_of_faces() -> None:
    metric = NLL("perplexity", per_token=True)
    rows = metric.likelihood_statistics([(n * np.log(6), n, 0.0, 0.0) for n in (1, 4, 2)])
    assert float(metric.score(rows.sum(axis=0))) == pytest.approx(6)
    assert metric.score(rows) == pytest.approx([6, 6, 6])
    assert metric.score_range == (1.0, np.inf)


def small_causal() -> tuple[torch.nn.Module, FittedTask]:
    task = Palindromes(alphabet=3, length=3, size=20, held_out=20)
    codec = task.fit(task.read("train"))
    torch.manual_seed(0)
    spec = Causal(width=8, heads=2, layers=1, feedforward=8, dropout=0.5)
    return spec.build(codec.sizes), FittedTask(task, codec)


def test_probabilities_of_all_strings_sum_to_the_mass_that_is_not_banned() -> None:
    """27 strings over three letters; the rest of the mass sits on symbols that are never emitted."""
    model, fitted = small_causal()
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
    model, fitted = small_causal()
    examples = fitted.task.read("dev")

    def decoder(model: object, batch: object, *, rng: object = None) -> None:
        raise AssertionError("nothing looks at outputs, so nothing should be decoded")

    found = evaluate(model, fitted, examples, decoder, quiet=True, predictions=False)  # type: ignore[arg-type]
    expected = np.mean([each.nll for each in gold_likelihoods(model, fitted, examples)])
    assert found.scores == {"sequence_nll": pytest.approx(expected)}
    assert found.outputs == []


# Masked models

ALL: Any = ("nll", "pseudo_nll", "masked_nll")


def small_masked(spec: Any, measures: Any = ALL) -> tuple[Any, FittedTask]:
    task = Palindromes(alphabet=3, length=3, size=20, held_out=20, measures=measures)
    codec = task.fit(task.read("train"))
    torch.manual_seed(0)
    return spec.build(codec.sizes), FittedTask(task, codec)


SPECS = {
    "field": Field(hidden=8, embedding=6),
    "masked": Masked(width=8, heads=2, layers=1, feedforward=8, dropout=0.5),
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_exact_probabilities_sum_to_one(spec: Any) -> None:
    model, fitted = small_masked(spec)
    strings = [Example(None, "".join(letters)) for letters in product("abc", repeat=3)]
    found = list(gold_likelihoods(model, fitted, strings, batch_rows=7))
    assert sum(np.exp(-each.nll) for each in found) == pytest.approx(1, abs=1e-4)
    assert {each.tokens for each in found} == {3}
    assert model.training


def test_a_guess_of_the_length_counts() -> None:
    """p(T) p(y | T), where the model has a table of lengths: here 1, 2, 3 and 4, equally likely at first."""
    model, fitted = small_masked(Field(hidden=8, embedding=6, lengths=4))
    strings = [Example(None, "".join(letters)) for letters in product("abc", repeat=3)]
    found = list(gold_likelihoods(model, fitted, strings))
    assert sum(np.exp(-each.nll) for each in found) == pytest.approx(1 / 4, abs=1e-4)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_metrics_are_what_objectives_minimise(spec: Any) -> None:
    model, fitted = small_masked(spec)
    examples = fitted.task.read("dev")
    found = evaluate(model, fitted, examples, MaskPredict(iterations=2), quiet=True)
    assert list(found.scores) == ["sequence_nll", "pseudo_nll", "masked_nll"]
    assert len(found.outputs) == 20
    assert all(len(output) == 3 for output in found.outputs)
    batch = fitted.batch(examples, device="cpu")
    objectives: dict[str, Any] = {
        "sequence_nll": ExactLikelihood(),
        "pseudo_nll": PseudoLikelihood(),
        "masked_nll": MaskedLM(hidden="each"),
    }
    model.eval()
    for name, objective in objectives.items():
        loss = objective(model, batch, progress=Progress(), rng=torch.Generator())
        assert found.scores[name] == pytest.approx(float(loss.total.detach()) / 20, rel=1e-4), name
    again = evaluate(model, fitted, examples, MaskPredict(iterations=2), batch_rows=3, quiet=True)
    assert again.scores == pytest.approx(found.scores, rel=1e-4)


def test_invalid_measures() -> None:
    model, fitted = small_masked(Causal(width=8, heads=2, layers=1, feedforward=8), ("masked_nll",))
    with pytest.raises(InputError, match="needs a masked model"):
        evaluate(model, fitted, fitted.task.read("dev"), MaskPredict(), quiet=True, predictions=False)
    for wrong in (("nll", "final_nll"), ("final_nll",)):
        with pytest.raises(InputError, match="measures"):
            check_measures(wrong)
        with pytest.raises(InputError, match="measures"):
            Palindromes(measures=wrong)  # type: ignore[arg-type]


def test_final_metrics_are_computed_on_the_test_split_only(tmp_path: Path) -> None:
    overrides = (
        'task={name="hmm", alphabet=3, length=3, size=20, held_out=10, measures=["pseudo_nll", "final_nll"]}',
        'model={name="field", hidden=4, embedding=4}',
        "training.steps=1",
        "training.epochs=none",
        "baseline=pll_1k",
        "seeds=[1]",
    )
    recipe = load("energy_hmm", overrides, "pll_1k")
    result = compare([recipe], tmp_path, quiet=True)
    scores = {
        split: json.loads(next(tmp_path.glob(f"*/*/scores/{split}-*.json")).read_text())["metrics"]
        for split in ("dev", "test")
    }
    assert {split: list(found) for split, found in scores.items()} == {
        "dev": ["pseudo_nll"],
        "test": ["pseudo_nll", "sequence_nll"],
    }
    assert any("true distribution" in note for note in result.notes)


# Mean and variance of log Z

FIXTURES = Path(__file__).parent.parent / "fixtures"
WORDS = {"source_tokens": "words", "target_tokens": "words"}
PAIRS = Pairs(train=str(FIXTURES / "text_pairs.tsv"), hold_out=0.2, log_z=True, **WORDS)  # type: ignore[arg-type]
CONLL = {split: str(FIXTURES / "tagging" / f"{split}.conll") for split in ("train", "dev", "test")}
TAGGING = Tagging(**CONLL, tag_column=2, comment_prefix="# text", min_count=1, log_z=True)  # type: ignore[arg-type]
TASKS = [pytest.param(PAIRS, id="pairs"), pytest.param(TAGGING, id="tagging")]


def rows_of(values: list[list[float]]) -> list[LikelihoodRow]:
    """What examples with these log Z at their tokens are described by; the likelihood plays no part."""
    return [(7.0, len(of), sum(of), sum(z * z for z in of)) for of in values]


def small_lstm(task: Task) -> tuple[Any, FittedTask]:
    codec = task.fit(task.read("train"))
    torch.manual_seed(0)
    return LSTM(hidden=8, embedding=8, dropout=0.5).build(codec.sizes), FittedTask(task, codec)


def direct(model: Any, fitted: FittedTask) -> list[np.ndarray]:
    """log Z at each target token of each development example, one example at a time."""
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
        assert metric.score_range == (0.0 if metric.statistic == "variance" else -np.inf, np.inf)
        statistic = {"log_z_mean": np.mean, "log_z_variance": np.var}[metric.name]
        assert metric.score(rows) == pytest.approx([statistic(of) for of in values])


@pytest.mark.parametrize("task", TASKS)
def test_a_task_reports_them(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    """They follow the task's own metrics, come from one pass over the targets, and do not depend on batches."""
    passes: list[int] = []

    def counted(*arguments: Any, **options: Any) -> Any:
        passes.append(1)
        return gold_likelihoods(*arguments, **options)

    monkeypatch.setattr(evaluation, "gold_likelihoods", counted)
    model, fitted = small_lstm(task)
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
