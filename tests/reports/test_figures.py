"""Figures: their content, and colours that every reader can tell apart."""

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from unforced.cli import main
from unforced.experiments.comparison import Cell, Comparison, Measure, Row, RunState
from unforced.objectives.scheduled_sampling import ScheduledSampling
from unforced.objectives.schedules import InverseSigmoid, Linear, Rise
from unforced.recipes.recipe import load
from unforced.reports import discontinuity, schedules
from unforced.reports.figures import COLOURS, DARK_COLOURS, change_figure, inline_changes, line_style
from unforced.reports.tables import Change, changes
from unforced.training.options import Training

ACCURACY = Measure("accuracy", True, "")
ERROR = Measure("error", False, "")
PLAIN = Cell({"1": 50.0}, 50.0)
BETTER = Cell({"1": 52.0}, 52.0, difference=2.0, difference_low=1.0, difference_high=3.0, p_value=0.001)
OPEN = Cell({"1": 51.0}, 51.0, difference=1.0, difference_low=-1.0, difference_high=3.0, p_value=0.4)
UNTESTED = Cell({"1": 51.0}, 51.0, difference=1.0)

COMPARISON = Comparison(
    name="toy",
    description="",
    command="",
    baseline="plain",
    split="test",
    examples=10,
    level=0.95,
    bootstrap_samples=10,
    permutations=10,
    measures=(ACCURACY, ERROR),
    rows=(
        Row("plain", "greedy", 1.0, {"accuracy": PLAIN}),
        Row("plain", "beam", 1.0, {"accuracy": PLAIN}),
        Row("new", "greedy", 1.0, {"accuracy": BETTER, "error": BETTER}),
        Row("new", "beam", 1.0, {"accuracy": OPEN}),
        Row("odd_$x$", "greedy", 1.0, {"accuracy": UNTESTED}),
    ),
    runs=tuple(RunState(variant, 1, f"{variant}-1", "finished") for variant in ("plain", "new", "odd_$x$")),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "comparison.json").write_text(COMPARISON.to_json())
    return tmp_path / "toy"


def test_change_figure_shows_the_numbers_of_the_table() -> None:
    found = changes(COMPARISON, ACCURACY)
    assert found == [
        Change("new", "greedy", 52.0, 2.0, 1.0, 3.0, 0.001, 1.0),
        Change("new", "beam", 51.0, 1.0, -1.0, 3.0, 0.4, 1.0),
    ]
    (axes,) = change_figure(found, COMPARISON, ACCURACY, "black").axes
    zero, *drawn = axes.lines
    assert list(zero.get_xdata()) == [0, 0]
    assert [list(line.get_xdata()) for line in drawn] == [[1.0, 3.0], [2.0], [-1.0, 3.0], [1.0]]
    assert [line.get_fillstyle() for line in drawn[1::2]] == ["full", "none"]  # whether the interval excludes zero
    assert drawn[0].get_ydata()[0] > drawn[2].get_ydata()[0]
    assert [text.get_text() for text in axes.texts] == ["+2.00  [+1.00, +3.00]", "+1.00  [−1.00, +3.00]"]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["new"]
    for measure, side in ((ACCURACY, "right"), (ERROR, "left")):
        figure = change_figure(changes(COMPARISON, measure), COMPARISON, measure, "black")
        assert figure.get_supxlabel().replace("\n", " ").endswith(f"further {side} is better")


def test_a_variant_has_one_colour_in_all_figures(folder: Path) -> None:
    """The baseline has no changes, but it has a colour: ``new`` is variant 1."""
    svg = inline_changes(COMPARISON, "s0-changes")
    assert svg.startswith('<svg role="img" aria-label="change of accuracy against plain"')
    assert "var(--line-1)" in svg
    assert "var(--line-0)" not in svg
    assert main(["plot", "changes", str(folder)]) == 0
    picture = (folder / "changes.svg").read_text()
    assert [colour in picture for colour in COLOURS[:3]] == [False, True, False]
    assert inline_changes(replace(COMPARISON, measures=()), "s0") == ""
    assert inline_changes(replace(COMPARISON, rows=COMPARISON.rows[:2]), "s0") == ""


# Colours

BLINDNESS = {  # Machado, Oliveira and Fernandes (2009), full severity, for linear RGB
    "none": np.eye(3),
    "protan": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deutan": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritan": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}


def linear(colour: str) -> np.ndarray:
    """The linear RGB of a hexadecimal sRGB colour."""
    rgb = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """OKLab (Ottosson 2020), in which a just noticeable difference is about 0.02."""
    to_cones = [
        [0.4122214708, 0.5363325363, 0.0514459929],
        [0.2119034982, 0.6806995451, 0.1073969566],
        [0.0883024619, 0.2817188376, 0.6299787005],
    ]
    to_lab = [
        [0.2104542553, 0.7936177850, -0.0040720468],
        [1.9779984951, -2.4285922050, 0.4505937099],
        [0.0259040371, 0.7827717662, -0.8086757660],
    ]
    return np.array(to_lab) @ np.cbrt(np.array(to_cones) @ rgb.clip(0, 1))


def contrast(a: str, b: str) -> float:
    """The contrast ratio of the Web Content Accessibility Guidelines; lines need 3."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (a, b))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize(("colours", "page"), [(COLOURS, "#ffffff"), (DARK_COLOURS, "#14171a")])
def test_colours_differ_for_colour_blind_readers(colours: tuple[str, ...], page: str) -> None:
    for kind, matrix in BLINDNESS.items():
        seen = [oklab(np.array(matrix) @ linear(colour)) for colour in colours]
        assert min(np.linalg.norm(a - b) for a, b in combinations(seen, 2)) > 0.055, kind
    assert min(contrast(colour, page) for colour in colours) > 3


def test_32_lines_have_different_styles() -> None:
    assert len({str(line_style(i)) for i in range(32)}) == 32


def test_plot_changes_command(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", "changes", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "changes.svg")
    first = (folder / "changes.svg").read_bytes()
    assert main(["plot", "changes", str(folder), "-o", str(folder / "again.svg")]) == 0
    assert (folder / "again.svg").read_bytes() == first
    assert b'width="450pt"' in first  # 600 pixels
    assert main(["plot", "changes", str(folder), "--metric", "error", "-o", str(folder / "error.svg")]) == 0
    assert (folder / "error.svg").read_bytes() != first


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plot", "changes", "nowhere"], "nowhere holds no comparison"),
        (["plot", "changes", "toy", "--metric", "bleu"], "no metric bleu; it has accuracy, error"),
        (["plot", "changes", "toy", "-o", "x.gif"], "must end in .svg, .png, .pdf"),
        (["plot", "changes", "early"], "no changes yet"),
        (["plot", "discontinuity", "-o", "x.jpg"], "must end in .svg, .png, .pdf"),
        (["show", "multi30k", "--plot", "x.svg"], "no variant of multi30k has a schedule to plot"),
    ],
)
def test_invalid_commands(
    words: list[str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder.parent)
    Path("early").mkdir()
    Path("early/comparison.json").write_text(replace(COMPARISON, rows=COMPARISON.rows[:2]).to_json())
    assert main(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


# Schedules

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
[variants.objective]
name = "scheduled_sampling"
feed = "soft_argmax"
mixing = { name = "inverse_sigmoid", k = 2 }
alpha = { name = "exponential", rate = 2.0, cap = 50 }
[[variants]]
name = "parallel"
objective = { name = "parallel_scheduled_sampling", warmup = 40 }
"""


def test_each_scheduled_field_has_a_panel(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "several.toml").write_text(RECIPE)
    picture = tmp_path / "schedules.svg"
    assert main(["show", str(tmp_path / "several.toml"), "--plot", str(picture)]) == 0
    assert capsys.readouterr().out.strip() == str(picture)
    first = picture.read_bytes()
    for word in ("mixing", "alpha", "hard, soft", "parallel", "updates", "epochs"):
        assert f"<!-- {word} -->".encode() in first, word
    schedules.plot_schedules(load(tmp_path / "several.toml"), picture)
    assert picture.read_bytes() == first


def test_time_axis_of_schedules() -> None:
    axis, times, moments = schedules.timeline(Training(epochs=4), Linear(start=1.0, end=0.0, over=4))
    assert (axis, times[0], round(times[-1])) == ("epochs", 0.0, 4)
    axis, times, moments = schedules.timeline(Training(epochs=4), Rise(end=0.5, over=100))
    assert (axis, times[-1], moments[-1].step) == ("updates", 128.0, 128)
    axis, times, _ = schedules.timeline(Training(epochs=None, steps=70), Rise(end=0.5, over=100))
    assert (axis, times[-1]) == ("updates", 70.0)
    axis, *_ = schedules.timeline(Training(epochs=None, steps=70), Rise(end=0.5, over=0.5, unit="fraction"))
    assert axis == "fraction of the training"
    for training, decay, expected in (
        (Training(epochs=None, steps=500), InverseSigmoid(k=10.0), "epochs"),  # of which the recipe plans none
        (Training(epochs=20), InverseSigmoid(k=1000.0, unit="step"), "updates"),
    ):
        axis, _, moments = schedules.timeline(training, decay)
        assert axis == expected
        assert decay(moments[-1]) < 0.01 < 0.9 < decay(moments[0])


# The loss along a line


def test_only_the_hard_loss_is_discontinuous(tmp_path: Path) -> None:
    """Between points very close to each other a continuous loss hardly moves, and the hard one still jumps."""
    model, batch = discontinuity.train_small_lstm(6)
    origin = nn.utils.parameters_to_vector(model.parameters()).detach()
    direction = discontinuity.random_direction(model, 6)

    def losses(objective: ScheduledSampling, distances: torch.Tensor) -> torch.Tensor:
        points = [origin + float(s) * direction for s in distances]
        return torch.tensor([discontinuity.loss_at(objective, model, batch, point) for point in points])

    hard, soft = (ScheduledSampling(feed=f, mixing=0.0, alpha=5.0) for f in ("argmax", "soft_argmax"))
    coarse = torch.linspace(-0.5, 0.0, 101, dtype=torch.float64)
    place = int(losses(hard, coarse).diff().abs().argmax())
    low, high = coarse[place], coarse[place + 1]
    for _ in range(12):  # close in on the jump
        middle = (low + high) / 2
        first, here, last = losses(hard, torch.stack([low, middle, high]))
        low, high = (low, middle) if (here - first).abs() > (last - here).abs() else (middle, high)
    near = torch.stack([low, high])
    assert losses(hard, near).diff().abs().item() > 0.2
    assert losses(soft, near).diff().abs().item() < 0.01
    picture = discontinuity.plot_discontinuity(tmp_path / "small.svg", points=3)
    assert "soft argmax, α = 125" in picture.read_text()
