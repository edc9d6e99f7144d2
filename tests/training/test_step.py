"""One update: gradients of sums, scaled once, whatever the micro-batches; and what a training learns from."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import Noisy, Nothing, recipe

from unforced.errors import InputError
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.objectives.parallel_scheduled_sampling import ParallelScheduledSampling
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.objectives.schedules import InverseSigmoid, schedules_of
from unforced.registry import REGISTRY, resolve
from unforced.training.distributed import start
from unforced.training.options import Training
from unforced.training.progress import Display
from unforced.training.run_folder import RunFolder
from unforced.training.step import Watch, scale_and_clip_gradients, scale_gradients
from unforced.training.trainer import Setup, Trainer, train
from unforced.types import Progress

ROWS = list(range(32))


def trainer_of(objective: Any, *, double: bool = True, seed: int = 0, **options: Any) -> Trainer:
    settings = Training(**options)
    made = recipe(options=settings, objective=objective, dropout=0.0, double=double, examples=32, seed=seed)
    return Trainer(made, Setup.of(made), RunFolder("absent"), start(settings.precision), Display(quiet=True))


def gradients(trainer: Trainer) -> list[torch.Tensor]:
    return [parameter.grad.clone() for parameter in trainer.parameters if parameter.grad is not None]


def mean_gradients(trainer: Trainer) -> tuple[list[torch.Tensor], torch.Tensor]:
    """The gradients of a batch of all rows divided by its count, and the numbers that were measured."""
    names, numbers = trainer.backward(ROWS, Progress())
    scale_gradients(trainer.parameters, numbers[names.index("loss") * 2 + 1])
    return gradients(trainer), numbers


@pytest.mark.parametrize(
    "objective",
    [
        CrossEntropy(),
        LabelSmoothing(0.1),
        ScheduledSampling(feed="sample", mixing=0.5),
        ScheduledSampling(feed="soft_sample", mixing=0.5, alpha=2.0),
        ParallelScheduledSampling(p=0.5, passes=2),
    ],
    ids=["cross_entropy", "label_smoothing", "sample", "soft_sample", "parallel"],
)
def test_micro_batches_do_not_change_gradients(objective: Any) -> None:
    whole, numbers = mean_gradients(trainer_of(objective))
    for accumulate in (8, 40):  # 40: some micro-batches are empty
        trainer = trainer_of(objective, accumulate=accumulate)
        assert len(trainer.parts(ROWS)[0]) == min(accumulate, 32)
        found, measured = mean_gradients(trainer)
        torch.testing.assert_close(measured, numbers, rtol=1e-6, atol=0)
        for mine, expected in zip(found, whole, strict=True):
            assert expected.abs().max() > 0
            torch.testing.assert_close(mine, expected, rtol=0, atol=1e-6 * expected.abs().max().item())


def test_gradients_are_those_of_the_mean_per_token() -> None:
    trainer = trainer_of(CrossEntropy(), accumulate=4)
    found, _ = mean_gradients(trainer)
    trainer.model.zero_grad()
    batch = trainer.setup.task.codec.collate(trainer.setup.encoded, ROWS)
    CrossEntropy()(trainer.model, batch, progress=Progress(), rng=torch.Generator()).mean.backward()
    torch.testing.assert_close(found, gradients(trainer))


def test_clipping_bounds_the_norm_and_returns_the_norm_before() -> None:
    trainer = trainer_of(CrossEntropy())
    trainer.backward(ROWS, Progress())
    norm = scale_and_clip_gradients(trainer.parameters, torch.tensor(2.0))
    whole = gradients(trainer)
    assert norm.item() == pytest.approx(torch.cat([each.flatten() for each in whole]).norm().item())
    trainer.model.zero_grad()
    trainer.backward(ROWS, Progress())
    assert scale_and_clip_gradients(trainer.parameters, torch.tensor(2.0), clip=0.01).item() == norm.item()
    expected = [each * 0.01 / norm for each in whole]
    torch.testing.assert_close(gradients(trainer), expected, rtol=1e-3, atol=1e-12)


class TwoPasses:
    """A no-grad pass before the real one, as sampling objectives have."""

    def __call__(self, model: Any, batch: Any, *, progress: Any, rng: Any) -> Any:
        with torch.no_grad():
            CrossEntropy()(model, batch, progress=progress, rng=rng)
        torch.clear_autocast_cache()
        return CrossEntropy()(model, batch, progress=progress, rng=rng)


def test_bf16_runs_in_autocast_and_has_gradients_after_a_no_grad_pass() -> None:
    trainer, seen = trainer_of(TwoPasses(), double=False, precision="bf16"), []
    trainer.model.mix.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    trainer.backward(ROWS, Progress())
    assert set(seen) == {torch.bfloat16}
    assert all(gradient.dtype == torch.float32 and gradient.abs().max() > 0 for gradient in gradients(trainer))
    plain = trainer_of(CrossEntropy(), double=False, precision="float32")  # and back, in the same process
    plain.backward(ROWS, Progress())
    for mine, expected in zip(gradients(trainer), gradients(plain), strict=True):
        assert torch.cosine_similarity(mine.flatten(), expected.flatten(), dim=0) > 0.99


def test_random_numbers_depend_on_seed_and_step_only() -> None:
    def measured(seed: int, step: int) -> torch.Tensor:
        trainer = trainer_of(Noisy(), seed=seed)
        torch.manual_seed(torch.seed())
        return trainer.backward(ROWS, Progress(step))[1]

    first = measured(0, 0)
    assert torch.equal(measured(0, 0), first)
    assert not torch.equal(measured(1, 0), first)
    assert not torch.equal(measured(0, 1), first)


# What a training learns from

SLOW = ScheduledSampling(mixing=InverseSigmoid(k=10, warmup=1))  # no own tokens in the first epoch


@pytest.mark.parametrize("name", REGISTRY["objectives"])
def test_default_schedules_end_in_trainings_of_any_length(name: str) -> None:
    for schedule in schedules_of(resolve("objectives", name)()).values():
        assert schedule(Progress(40, total=40)) == schedule(Progress(9000, total=9000))


@pytest.mark.parametrize("name", ["scheduled_sampling", "parallel_scheduled_sampling"])
def test_three_epochs_of_scheduled_sampling_feed_own_tokens(name: str, tmp_path: Path) -> None:
    objective = resolve("objectives", name)()
    run = train(
        recipe(options=Training(epochs=3, batch_tokens=100, log_every=1), objective=objective), tmp_path / "run"
    )
    lines = map(json.loads, (run.path / "metrics.jsonl").read_text().splitlines())
    fed = [line["fed"] for line in lines if line["kind"] == "train"]
    assert sum(fed[-5:]) / 5 > 0.1


def test_trainings_that_hardly_feed_own_tokens_warn_once(tmp_path: Path) -> None:
    options = Training(epochs=4, batch_tokens=60)
    with pytest.warns(UserWarning, match="were the model's own tokens in a tenth of the training") as warned:
        train(recipe(options=options, objective=SLOW), tmp_path / "slow")
    assert len(warned) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, objective in enumerate((ScheduledSampling(), ScheduledSampling(mixing=0.9), CrossEntropy())):
            train(recipe(options=options, objective=objective), tmp_path / str(number))


def test_trainings_in_which_nothing_is_scored_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="nothing was scored in 10 updates"):
        train(recipe(options=Training(steps=50, batch_tokens=60), objective=Nothing()), tmp_path / "run")


@pytest.mark.parametrize(("planned", "updates"), [(3, 3), (40, 10), (500, 50), (9000, 100)])
def test_empty_updates_are_refused_after_a_tenth_or_a_hundred(planned: int, updates: int) -> None:
    watch = Watch(CrossEntropy())
    for _ in range(updates - 1):
        watch.add(planned, {"loss": (0.0, 0.0)})
    with pytest.raises(InputError, match=f"nothing was scored in {updates} updates"):
        watch.add(planned, {"loss": (0.0, 0.0)})


def test_the_warning_comes_after_a_tenth_of_a_long_training() -> None:
    watch, update = Watch(SLOW), {"loss": (1.0, 1.0), "fed": (1.0, 100.0)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(499):
            watch.add(5000, update)
    with pytest.warns(UserWarning, match=r"only 1\.0% of the inputs"):
        watch.add(5000, update)
