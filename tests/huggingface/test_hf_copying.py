"""A copy task, learnt by ``UnforcedTrainer`` with each sequence objective from a start with cross-entropy."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from trainer_cases import DECODER_OBJECTIVES, MASK, bart, collate, copies, gpt2, objective, trainer

import unforced
from unforced.decoding import Greedy
from unforced.huggingface.batches import make_batch

MODELS = {"bart": partial(bart, 32), "gpt2": partial(gpt2, width=64)}  # (T5, without positions, takes longer)
START = {"bart": 90, "gpt2": 35}  # updates of cross-entropy: more than half of the outputs are right then
STEPS = {"bart": 150, "gpt2": 150}  # updates of the objective
LEARNT = 0.95
LONGEST = 3


def options(kind: str) -> dict[str, Any]:
    return {
        "data": copies(kind, 2000, seed=1, least=1, most=LONGEST),
        "per_device_train_batch_size": 32,
        "learning_rate": 3e-3,
        "logging_strategy": "no",
    }


def share_right(kind: str, model: Any) -> float:
    """The share of new examples that greedy search copies exactly."""
    wrapped, data = unforced.wrap(model), copies(kind, 200, seed=2, least=1, most=LONGEST)
    sources = [item["input_ids"] for item in data]
    if kind == "gpt2":
        sources = [ids[: ids.index(MASK) + 1] for ids in sources]
    made = make_batch(wrapped, **collate([{"input_ids": ids} for ids in sources]))
    found = Greedy(max_length=6)(wrapped, made).ids(made.symbols)
    wanted = [[id for id in item["labels"] if id not in (-100, 2)] for item in data]
    return sum(a == b for a, b in zip(found, wanted, strict=True)) / len(data)


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    """Weights of models that cross-entropy has taught a part of the task."""
    found = {}
    for kind in MODELS:
        folder, model = tmp_path_factory.mktemp(kind), MODELS[kind]()
        made = trainer(kind, "cross_entropy", folder, model=model, **options(kind), max_steps=START[kind])
        made.train()
        found[kind] = {name: value.clone() for name, value in made.model.state_dict().items()}
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", DECODER_OBJECTIVES)
@pytest.mark.parametrize("kind", list(MODELS))
def test_copying_is_learnt(kind: str, name: str, starts: dict[str, dict[str, Tensor]], tmp_path: Path) -> None:
    model = MODELS[kind]()
    model.load_state_dict(starts[kind])
    made = trainer(
        kind, objective(name), tmp_path, model=model, **options(kind), max_steps=STEPS[kind],
        lr_scheduler_type="linear",
    )  # fmt: skip
    made.train()
    with torch.no_grad():
        assert share_right(kind, made.model) > LEARNT
