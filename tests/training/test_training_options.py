import pytest

from unforced.errors import InputError
from unforced.training.options import Training
from unforced.training.trainer import learning_rate


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"epochs": None}, "one of epochs and steps"),
        ({"epochs": 0}, "epochs must be a positive number"),
        ({"epochs": float("nan")}, "epochs must be a positive number"),
        ({"steps": 0}, "steps must be at least 1"),
        ({"batch_tokens": 0}, "batch_tokens must be at least 1"),
        ({"max_rows": 0}, "max_rows must be at least 1"),
        ({"accumulate": 0}, "accumulate must be at least 1"),
        ({"learning_rate": -1.0}, "learning_rate must be a positive number"),
        ({"learning_rate": float("inf")}, "learning_rate must be a positive number"),
        ({"schedule": "square"}, "schedule must be"),
        ({"schedule": "inverse_sqrt"}, "needs a warmup"),
        ({"warmup": -1}, "warmup must be at least 0"),
        ({"weight_decay": float("nan")}, "weight_decay must be"),
        ({"betas": (0.9, 1.0)}, "betas must be"),
        ({"clip": 0.0}, "clip must be a positive number"),
        ({"precision": "fp16"}, "precision must be"),
        ({"validate_every": 0}, "validate_every must be at least 1"),
        ({"dev_examples": 0}, "dev_examples must be at least 1"),
        ({"patience": 0}, "patience must be at least 1"),
        ({"keep": 0}, "keep must be at least 1"),
        ({"save_every": 0}, "save_every must be at least 1"),
        ({"log_every": 0}, "log_every must be at least 1"),
    ],
)
def test_wrong_values_are_refused(wrong, message) -> None:
    with pytest.raises(InputError, match=message):
        Training(**wrong)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        ("constant", [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]),
        ("linear", [0.25, 0.5, 0.75, 1, 0.8, 0.6, 0.4, 0.2]),
        ("cosine", [0.25, 0.5, 0.75, 1, 0.904508, 0.654508, 0.345492, 0.095492]),
        ("inverse_sqrt", [0.25, 0.5, 0.75, 1, 0.894427, 0.816497, 0.755929, 0.707107]),
    ],
)
def test_schedules(schedule, rates) -> None:
    options = Training(learning_rate=2.0, schedule=schedule, warmup=4)
    found = [learning_rate(options, step, total=8) for step in range(1, 9)]
    assert found == pytest.approx([2 * rate for rate in rates], abs=1e-5)


def test_a_warmup_longer_than_training_only_grows() -> None:
    options = Training(learning_rate=1.0, schedule="linear", warmup=10)
    assert [learning_rate(options, step, total=3) for step in (1, 2, 3)] == pytest.approx([0.1, 0.2, 0.3])
