"""The picture of what variants change against the baseline."""

from dataclasses import replace
from pathlib import Path

import pytest

from unforced.cli import main
from unforced.experiments.comparison import Cell, Comparison, Measure, Row, RunState
from unforced.reports.figures import Change, changes, figure, inline_changes

ACCURACY = Measure("accuracy", True, "")
ERROR = Measure("error", False, "")
PLAIN = Cell({"1": 50.0}, 50.0)
BETTER = Cell({"1": 52.0}, 52.0, difference=2.0, difference_low=1.0, difference_high=3.0)
OPEN = Cell({"1": 51.0}, 51.0, difference=1.0, difference_low=-1.0, difference_high=3.0)
UNJUDGED = Cell({"1": 51.0}, 51.0, difference=1.0)

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
        Row("odd_$x$", "greedy", 1.0, {"accuracy": UNJUDGED}),
    ),
    runs=(RunState("plain", 1, "plain-1", "finished"),),
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "comparison.json").write_text(COMPARISON.to_json())
    return tmp_path / "toy"


def test_changes_are_those_with_an_interval() -> None:
    assert changes(COMPARISON, ACCURACY) == [
        Change("new", "greedy", 2.0, 1.0, 3.0),
        Change("new", "beam", 1.0, -1.0, 3.0),
    ]


def test_points_and_intervals_stand_where_the_table_says() -> None:
    found = changes(COMPARISON, ACCURACY)
    (axes,) = figure(found, COMPARISON, ACCURACY, lambda _: "red", "black").axes
    zero, *drawn = axes.lines
    assert list(zero.get_xdata()) == [0, 0]
    assert [list(line.get_xdata()) for line in drawn] == [[1.0, 3.0], [2.0], [-1.0, 3.0], [1.0]]
    assert [line.get_fillstyle() for line in drawn[1::2]] == ["full", "none"]  # zero left out, or not
    assert drawn[0].get_ydata()[0] > drawn[2].get_ydata()[0]  # the decoders of a variant below each other
    assert [label.get_text() for label in axes.get_yticklabels()] == ["new"]
    assert axes.get_xlabel().endswith("right is better")
    (axes,) = figure(changes(COMPARISON, ERROR), COMPARISON, ERROR, lambda _: "red", "black").axes
    assert axes.get_xlabel().endswith("left is better")


def test_the_page_has_the_picture_once_there_is_something_to_show() -> None:
    svg = inline_changes(COMPARISON, ["plain", "new", "odd_$x$"], "s0-changes")
    assert svg is not None
    assert svg.startswith('<svg role="img" aria-label="change of accuracy against plain"')
    assert "var(--line-1)" in svg  # the colour that "new" has on the page
    assert inline_changes(replace(COMPARISON, measures=()), ["plain", "new"], "s0") is None
    assert inline_changes(replace(COMPARISON, rows=COMPARISON.rows[:2]), ["plain"], "s0") is None


def test_the_command_writes_it_beside_the_comparison_or_where_it_is_told(folder: Path, capsys) -> None:
    assert main(["plot", "changes", str(folder)]) == 0
    assert capsys.readouterr().out.strip() == str(folder / "changes.svg")
    first = (folder / "changes.svg").read_bytes()
    assert main(["plot", "changes", str(folder), "-o", str(folder / "again.svg")]) == 0
    assert (folder / "again.svg").read_bytes() == first
    assert main(["plot", "changes", str(folder), "--metric", "error", "-o", str(folder / "error.svg")]) == 0
    assert (folder / "error.svg").read_bytes() != first


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["changes"], "plot changes needs the folder of the comparison"),
        (["changes", "nowhere"], "nowhere holds no comparison"),
        (["changes", "toy", "--metric", "bleu"], "no metric bleu: choose among accuracy, error"),
        (["changes", "toy", "-o", "x.gif"], "ends in .svg, .png, .pdf"),
        (["changes", "early"], "nothing to compare yet"),
        (["traces", "toy", "--metric", "error"], "--metric goes with changes, not with traces"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(words, complaint, folder, monkeypatch, capsys) -> None:
    monkeypatch.chdir(folder.parent)
    (folder.parent / "early").mkdir()
    early = replace(COMPARISON, rows=COMPARISON.rows[:2])
    (folder.parent / "early" / "comparison.json").write_text(early.to_json())
    assert main(["plot", *words]) == 2
    error = capsys.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert not list(folder.parent.rglob("*.svg"))
