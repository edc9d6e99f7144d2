"""Which objective trains which kind of model: what `tools/model_kinds.py` makes its table of."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from trainer_cases import REFUSALS, losses, objective, serves, trainer, weights

from unforced.errors import InputError
from unforced.registry import REGISTRY

TABLE = Path(__file__).resolve().parents[2] / "results" / "huggingface.md"
Record = Callable[[str, object], None]


def learns(made: Any) -> bool:
    """Whether three updates have finite losses and move every weight."""
    before = weights(made.model)
    made.train()
    after = dict(made.model.named_parameters())
    moved = all(not torch.equal(value, before[name]) for name, value in after.items())
    finite = all(bool(value.isfinite().all()) for value in after.values())
    return len(losses(made)) == 3 and bool(torch.tensor(losses(made)).isfinite().all()) and finite and moved


@pytest.mark.parametrize("column", ["t5", "gpt2", "bert"])
@pytest.mark.parametrize("name", REGISTRY["objectives"])
def test_kinds_of_models(name: str, column: str, tmp_path: Path, record_property: Record) -> None:
    """It trains, or the error names what the model lacks."""
    made = trainer(column, objective(name), tmp_path)
    if serves(name, column):
        assert learns(made)
    else:
        with pytest.raises(InputError, match="|".join(REFUSALS)):
            made.train()
    record_property("objective", name)
    record_property("column", column)
    record_property("outcome", "yes" if serves(name, column) else "–")


@pytest.mark.parametrize("name", [name for name in REGISTRY["objectives"] if serves(name, "gpt2")])
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


def test_the_table_is_up_to_date() -> None:
    lines = [line.split(" | ") for line in TABLE.read_text(encoding="utf-8").splitlines()[2:]]
    told = {cells[0].strip("| `"): [cell.strip("| ") == "yes" for cell in cells[1:4]] for cells in lines}
    kinds = ("t5", "gpt2", "bert")
    assert told == {name: [serves(name, kind) for kind in kinds] for name in REGISTRY["objectives"]}
