"""Likelihoods of masked models in evaluation: exact, pseudo- and masked, as metrics of tasks."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unforced.energy.mask_predict import MaskPredict
from unforced.errors import InputError
from unforced.experiments.compare import compare
from unforced.metrics.likelihood import check_measures, likelihood_metrics
from unforced.models.field import Field
from unforced.models.masked import Masked
from unforced.models.transformer import Causal
from unforced.objectives.exact_likelihood import ExactLikelihood
from unforced.objectives.masked_lm import MaskedLM
from unforced.objectives.pseudo_likelihood import PseudoLikelihood
from unforced.protocols import FittedTask
from unforced.recipes.recipe import load
from unforced.tasks.language import Language
from unforced.tasks.pronunciation import Phonemes
from unforced.tasks.synthetic import Palindromes
from unforced.training.evaluation import evaluate, gold_likelihoods
from unforced.types import Example, Progress

ALL: Any = ("nll", "pseudo_nll", "masked_nll")


def small(spec: Any, measures: Any = ALL) -> tuple[Any, FittedTask]:
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
    model, fitted = small(spec)
    strings = [Example(None, "".join(letters)) for letters in product("abc", repeat=3)]
    found = list(gold_likelihoods(model, fitted, strings, batch_rows=7))
    assert sum(np.exp(-each.nll) for each in found) == pytest.approx(1, abs=1e-4)
    assert {each.tokens for each in found} == {3}
    assert model.training


def test_a_guess_of_the_length_counts() -> None:
    """p(T) p(y | T), where the model has a table of lengths: here 1, 2, 3 and 4, equally likely at first."""
    model, fitted = small(Field(hidden=8, embedding=6, lengths=4))
    strings = [Example(None, "".join(letters)) for letters in product("abc", repeat=3)]
    found = list(gold_likelihoods(model, fitted, strings))
    assert sum(np.exp(-each.nll) for each in found) == pytest.approx(1 / 4, abs=1e-4)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_metrics_are_what_objectives_minimise(spec: Any) -> None:
    model, fitted = small(spec)
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


def test_what_is_only_for_the_end_is_left_out_while_training() -> None:
    model, fitted = small(SPECS["field"], ("masked_nll", "final_nll"))
    examples = fitted.task.read("dev")
    quick = evaluate(model, fitted, examples, MaskPredict(), quiet=True, final=False)
    assert list(quick.scores) == ["masked_nll"]
    whole = evaluate(model, fitted, examples, MaskPredict(), quiet=True)
    assert list(whole.scores) == ["masked_nll", "sequence_nll"]


def test_complaints() -> None:
    model, fitted = small(Causal(width=8, heads=2, layers=1, feedforward=8), ("masked_nll",))
    with pytest.raises(InputError, match="needs a masked model"):
        evaluate(model, fitted, fitted.task.read("dev"), MaskPredict(), quiet=True, predictions=False)
    for wrong in (("nll", "final_nll"), ("final_nll",)):
        with pytest.raises(InputError, match="measures"):
            check_measures(wrong)
        for task in (Palindromes, Phonemes):
            with pytest.raises(InputError, match="measures"):
                task(measures=wrong)  # type: ignore[arg-type]
        with pytest.raises(InputError, match="measures"):
            Language(train="x", measures=wrong)  # type: ignore[arg-type]
    assert [metric.name for metric in likelihood_metrics(("pseudo_perplexity", "perplexity"))] == [
        "pseudo_perplexity",
        "perplexity",
    ]


def test_final_metrics_are_computed_on_the_test_split_only(tmp_path: Path) -> None:
    wishes = (
        'task={name="hmm", alphabet=3, length=3, size=20, held_out=10, measures=["pseudo_nll", "final_nll"]}',
        'model={name="field", hidden=4, embedding=4}',
        "training.steps=1",
        "training.epochs=none",
        "baseline=pll_1k",
        "seeds=[1]",
    )
    recipe = load("energy_hmm", wishes, "pll_1k")
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
