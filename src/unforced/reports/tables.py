"""Tables of a comparison as text, Markdown and terminal output."""

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TextIO

from unforced.errors import printable
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
    chosen = _tabulated(comparison, measure)
    places = decimals(cell.mean for _, cell in chosen)
    title, required = f"{measure.name} ({'higher' if measure.higher_is_better else 'lower'} is better", {0, 1, 2}
    if any(row.decoder == DASH for row, _ in chosen):
        title, required = f"{title}; the same with every decoder", {0, 2}
    several_seeds, costs = len(comparison.seeds) > 1, _costs_differ(comparison)
    level = per_cent(comparison.level)
    header = (
        "variant",
        "decoder",
        "score",
        f"{level} interval",
        _chosen_seed(comparison),
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


def _tabulated(comparison: Comparison, measure: Measure) -> list[tuple[Row, Cell]]:
    """Return the rows of a metric; one a variant, with a dash for its decoder, if scores are equal for all decoders."""
    found = [(row, row.cells[measure.name]) for row in comparison.rows if measure.name in row.cells]
    by_variant: dict[str, list[tuple[Row, Cell]]] = {}
    for row, cell in found:
        by_variant.setdefault(row.variant, []).append((row, cell))
    if len(found) > len(by_variant) and all(
        cell.scores == mine[0][1].scores for mine in by_variant.values() for _, cell in mine
    ):
        return [(replace(mine[0][0], decoder=DASH), mine[0][1]) for mine in by_variant.values()]
    return found


def _chosen_seed(comparison: Comparison) -> str:
    return f"{comparison.split} score of best dev seed"


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
    notes = [f"score: {comparison.split} split{count}, {spread} {', '.join(map(str, seeds))}."]
    if comparison.bootstrap_samples:
        notes.append(interval_note(comparison))
    if several and any(cell.best is not None for row in comparison.rows for cell in row.cells.values()):
        notes.append(
            f"{_chosen_seed(comparison)}: the {comparison.split} score of the seed whose development score (first "
            "metric, same decoder) is best."
        )
    if comparison.permutations:
        notes.append(
            f"change and p-value: against {baseline} with the same decoder, over test examples"
            f"{' and seeds' if several else ''}. "
            "The interval is a paired bootstrap, the p-value a two-sided approximate randomisation test with "
            f"{comparison.permutations} permutations, not corrected for multiple comparisons. "
            "The sentences on winners are corrected: "
            "they multiply p-values by the number of tests of the metric (Bonferroni)."
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
            f"unfinished: {left} of {len(comparison.runs)} runs are missing; "
            "intervals and tests follow when all have ended."
        )
    notes += [f"failed: {run.variant}, seed {run.seed}: {run.reason}" for run in comparison.failures]
    return (*notes, *comparison.notes)


def interval_note(comparison: Comparison) -> str:
    """Return how the intervals were computed, with the part that seeds add."""
    seeds = len(comparison.seeds)
    of_seeds = (
        f" Variance between the {seeds} seeds that the examples do not explain is added, scaled up for their small "
        "number; with few seeds it can be the larger part."
        if seeds > 1
        else " There is one seed, so it is about this trained model only."
    )
    return (
        f"{per_cent(comparison.level)} interval: percentile bootstrap over the {comparison.split} examples, "
        f"{comparison.bootstrap_samples} samples.{of_seeds} Bounds stay within the metric's range."
    )


def per_cent(share: float) -> str:
    """Return a share as text.

    >>> per_cent(0.95)
    '95 %'
    """
    return f"{share:.0%}".replace("%", " %")


def _costs_differ(comparison: Comparison) -> bool:
    """Whether any variant but the baseline has a cost."""
    return any(row.cost is not None and row.variant != comparison.baseline for row in comparison.rows)


# Changes against the baseline, and who won


class Change(NamedTuple):
    """The score of a variant with a decoder minus the baseline's."""

    variant: str
    decoder: str  # a dash if scores are equal for all decoders
    score: float
    value: float
    low: float
    high: float
    p_value: float
    cost: float | None  # training time relative to the baseline's


def changes(comparison: Comparison, measure: Measure) -> list[Change]:
    """Return the changes in the order of the table; there are none before all runs have ended."""
    found = []
    for row, cell in _tabulated(comparison, measure):
        numbers = (cell.mean, cell.difference, cell.difference_low, cell.difference_high, cell.p_value)
        known = [each for each in numbers if each is not None]
        if len(known) == len(numbers):
            score, value, low, high, p_value = known
            found.append(Change(row.variant, row.decoder, score, value, low, high, p_value, row.cost))
    return found


def verdicts(comparison: Comparison) -> list[str]:
    """Return a sentence for each metric that says which variant wins; none before the changes are tested."""
    return [
        _verdict(comparison, measure, found)
        for measure in comparison.measures
        if (found := changes(comparison, measure))
    ]


def _verdict(comparison: Comparison, measure: Measure, found: Sequence[Change]) -> str:
    """Name the best score among the variants that differ from the baseline for the better, beyond chance."""
    name, baseline, sign = measure.name, comparison.baseline, 1 if measure.higher_is_better else -1
    certain = [change for change in found if change.p_value * len(found) < 1 - comparison.level]
    better = [change for change in certain if sign * change.value > 0]
    if not certain:
        return f"No variant differs from {baseline} in {name} beyond chance."
    if not better:
        return f"No variant beats {baseline} in {name}; {_are(change.variant for change in certain)} worse."
    best = max(better, key=lambda change: sign * change.score)
    places = decimals(row.cells[name].mean for row in comparison.rows if name in row.cells)
    words = f"{best.variant} wins {name}" + (f" with {best.decoder}: " if best.decoder != DASH else ": ")
    words += (
        f"{number(best.value, places, sign=True)} {bounds(best.low, best.high, places, sign=True)} against {baseline}"
    )
    if best.cost is not None:
        times = number(best.cost, 1)
        words += ", at the same training cost" if times == "1.0" else f", at {times} times its training cost"
    same = [change for change in found if change.decoder == best.decoder and change.variant != best.variant]
    if close := [change.variant for change in same if best.low <= change.value <= best.high]:
        words += f"; {_are(close)} within this interval"
    return f"{words}."


def _are(names: Iterable[str]) -> str:
    """Join names as the subject of a sentence, with its verb.

    >>> _are(["a"]), _are(["a", "b", "a", "c"])
    ('a is', 'a, b and c are')
    """
    *first, last = dict.fromkeys(names)
    return f"{', '.join(first)} and {last} are" if first else f"{last} is"


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
    notes = [*verdicts(comparison), *comparison_notes(comparison)]
    parts.append("\n".join(f"- {_escape(note)}" for note in notes))
    return "\n".join(parts) + "\n"


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def print_comparison(comparison: Comparison, file: TextIO | None = None) -> None:
    """Print the tables, their notes, and who won."""
    console = _console(file)
    for table in comparison_tables(comparison):
        _print_grid(console, table)
    for note in comparison_notes(comparison):
        console.print(f"  {note}", soft_wrap=True)
    if sentences := verdicts(comparison):
        console.print("", *sentences, sep="\n", soft_wrap=True)


def print_evaluation(comparison: Comparison, file: TextIO | None = None) -> None:
    """Print the scores of one run in one table."""
    rows = [
        (
            row.decoder,
            measure.name,
            number(cell.mean, decimals([cell.mean])),
            bounds(cell.low, cell.high, decimals([cell.mean])),
            "higher" if measure.higher_is_better else "lower",
        )
        for row in comparison.rows
        for measure in comparison.measures
        if (cell := row.cells.get(measure.name))
    ]
    title = f"{comparison.name}: {comparison.split} split, {comparison.examples} examples"
    header = ("decoder", "metric", "score", f"{per_cent(comparison.level)} interval", "better")
    console = _console(file)
    _print_grid(console, TextTable(title, header, tuple(rows), (False, False, True, True, False)))
    console.print(f"  {interval_note(comparison)}", soft_wrap=True)


def _console(file: TextIO | None) -> Any:
    """Return a console; plain text of any width if the output is no terminal."""
    from rich.console import Console

    console = Console(file=file, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 240
    return console


def _print_grid(console: Any, table: TextTable) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name, numeric in zip(table.header, table.numeric):
        grid.add_column(Text(name), justify="right" if numeric else "left", overflow="fold", no_wrap=not numeric)
    for row in table.rows:
        grid.add_row(*map(Text, row))
    console.print(f"\n{table.title}", soft_wrap=True)
    console.print(grid)


def print_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a table on a terminal; elsewhere, lines of cells separated by tabs, for programs."""
    if not sys.stdout.isatty():
        for row in rows:
            print(*(printable(str(cell)) for cell in row), sep="\t")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*(Text(printable(str(cell))) for cell in row))
    Console().print(grid)
