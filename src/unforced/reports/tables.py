"""Tables of a comparison as text, Markdown and terminal output."""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TextIO

from unforced.experiments.comparison import Cell, Comparison, Measure, Row

DASH = "–"
BASELINE = "baseline"


class TextTable(NamedTuple):
    """A table of texts."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numeric: tuple[bool, ...]  # columns aligned on the right


# Numbers


def decimals(values: Iterable[float | None]) -> int:
    """Return how many decimals suit scores of this size: 2 for percentages, 4 for fractions.

    >>> decimals([27.31, 25.0]), decimals([0.84, None]), decimals([1234.5])
    (2, 4, 1)
    """
    largest = max((abs(v) for v in values if v is not None and math.isfinite(v)), default=0.0)
    return 4 if largest <= 1.5 else 2 if largest < 1000 else 1


def number(value: float | None, places: int = 2, *, sign: bool = False) -> str:
    """Return a number as text, or a dash for None and NaN.

    >>> number(3.14159), number(None), number(-0.5, 1, sign=True), number(0.5, 1, sign=True)
    ('3.14', '–', '−0.5', '+0.5')
    """
    if value is None or math.isnan(value):
        return DASH
    text = f"{value:+.{places}f}" if sign else f"{value:.{places}f}"
    return text.replace("-", "−")


def bounds(low: float | None, high: float | None, places: int = 2, *, sign: bool = False) -> str:
    """Return an interval as text.

    >>> bounds(26.9, 27.8)
    '[26.90, 27.80]'
    """
    if low is None or high is None:
        return DASH
    return f"[{number(low, places, sign=sign)}, {number(high, places, sign=sign)}]"


def p_text(p: float | None) -> str:
    """Return a p-value as text.

    >>> p_text(0.0312), p_text(0.0001), p_text(None)
    ('0.031', '< 0.001', '–')
    """
    return "< 0.001" if p is not None and p < 0.001 else number(p, 3)


def minutes(value: float) -> str:
    """Return minutes as text.

    >>> minutes(12.34), minutes(0.034)
    ('12.3', '0.03')
    """
    return number(value, 1 if value >= 0.1 else 2)


# Tables of a comparison


def comparison_tables(comparison: Comparison) -> tuple[TextTable, ...]:
    """Return a table for each metric, with a row for each variant and decoder."""
    return tuple(_metric_table(comparison, measure) for measure in comparison.measures)


def _metric_table(comparison: Comparison, measure: Measure) -> TextTable:
    chosen = [(row, row.cells[measure.name]) for row in comparison.rows if measure.name in row.cells]
    places = decimals(cell.mean for _, cell in chosen)
    title, required = f"{measure.name} ({'higher' if measure.higher_is_better else 'lower'} is better", {0, 1, 2}
    if _independent_of_decoder(chosen):
        firsts: dict[str, tuple[Row, Cell]] = {}
        for row, cell in chosen:
            firsts.setdefault(row.variant, (replace(row, decoder=DASH), cell))
        chosen = list(firsts.values())
        title, required = f"{title}; the same with every decoder", {0, 2}
    several_seeds, costs = len(comparison.seeds) > 1, _costs_differ(comparison)
    level = _percent(comparison.level)
    header = (
        "variant",
        "decoder",
        "score",
        f"{level} interval",
        "best dev seed",
        "change",
        f"{level} interval of change",
        "p-value",
        "training cost",
    )
    rows = [
        (
            row.variant,
            row.decoder,
            number(cell.mean, places) + (f" ± {number(cell.sd, places)}" if cell.sd is not None else ""),
            bounds(cell.low, cell.high, places),
            number(cell.best if several_seeds and row.decoder != DASH else None, places),
            BASELINE if row.variant == comparison.baseline else number(cell.difference, places, sign=True),
            bounds(cell.difference_low, cell.difference_high, places, sign=True),
            p_text(cell.p_value),
            f"{number(row.cost)}×" if costs and row.cost is not None else DASH,
        )
        for row, cell in chosen
    ]
    kept = [i for i in range(len(header)) if i in required or any(row[i] not in (DASH, BASELINE) for row in rows)]
    return TextTable(
        f"{title})",
        tuple(header[i] for i in kept),
        tuple(tuple(row[i] for i in kept) for row in rows),
        tuple(i > 1 for i in kept),
    )


def _independent_of_decoder(chosen: Sequence[tuple[Row, Cell]]) -> bool:
    """Whether there are several decoders and all have the same scores, as with a metric of the model."""
    scores: dict[str, list[dict[str, float | None]]] = {}
    for row, cell in chosen:
        scores.setdefault(row.variant, []).append(cell.scores)
    return len(chosen) > len(scores) and all(each.count(each[0]) == len(each) for each in scores.values())


def length_table(comparison: Comparison) -> TextTable:
    """Return the first metric by length, with a column for each bin."""
    measure = comparison.measures[0].name
    rows = [row for row in comparison.rows if measure in row.cells and row.cells[measure].by_length]
    places = decimals(value for row in rows for value in row.cells[measure].by_length)
    bins = [f"{b.low}–{b.high}" if b.low < b.high else str(b.low) for b in comparison.lengths]
    return TextTable(
        f"{measure} by length ({comparison.length_unit})",
        ("variant", "decoder", *bins),
        tuple((r.variant, r.decoder, *(number(v, places) for v in r.cells[measure].by_length)) for r in rows),
        (False, False, *(True for _ in bins)),
    )


def comparison_notes(comparison: Comparison) -> tuple[str, ...]:
    """Return the notes below the tables: how each column was computed, and which runs failed."""
    seeds, baseline = comparison.seeds, comparison.baseline
    several = len(seeds) > 1
    count = "" if comparison.examples is None else f" of {comparison.examples} examples"
    spread = "mean ± standard deviation over seeds" if several else "one run, seed"
    resampled = "test examples and seeds" if several else "test examples (there is one seed)"
    notes = [f"score: {comparison.split} split{count}, {spread} {', '.join(map(str, seeds))}."]
    if comparison.bootstrap_samples:
        level, samples = _percent(comparison.level), comparison.bootstrap_samples
        notes.append(f"{level} interval: percentile bootstrap of the mean over {resampled}, {samples} samples.")
    if several and any(cell.best is not None for row in comparison.rows for cell in row.cells.values()):
        notes.append(
            f"best dev seed: {comparison.split} score of the seed with the best development score (first metric, same "
            "decoder)."
        )
    if comparison.permutations:
        notes.append(
            f"change and p-value: against {baseline} with the same decoder, over {resampled}. The interval is a paired "
            f"bootstrap, the p-value a two-sided approximate randomisation test with {comparison.permutations} "
            "permutations, not corrected for multiple comparisons."
        )
    if _costs_differ(comparison):
        notes.append(
            f"training cost: training seconds per target token relative to {baseline}, median of runs. The runs were "
            "not interleaved, so it is approximate."
        )
    efforts = {}
    for row in comparison.rows:
        if row.minutes is not None:
            threads = "" if row.threads is None else f" on {row.threads} thread{'s' if row.threads > 1 else ''}"
            efforts[row.variant] = f"{row.variant} {minutes(row.minutes)} minutes{threads}"
    if efforts:
        notes.append(f"training time of a run without validation: {'; '.join(efforts.values())}.")
    notes += [f"{measure.name}: {measure.signature}." for measure in comparison.measures]
    if not comparison.complete:
        left = sum(run.state not in ("finished", "failed") for run in comparison.runs)
        notes.append(
            f"unfinished: {left} of {len(comparison.runs)} runs are missing; intervals and tests follow when all have ended."
        )
    notes += [f"failed: {run.variant}, seed {run.seed}: {run.reason}" for run in comparison.failures]
    return (*notes, *comparison.notes)


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _costs_differ(comparison: Comparison) -> bool:
    """Whether any variant but the baseline has a cost."""
    return any(row.cost is not None and row.variant != comparison.baseline for row in comparison.rows)


# Output


def comparison_markdown(comparison: Comparison) -> str:
    """Return the tables and their notes as Markdown."""
    tables, parts = list(comparison_tables(comparison)), []
    if comparison.lengths:
        tables.append(length_table(comparison))
    for table in tables:
        rule = tuple("---:" if numeric else "---" for numeric in table.numeric)
        lines = [table.header, rule, *table.rows]
        parts.append(f"{table.title}\n")
        parts.append("\n".join(f"| {' | '.join(_escape(cell) for cell in line)} |" for line in lines) + "\n")
    parts.append("\n".join(f"- {_escape(note)}" for note in comparison_notes(comparison)))
    return "\n".join(parts) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def print_comparison(comparison: Comparison, file: TextIO | None = None) -> None:
    """Print the tables and their notes; in plain text of any width if the output is no terminal."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=file, highlight=False)
    if not console.is_terminal:
        console.width = 240
    for table in comparison_tables(comparison):
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
        for name, numeric in zip(table.header, table.numeric):
            grid.add_column(Text(name), justify="right" if numeric else "left", overflow="fold")
        for row in table.rows:
            grid.add_row(*map(Text, row))
        console.print(Text(f"\n{table.title}"))
        console.print(grid)
    for note in comparison_notes(comparison):
        console.print(Text(f"  {note}"), soft_wrap=True)


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table on a terminal; elsewhere, lines of cells separated by tabs, for programs."""
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
