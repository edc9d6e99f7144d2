"""How figures are written, and the tables of a comparison: for the terminal, for Markdown and for the report."""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TextIO

from unforced.experiments.comparison import Cell, Comparison, Measure, Row

DASH = "–"
BASELINE = "baseline"
SPARE = ("interval of change", "best dev")  # columns that a narrow terminal does without


class Table(NamedTuple):
    """A table of text: one metric of a comparison, a row for each variant and decoder."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]  # which columns are aligned on the right


def decimals(values: Iterable[float | None]) -> int:
    """How many decimals suit scores of this size: percentages two, fractions four.

    >>> decimals([27.31, 25.0]), decimals([0.84, None]), decimals([1234.5])
    (2, 4, 1)
    """
    largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    return 4 if largest <= 1.5 else 2 if largest < 1000 else 1


def number(value: float | None, places: int = 2, *, sign: bool = False) -> str:
    """A figure, or a dash where there is none.

    >>> number(3.14159), number(None), number(-0.5, 1, sign=True), number(0.5, 1, sign=True)
    ('3.14', '–', '−0.5', '+0.5')
    """
    if value is None or math.isnan(value):
        return DASH
    text = f"{value:+.{places}f}" if sign else f"{value:.{places}f}"
    return text.replace("-", "−")


def mean_sd(mean: float | None, sd: float | None, places: int = 2) -> str:
    """
    >>> mean_sd(27.314, 0.21), mean_sd(27.314, None)
    ('27.31 ± 0.21', '27.31')
    """
    return number(mean, places) if sd is None else f"{number(mean, places)} ± {number(sd, places)}"


def bounds(low: float | None, high: float | None, places: int = 2, *, sign: bool = False) -> str:
    """
    >>> bounds(26.9, 27.8)
    '[26.90, 27.80]'
    """
    if low is None or high is None:
        return DASH
    return f"[{number(low, places, sign=sign)}, {number(high, places, sign=sign)}]"


def p_text(p: float | None) -> str:
    """
    >>> p_text(0.0312), p_text(0.0001), p_text(1.0), p_text(None)
    ('0.031', '< 0.001', '1.000', '–')
    """
    if p is None or math.isnan(p):
        return DASH
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def ratio(value: float | None) -> str:
    """
    >>> ratio(1.2345), ratio(None)
    ('1.23×', '–')
    """
    return DASH if value is None else f"{number(value)}×"


def comparison_tables(comparison: Comparison) -> tuple[Table, ...]:
    """A table for each metric; the baseline's rows are marked by the word."""
    return tuple(_table(comparison, measure) for measure in comparison.measures)


def length_table(comparison: Comparison) -> tuple[Table, ...]:
    """The first metric by length, a column for each bin; nothing where there are no bins."""
    if not comparison.lengths or not comparison.measures:
        return ()
    measure = comparison.measures[0].name
    rows = [row for row in comparison.rows if measure in row.cells and row.cells[measure].by_length]
    places = decimals(value for row in rows for value in row.cells[measure].by_length)
    header = [f"{b.low}–{b.high}" if b.low < b.high else str(b.low) for b in comparison.lengths]
    return (
        Table(
            f"{measure} by length ({comparison.length_unit})",
            ("variant", "decoder", *header),
            tuple(
                (row.variant, row.decoder, *(number(v, places) for v in row.cells[measure].by_length)) for row in rows
            ),
            (False, False, *(True for _ in header)),
        ),
    )


def comparison_notes(comparison: Comparison) -> tuple[str, ...]:
    """What stands under the tables: how every column was computed, and what it doesn't say."""
    seeds = comparison.seeds
    spread = "mean ± standard deviation over seeds" if len(seeds) > 1 else "one run, seed"
    count = "" if comparison.examples is None else f" of {comparison.examples} examples"
    both = "test examples and seeds" if len(seeds) > 1 else "test examples (not over seeds: there is one)"
    notes = [f"score: {comparison.split} split{count}, {spread} {', '.join(map(str, seeds))}."]
    if comparison.bootstrap_samples:
        level = f"{comparison.level:.0%}".replace("%", " %")
        notes.append(
            f"{level} interval: percentile bootstrap of the mean over {both}, {comparison.bootstrap_samples} samples."
        )
    if len(seeds) > 1 and any(c.best is not None for row in comparison.rows for c in row.cells.values()):
        notes.append(
            f"best dev: {comparison.split} score of the seed with the best development score (first metric, same decoder)."
        )
    if comparison.permutations:
        notes.append(
            f"change and p: against {comparison.baseline} with the same decoder, over {both} as well; the interval is a paired "
            f"bootstrap, p a two-sided approximate randomisation test, {comparison.permutations} permutations, not corrected for "
            "several comparisons."
        )
    if _costs_differ(comparison):
        notes.append(
            f"cost: training seconds per target token (median of runs) as a ratio to {comparison.baseline}, from these runs, not "
            "interleaved: read it as approximate."
        )
    efforts = {row.variant: _effort(row) for row in comparison.rows if row.minutes is not None}
    if efforts:
        notes.append(f"training time of a run, validation apart: {'; '.join(efforts.values())}.")
    notes += [f"{measure.name}: {measure.signature}." for measure in comparison.measures]
    if not comparison.complete:
        left = sum(run.state not in ("finished", "failed") for run in comparison.runs)
        notes.append(
            f"unfinished: {left} of {len(comparison.runs)} runs are still to come; intervals and tests come last."
        )
    notes += [f"failed: {run.variant}, seed {run.seed}: {run.reason}" for run in comparison.failures]
    return (*notes, *comparison.notes)


def comparison_markdown(comparison: Comparison) -> str:
    """The tables and their notes as Markdown, for pages that hold generated figures."""
    parts = []
    for table in (*comparison_tables(comparison), *length_table(comparison)):
        rule = ["---:" if numeric else "---" for numeric in table.numeric]
        lines = [table.header, rule, *table.rows]
        parts.append(f"{table.title}\n")
        parts.append("\n".join(f"| {' | '.join(_escape(cell) for cell in line)} |" for line in lines) + "\n")
    parts.append("\n".join(f"- {_escape(note)}" for note in comparison_notes(comparison)))
    return "\n".join(parts) + "\n"


def print_comparison(comparison: Comparison, file: TextIO | None = None) -> None:
    """The tables on the terminal; where the output is no terminal, without colours and without folding.

    A terminal too narrow for all columns loses those of ``SPARE``, which the report has.
    """
    from rich.console import Console
    from rich.padding import Padding
    from rich.text import Text

    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console = Console(file=file, highlight=False, width=240, color_system=None)
    for table in comparison_tables(comparison):
        columns = list(range(len(table.header)))
        for spare in SPARE:
            if _width(table, columns) > console.width:
                columns = [i for i in columns if table.header[i] != spare]
        console.print(Text(f"\n{table.title}"))
        console.print(_rich(table, columns))
    for note in comparison_notes(comparison):
        if console.is_terminal:
            console.print(Padding(Text(note), (0, 0, 0, 2)), style="dim")
        else:
            console.print(Text(f"  {note}"), soft_wrap=True)


def _width(table: Table, columns: list[int]) -> int:
    lines = [table.header, *table.rows]
    return sum(2 + max(len(line[i]) for line in lines) for i in columns)


def _rich(table: Table, columns: list[int]) -> Any:
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    shown = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for i in columns:
        justify: Literal["left", "right"] = "right" if table.numeric[i] else "left"
        shown.add_column(Text(table.header[i]), justify=justify, overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(row[i]) for i in columns))
    return shown


def _table(comparison: Comparison, measure: Measure) -> Table:
    chosen = [(row, row.cells[measure.name]) for row in comparison.rows if measure.name in row.cells]
    places = decimals(cell.mean for _, cell in chosen)
    level = f"{comparison.level:.0%}".replace("%", " %")
    header = ("variant", "decoder", "score", f"{level} interval", "best dev", "change", "interval of change", "p", "cost")  # fmt: skip
    if len(comparison.seeds) == 1:  # the best of one says nothing new
        chosen = [(row, replace(cell, best=None)) for row, cell in chosen]
    if not _costs_differ(comparison):
        chosen = [(replace(row, cost=None), cell) for row, cell in chosen]
    better, needed = "higher is better" if measure.higher_is_better else "lower is better", {0, 1, 2}
    if _decoders_agree(chosen):
        firsts: dict[str, tuple[Row, Cell]] = {}
        for row, cell in chosen:
            firsts.setdefault(row.variant, (replace(row, decoder=DASH), replace(cell, best=None)))
        chosen = list(firsts.values())
        better, needed = f"{better}; the same with every decoder", {0, 2}
    rows = [_cells(row, cell, places, comparison.baseline) for row, cell in chosen]
    kept = [i for i in range(len(header)) if i in needed or any(row[i] not in (DASH, BASELINE) for row in rows)]
    return Table(
        f"{measure.name} ({better})",
        tuple(header[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in rows),
        tuple(i > 1 for i in kept),
    )


def _decoders_agree(chosen: Sequence[tuple[Row, Cell]]) -> bool:
    """Whether a metric is of the models and not of their outputs: several decoders, and all have the same scores."""
    scores: dict[str, list[dict[str, float]]] = {}
    for row, cell in chosen:
        scores.setdefault(row.variant, []).append(cell.scores)
    several = any(len(each) > 1 for each in scores.values())
    return several and all(each[0] == other for each in scores.values() for other in each)


def _effort(row: Row) -> str:
    """
    >>> _effort(Row("plain", "greedy", None, {}, minutes=25.42, threads=2))
    'plain 25.4 minutes on 2 threads'
    """
    threads = "" if row.threads is None else f" on {row.threads} thread{'s' if row.threads > 1 else ''}"
    return f"{row.variant} {number(row.minutes, 1)} minutes{threads}"


def _costs_differ(comparison: Comparison) -> bool:
    """Whether there is a cost to show: the baseline's ratio to itself says nothing."""
    return any(row.cost is not None and row.variant != comparison.baseline for row in comparison.rows)


def _cells(row: Row, cell: Cell, places: int, baseline: str) -> tuple[str, ...]:
    return (
        row.variant,
        row.decoder,
        mean_sd(cell.mean, cell.sd, places),
        bounds(cell.low, cell.high, places),
        number(cell.best, places),
        BASELINE if row.variant == baseline else number(cell.difference, places, sign=True),
        bounds(cell.difference_low, cell.difference_high, places, sign=True),
        p_text(cell.p_value),
        ratio(row.cost),
    )


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


# What a command prints as a table.


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table for people on a terminal; lines of cells with tabs between them for programs."""
    if not sys.stdout.isatty():
        for row in rows:
            print(*row, sep="\t")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*(Text(str(cell)) for cell in row))
    Console().print(grid)
