import pytest

from unforced.errors import InputError
from unforced.training.options import Training
from unforced.training.trainer import learning_rate


@pytest.mark.parametrize(
    ("wrong", "message"),
    [({"epochs": None}, "one of epochs and steps"), ({"schedule": "inverse_sqrt"}, "needs a warmup")],
)
def test_training_must_end_and_inverse_sqrt_needs_a_warmup(wrong, message) -> None:
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
