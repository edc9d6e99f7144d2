"""Tables of a comparison, and the file that holds it."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from unforced.errors import InputError
from unforced.experiments.comparison import Cell, Comparison, LengthBin, Measure, Row, RunState, read_comparison
from unforced.reports.tables import (
    comparison_markdown,
    comparison_notes,
    comparison_tables,
    print_comparison,
    print_evaluation,
    print_table,
    verdicts,
)


def cell(mean: float, change: float | None) -> Cell:
    known = Cell({"1": mean, "2": mean}, mean, 0.25, 1, mean, mean - 0.5, mean + 0.5, by_length=(1.0, None))
    if change is None:
        return known
    return replace(known, difference=change, difference_low=change - 0.5, difference_high=change + 0.5, p_value=0.0004)


@pytest.fixture
def comparison() -> Comparison:
    rows = tuple(
        Row(variant, "greedy", cost, {"error": cell(mean, change)})
        for variant, mean, change, cost in [("base", 27.0, None, 1.0), ("a|b<i>", 26.0, -1.0, 1.234)]
    )
    runs = tuple(RunState(row.variant, seed, f"{row.variant}-{seed}", "finished") for row in rows for seed in (1, 2))
    return Comparison(
        name="toy",
        description="A toy",
        command="unforced compare toy",
        baseline="base",
        split="test",
        examples=500,
        level=0.95,
        bootstrap_samples=1000,
        permutations=10000,
        measures=(Measure("error", False, "wrong / all"),),
        rows=rows,
        runs=runs,
        lengths=(LengthBin(1, 3, 40), LengthBin(4, 9, 41)),
        length_unit="words",
    )


def test_comparison_json_round_trip(comparison: Comparison, tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(comparison.to_json())
    assert read_comparison(path) == comparison
    row = replace(comparison.rows[0], cells={"error": replace(comparison.rows[0].cells["error"], low=float("nan"))})
    path.write_text(replace(comparison, rows=(row,)).to_json())
    assert json.loads(path.read_text())["rows"][0]["cells"]["error"]["low"] is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "comparison.json:1: is not JSON"),
        ('{"format": 99}', "not a comparison of format 1"),
        ('{"format": 1}', "comparison.json.name is missing"),
    ],
)  # fmt: skip
def test_invalid_comparison_files_raise(text: str, says: str, tmp_path: Path) -> None:
    path = tmp_path / "comparison.json"
    path.write_text(text)
    with pytest.raises(InputError, match=says):
        read_comparison(path)


def test_the_table_has_all_numbers(comparison: Comparison) -> None:
    (table,) = comparison_tables(comparison)
    assert table.title == "error (lower is better)"
    assert table.header[4] == "test score of best dev seed"
    assert table.rows == (
        ("base", "greedy", "27.00 ± 0.25", "[26.50, 27.50]", "27.00", "baseline", "–", "–", "1.00×"),
        ("a|b<i>", "greedy", "26.00 ± 0.25", "[25.50, 26.50]", "26.00", "−1.00", "[−1.50, −0.50]", "< 0.001", "1.23×"),
    )  # fmt: skip


def test_the_notes_describe_the_columns(comparison: Comparison) -> None:
    notes = " ".join(comparison_notes(comparison))
    for words in (
        "500 examples",
        "seeds 1, 2",
        "1000 samples",
        "10000 permutations",
        "not interleaved",
        "Variance between the 2 seeds that the examples do not explain is added",
        "wrong / all",
    ):
        assert words in notes


def test_a_sentence_says_who_won(comparison: Comparison) -> None:
    base, better = comparison.rows
    assert verdicts(comparison) == [
        "a|b<i> wins error with greedy: −1.00 [−1.50, −0.50] against base, at 1.2 times its training cost."
    ]
    close = Row("close", "greedy", 1.01, {"error": cell(26.2, -0.8)})
    three = replace(comparison, rows=(base, close, better))
    assert verdicts(three)[0].endswith("training cost; close is within this interval.")
    assert verdicts(replace(comparison, rows=(replace(better, cost=None),)))[0].endswith("[−1.50, −0.50] against base.")
    assert verdicts(replace(three, rows=(base, close)))[0].endswith("against base, at the same training cost.")
    higher = replace(three, measures=(Measure("error", True, ""),))
    assert verdicts(higher) == ["No variant beats base in error; close and a|b<i> are worse."]
    chance = replace(better, cells={"error": replace(better.cells["error"], p_value=0.03)})
    assert verdicts(replace(comparison, rows=(base, chance)))[0].startswith("a|b<i> wins")
    # of two tests, the smaller p-value must be below 2.5 %
    assert verdicts(replace(comparison, rows=(base, chance, replace(chance, variant="c")))) == [
        "No variant differs from base in error beyond chance."
    ]
    assert verdicts(replace(comparison, rows=(base,))) == []


def test_the_notes_name_failed_and_missing_runs(comparison: Comparison) -> None:
    first, second, *rest = comparison.runs
    runs = (replace(first, state="failed", reason="the loss is not a number"), replace(second, state="waiting"), *rest)
    broken = replace(comparison, runs=runs)
    notes = " ".join(comparison_notes(broken))
    assert "failed: base, seed 1: the loss is not a number" in notes
    assert "unfinished: 1 of 4 runs are missing" in notes
    assert broken.failures == (runs[0],)
    assert not broken.complete


def test_empty_columns_are_left_out(comparison: Comparison) -> None:
    rows = tuple(replace(row, cost=None, cells={"error": Cell({"1": 1.0}, 1.0)}) for row in comparison.rows)
    (table,) = comparison_tables(replace(comparison, rows=rows))
    assert table.header == ("variant", "decoder", "score")


def test_metrics_independent_of_the_decoder_have_one_row_per_variant(comparison: Comparison) -> None:
    again = tuple(replace(row, decoder="beam") for row in comparison.rows)
    (table,) = comparison_tables(replace(comparison, rows=(*comparison.rows, *again)))
    assert table.title == "error (lower is better; the same with every decoder)"
    assert "decoder" not in table.header
    assert [row[0] for row in table.rows] == ["base", "a|b<i>"]
    better = replace(again[1], cells={"error": cell(25.0, -2.0)})
    (table,) = comparison_tables(replace(comparison, rows=(*comparison.rows, again[0], better)))
    pairs = [(variant, decoder) for decoder in ("greedy", "beam") for variant in ("base", "a|b<i>")]
    assert [row[:2] for row in table.rows] == pairs


def test_markdown_escapes_cells(comparison: Comparison) -> None:
    text = comparison_markdown(comparison)
    for part in text.split("\n\n"):
        rows = [line for line in part.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in rows}) <= 1
    assert "| variant | decoder | 1–3 | 4–9 |" in text
    assert "| base | greedy | 1.0000 | – |" in text
    assert "a\\|b&lt;i>" in text
    assert text.endswith("\n")


def test_output_is_plain_without_a_terminal(comparison: Comparison) -> None:
    out = io.StringIO()
    print_comparison(comparison, out)
    text = out.getvalue()
    assert "\x1b" not in text
    assert "a|b<i>" in text
    assert "[−1.50, −0.50]" in text
    assert any("27.00 ± 0.25" in line and "baseline" in line for line in text.splitlines())
    assert text.splitlines()[-1] == verdicts(comparison)[0]


def test_an_evaluation_is_one_table(comparison: Comparison) -> None:
    higher = Measure("accuracy", True, "")
    row = replace(comparison.rows[0], cells={"error": cell(27.0, None), "accuracy": cell(0.5, None)})
    out = io.StringIO()
    print_evaluation(
        replace(comparison, rows=(row,), runs=comparison.runs[:1], measures=(*comparison.measures, higher)), out
    )
    title, header, *lines = [" ".join(line.split()) for line in out.getvalue().splitlines() if line.strip(" ─")]
    assert title == "toy: test split, 500 examples"
    assert header == "decoder metric score 95 % interval better"
    assert lines[:2] == ["greedy error 27.00 [26.50, 27.50] lower", "greedy accuracy 0.5000 [0.0000, 1.0000] higher"]
    assert "There is one seed, so it is about this trained model only." in lines[2]


def test_terminal_output_has_the_same_cells(
    comparison: Comparison, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    out = io.StringIO()
    print_comparison(comparison, out)
    assert "\x1b" in out.getvalue()
    monkeypatch.setenv("COLUMNS", "90")  # columns of numbers are folded, names are not
    narrow = io.StringIO()
    long = tuple(replace(row, variant="scheduled_sampling") for row in comparison.rows)
    print_comparison(replace(comparison, rows=long), narrow)
    assert narrow.getvalue().count(" scheduled_sampling ") == 2
    assert any("a|b<i>" in line and "[−1.50, −0.50]" in line for line in out.getvalue().splitlines())
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table(("name", "what"), [("a", "[bold]b[/bold]")])
    assert "[bold]b[/bold]" in capsys.readouterr().out
