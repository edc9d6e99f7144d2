"""Decoding a split, scoring it and writing the result."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_training import Copier, CopyCodec, CopyTask, copies

from unforced.decoding.greedy import Greedy
from unforced.errors import InputError
from unforced.protocols import FittedTask
from unforced.training.evaluation import evaluate, write_evaluation
from unforced.training.run_folder import RunFolder
from unforced.types import Batch, Hypotheses

GREEDY = Greedy(max_length=12)
FITTED = FittedTask(CopyTask(), CopyCodec())  # type: ignore[arg-type]


def model() -> Copier:
    torch.manual_seed(0)
    return Copier(11)


@dataclass(frozen=True)
class Spy:
    """A decoder that outputs the source and looks at what it is given."""

    seen: list[Any]

    def __call__(self, model: Any, batch: Batch, *, rng: torch.Generator | None = None) -> Hypotheses:
        assert rng is not None
        assert not model.training
        assert not torch.is_grad_enabled()
        self.seen.append(
            (batch.mask.any().item(), batch.source_mask.sum(dim=1).tolist(), torch.rand(1, generator=rng).item())
        )
        lengths = batch.source_mask.sum(dim=1, keepdim=True)
        return Hypotheses(batch.source.unsqueeze(1), lengths, lengths.double(), lengths.double())


def test_outputs_come_in_the_order_of_the_examples_whatever_the_batches() -> None:
    examples, net = copies(50, 1), model()
    whole = evaluate(net, FITTED, examples, GREEDY, quiet=True)
    assert len(whole.outputs) == len(whole.log_probs) == 50
    for rows in (1, 7):
        other = evaluate(net, FITTED, examples, GREEDY, batch_rows=rows, quiet=True)
        assert other.outputs == whole.outputs
        assert other.log_probs == pytest.approx(whole.log_probs, rel=1e-5)
    assert net.training


def test_the_decoder_sees_no_target_and_similar_lengths_together() -> None:
    seen: list[Any] = []
    examples = copies(50, 1)
    found = evaluate(model(), FITTED, examples, Spy(seen), batch_rows=8, quiet=True)
    assert found.outputs == [example.source for example in examples]
    assert found.scores == {"exact": 1.0, "wrong": 0.0}
    assert not any(gold for gold, _, _ in seen)
    flat = [length for _, lengths, _ in seen for length in lengths]
    assert flat == sorted(flat, reverse=True)
    assert len({draw for _, _, draw in seen}) == 1  # what is drawn for an example must not depend on its batch


def test_nothing_to_evaluate_on() -> None:
    with pytest.raises(InputError, match="no examples"):
        evaluate(model(), FITTED, [], GREEDY, quiet=True)


def test_predictions_and_scores_are_written_as_designed(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    with run.writing():
        run.create(recipe="", info={}, codec={})
    examples = copies(5, 1)
    found = evaluate(model(), FITTED, examples, GREEDY, quiet=True)
    write_evaluation(run, "test", "greedy", GREEDY, found, examples, FITTED.codec)
    rows = run.predictions("test", "greedy")
    assert [set(row) for row in rows] == [{"id", "source", "answers", "output", "log_prob"}] * 5
    assert [(row["id"], row["source"], row["answers"]) for row in rows] == [
        (number, example.source, [example.source]) for number, example in enumerate(examples)
    ]
    (scores,) = run.scores()
    assert {key: scores[key] for key in ("split", "decoder", "options", "examples")} == {
        "split": "test",
        "decoder": "greedy",
        "options": {"name": "Greedy", "min_length": 0, "max_length": 12},
        "examples": 5,
    }
    exact = scores["metrics"]["exact"]
    assert set(exact) == {"score", "higher_is_better", "signature", "statistics"}
    assert np.array(exact["statistics"]).shape == (5, 2)
    assert exact["score"] == found.scores["exact"]
    assert not scores["metrics"]["wrong"]["higher_is_better"]
    with pytest.raises(ValueError, match="zip"):
        write_evaluation(run, "test", "greedy", GREEDY, found, examples[:-1], FITTED.codec)
