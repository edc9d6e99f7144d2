"""Pictures: of what they show, not of how they look."""

from pathlib import Path

import pytest
import torch
from torch import nn

from unforced.cli import main
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.objectives.schedules import InverseSigmoid, Linear, Rise
from unforced.recipes.recipe import load
from unforced.reports import discontinuity, schedules
from unforced.training.options import Training

RECIPE = """
name = "several"
[task]
name = "palindromes"
[model]
name = "lstm"
[objective]
name = "cross_entropy"
[training]
epochs = 8
validate = "sample"
[decoding.sample]
method = "sample"
[[variants]]
name = "plain"
[[variants]]
name = "hard"
objective = { name = "scheduled_sampling", mixing = { name = "inverse_sigmoid", k = 2 } }
[[variants]]
name = "soft"
objective = { name = "scheduled_sampling", feed = "soft_argmax", mixing = { name = "inverse_sigmoid", k = 2 }, alpha = { name = "exponential", rate = 2.0, cap = 50 } }
[[variants]]
name = "parallel"
objective = { name = "parallel_scheduled_sampling", warmup = 40 }
"""


def test_a_recipes_schedules_are_drawn_a_panel_for_each_field(tmp_path: Path, capsys) -> None:
    (tmp_path / "several.toml").write_text(RECIPE)
    picture = tmp_path / "schedules.svg"
    assert main(["show", str(tmp_path / "several.toml"), "--plot", str(picture)]) == 0
    assert capsys.readouterr().out.strip() == str(picture)
    first = picture.read_bytes()
    for word in ("mixing", "alpha", "hard, soft", "parallel", "updates", "epochs"):
        assert f"<!-- {word} -->".encode() in first, word
    schedules.plot_schedules(load(tmp_path / "several.toml"), picture)
    assert picture.read_bytes() == first


def test_each_schedule_runs_over_its_own_time() -> None:
    axis, times, moments = schedules.course(Training(epochs=4), Linear(start=1.0, end=0.0, over=4))
    assert (axis, times[0], round(times[-1])) == ("epochs", 0.0, 4)
    axis, times, moments = schedules.course(Training(epochs=4), Rise(end=0.5, over=100))
    assert (axis, times[-1], moments[-1].step) == ("updates", 128.0, 128)
    axis, times, _ = schedules.course(Training(epochs=None, steps=70), Rise(end=0.5, over=100))
    assert (axis, times[-1]) == ("updates", 70.0)
    axis, *_ = schedules.course(Training(epochs=None, steps=70), Rise(end=0.5, over=0.5, unit="fraction"))
    assert axis == "share of the training"
    decay = InverseSigmoid(k=10.0)
    axis, times, moments = schedules.course(
        Training(epochs=None, steps=500), decay
    )  # nobody knows how many epochs these are
    assert axis == "epochs"
    assert decay(moments[-1]) < 0.01 < 0.9 < decay(moments[0])
    slow = InverseSigmoid(k=1000.0, unit="step")
    axis, times, moments = schedules.course(Training(epochs=20), slow)
    assert axis == "updates"
    assert slow(moments[-1]) < 0.01 < 0.9 < slow(moments[0])


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["show", "multi30k", "--plot", "x.svg"], "no variant of multi30k has a schedule to plot"),
        (["show", "multi30k", "--plot", "x.gif"], "ends in .svg, .png, .pdf"),
        (["plot", "discontinuity", "-o", "nowhere/x.svg"], "there is no folder nowhere"),
        (["plot", "continuity"], "continuity"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(words, complaint, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_hard_loss_jumps_along_the_line_and_soft_ones_do_not() -> None:
    """Between points this near each other a continuous loss hardly moves, and the hard one still jumps."""
    model, batch = discontinuity.trained(6)
    origin = nn.utils.parameters_to_vector(model.parameters()).detach()
    direction = discontinuity.random_direction(model, 6)

    def losses(objective: ScheduledSampling, along: torch.Tensor) -> torch.Tensor:
        return torch.tensor([discontinuity.loss(objective, model, batch, origin + float(s) * direction) for s in along])

    hard, soft = (ScheduledSampling(feed=f, mixing=0.0, alpha=5.0) for f in ("argmax", "soft_argmax"))
    coarse = torch.linspace(-0.5, 0.0, 101, dtype=torch.float64)
    steps = losses(hard, coarse).diff().abs()
    place = int(steps.argmax())
    low, high = coarse[place], coarse[place + 1]
    for _ in range(12):  # close in on the jump
        middle = (low + high) / 2
        before, here, behind = losses(hard, torch.stack([low, middle, high]))
        low, high = (low, middle) if (here - before).abs() > (behind - here).abs() else (middle, high)
    near = torch.stack([low, high])
    assert losses(hard, near).diff().abs().item() > 0.2
    assert losses(soft, near).diff().abs().item() < 0.01


def test_the_picture_is_written(tmp_path: Path) -> None:
    picture = discontinuity.plot_discontinuity(tmp_path / "small.svg", points=5)
    assert "soft argmax, α = 125" in picture.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["small.svg"]
