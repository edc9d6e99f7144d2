"""Which objective trains which kind of model: what `tools/model_kinds.py` makes its table of."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_cases import fast
from trainer_cases import DECODER_OBJECTIVES, REFUSALS, losses, objective, serves, table_rows, trainer, weights

from unforced.errors import InputError
from unforced.registry import REGISTRY

KINDS = ("t5", "gpt2", "bert")
CASES = [(kind, name) for kind in KINDS for name in REGISTRY["objectives"]]
FEW = [
    ("t5", "cross_entropy"),
    ("t5", "soft_beam"),
    ("gpt2", "minimum_risk"),
    ("bert", "masked_lm"),
    ("bert", "soft_beam"),
]
Record = Callable[[str, object], None]


def learns(made: Any) -> bool:
    """Whether three updates have finite losses and move every weight."""
    before = weights(made.model)
    made.train()
    after = dict(made.model.named_parameters())
    moved = all(not torch.equal(value, before[name]) for name, value in after.items())
    finite = all(bool(value.isfinite().all()) for value in after.values())
    return len(losses(made)) == 3 and bool(torch.tensor(losses(made)).isfinite().all()) and finite and moved


@pytest.mark.parametrize("case", fast(CASES, *FEW))
def test_kinds_of_models(case: tuple[str, str], tmp_path: Path, record_property: Record) -> None:
    """It trains, or the error names what the model lacks."""
    column, name = case
    made = trainer(column, objective(name), tmp_path)
    if serves(name, column):
        assert learns(made)
    else:
        with pytest.raises(InputError, match="|".join(REFUSALS)):
            made.train()
    record_property("objective", name)
    record_property("column", column)
    record_property("outcome", "yes" if serves(name, column) else "–")


@pytest.mark.parametrize("name", fast(DECODER_OBJECTIVES, "cross_entropy"))
def test_with_gradient_checkpointing(name: str, tmp_path: Path, record_property: Record) -> None:
    """It trains, or the error says why it can't."""
    try:
        assert learns(trainer("gpt2", objective(name), tmp_path, gradient_checkpointing=True))
        outcome = "yes"
    except InputError as error:
        outcome = "no"
        if "turn gradient_checkpointing off" not in str(error):
            raise
    record_property("objective", name)
    record_property("column", "checkpointing")
    record_property("outcome", outcome)


def test_the_table_has_all_objectives() -> None:
    assert list(table_rows()) == list(REGISTRY["objectives"])


@pytest.mark.slow
def test_the_table_is_up_to_date() -> None:
    assert table_rows() == {name: [serves(name, kind) for kind in KINDS] for name in REGISTRY["objectives"]}
