from typing import Any

import numpy as np
import pytest
import torch
from toy_training import Noisy, copies, job

from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.objectives.parallel_scheduled_sampling import ParallelScheduledSampling
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.training.batching import token_lengths
from unforced.training.distributed import start
from unforced.training.options import Training
from unforced.training.step import scale_and_clip_gradients, scale_gradients
from unforced.training.trainer import Updater
from unforced.types import Progress


def updater(objective: Any, *, double: bool = True, seed: int = 0, **options: Any) -> tuple[Updater, Any]:
    settings = Training(**options)
    made = job(options=settings, dropout=0.0, double=double, examples=32)
    codec = made.fitted.codec
    encoded = [codec.encode(example) for example in copies(32, 3)]
    built = Updater(
        made.model,
        objective,
        settings,
        start(settings.precision),
        lambda rows: codec.collate([encoded[row] for row in rows], rows),
        token_lengths(encoded),
        seed,
    )
    return built, made.model


def gradients(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


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
def test_one_batch_of_32_and_8_of_4_have_the_same_gradient(objective) -> None:
    found = []
    for accumulate in (1, 8, 40):  # 40: some micro-batches are empty
        each, model = updater(objective, accumulate=accumulate, clip=None)
        assert len(each.parts(range(32))[0]) == min(accumulate, 32)
        names, numbers = each.gradients(range(32), Progress())
        scale_gradients(each.parameters, numbers[names.index("loss") * 2 + 1])
        found.append((gradients(model), numbers))
    for other, numbers in found[1:]:
        torch.testing.assert_close(numbers, found[0][1], rtol=1e-6, atol=0)
        for name, gradient in found[0][0].items():
            assert gradient.abs().max() > 0
            torch.testing.assert_close(other[name], gradient, rtol=0, atol=1e-6 * gradient.abs().max().item())


def test_the_gradient_is_that_of_the_mean_per_token() -> None:
    each, model = updater(CrossEntropy(), accumulate=4, clip=None)
    names, numbers = each.gradients(range(32), Progress())
    scale_gradients(each.parameters, numbers[names.index("loss") * 2 + 1])
    mine = gradients(model)
    model.zero_grad()
    loss = CrossEntropy()(model, each.collate(range(32)), progress=Progress(), rng=torch.Generator())
    loss.mean.backward()
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(mine[name], gradient)


def test_clipping_bounds_the_norm_and_reports_what_it_was() -> None:
    free, model = updater(CrossEntropy(), clip=None)
    free.gradients(range(32), Progress())
    norm = scale_and_clip_gradients(free.parameters, torch.tensor(2.0))
    whole = gradients(model)
    clipped, model = updater(CrossEntropy(), clip=0.01)
    clipped.gradients(range(32), Progress())
    assert scale_and_clip_gradients(clipped.parameters, torch.tensor(2.0), clip=0.01).item() == pytest.approx(
        norm.item()
    )
    for name, gradient in gradients(model).items():
        torch.testing.assert_close(gradient, whole[name] * 0.01 / norm, rtol=1e-3, atol=1e-12)


def test_an_update_measures_sums_over_the_global_batch() -> None:
    each, model = updater(CrossEntropy(), accumulate=3)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sums, norm = each(range(32), Progress(), rate=0.5).tables()
    tokens = each.lengths[:, 1].sum()
    assert sums["loss"][1] == sums["nll"][1] == tokens
    assert sums["loss"][0] == pytest.approx(sums["nll"][0], rel=1e-6)
    assert norm > 0
    assert each.optimizer.param_groups[0]["lr"] == 0.5
    assert all(parameter.grad is None for parameter in model.parameters())
    assert any(not torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


class TwoPasses:
    """A no-grad pass in front of the real one, as sampling objectives have."""

    def __init__(self, clear: bool) -> None:
        self.clear = clear

    def __call__(self, model: Any, batch: Any, *, progress: Any, rng: Any) -> Any:
        with torch.no_grad():
            CrossEntropy()(model, batch, progress=progress, rng=rng)
        if self.clear:
            torch.clear_autocast_cache()
        return CrossEntropy()(model, batch, progress=progress, rng=rng)


def test_bf16_runs_in_autocast_and_still_has_gradients_behind_a_pass_without() -> None:
    each, model = updater(TwoPasses(clear=True), double=False, precision="bf16")
    seen = []
    model.mix.register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    each.gradients(range(32), Progress())
    assert set(seen) == {torch.bfloat16}
    assert all(gradient.dtype == torch.float32 for gradient in gradients(model).values())
    assert all(gradient.abs().max() > 0 for gradient in gradients(model).values())
    plain, other = updater(CrossEntropy(), double=False, precision="float32")  # and back, in the same process
    plain.gradients(range(32), Progress())
    for name, gradient in gradients(other).items():
        cosine = torch.cosine_similarity(gradient.flatten(), gradients(model)[name].flatten(), dim=0)
        assert cosine > 0.99


def test_the_objectives_randomness_is_its_generators() -> None:
    numbers = []
    for seed in (0, 0, 1):
        each, _ = updater(Noisy(), seed=seed)
        torch.manual_seed(np.random.default_rng().integers(1000))
        numbers.append(each.gradients(range(32), Progress())[1])
    assert torch.equal(numbers[0], numbers[1])
    assert not torch.equal(numbers[0], numbers[2])
    other_step = updater(Noisy(), seed=0)[0].gradients(range(32), Progress(step=1))[1]
    assert not torch.equal(numbers[0], other_step)
