"""What variants change against the baseline, as a picture: a point for each decoder, and its interval.

Where a table has forty rows, this is what to look at first: what lies to the right is more than the baseline's, and a filled point has
an interval that leaves zero out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from unforced.comparison import Comparison, Measure
from unforced.report.inline import INK, colour, inline

MARKERS = "osD^vP*X"  # of decoders
GAP = 0.16  # between the decoders of a variant; variants are 1 apart


class Change(NamedTuple):
    """One variant with one decoder: its score minus the baseline's, and the bounds of that."""

    variant: str
    decoder: str
    value: float
    low: float
    high: float

    @property
    def certain(self) -> bool:
        """Whether the interval leaves zero out.

        >>> Change("a", "beam", 1.0, 0.5, 1.5).certain, Change("a", "beam", 1.0, -0.5, 2.5).certain
        (True, False)
        """
        return self.low > 0 or self.high < 0


def changes(comparison: Comparison, measure: Measure) -> list[Change]:
    """The changes that are known, in the table's order; none before all runs have ended."""
    found = []
    for row in comparison.rows:
        cell = row.cells.get(measure.name)
        if cell is None or cell.difference is None:
            continue
        if cell.difference_low is not None and cell.difference_high is not None:
            found.append(
                Change(row.variant, row.decoder, cell.difference, cell.difference_low, cell.difference_high)
            )
    return found


def inline_changes(comparison: Comparison, variants: Sequence[str], name: str) -> str | None:
    """The changes of the first metric as an ``<svg>`` element, each variant in the page's colour; None where there are none."""
    measure = comparison.measures[0] if comparison.measures else None
    if measure is None or not (found := changes(comparison, measure)):
        return None

    def draw() -> Any:
        return figure(found, comparison, measure, lambda variant: colour(variants.index(variant)), INK)

    return inline(draw, name, f"change of {measure.name} against {comparison.baseline}")


def figure(
    found: Sequence[Change],
    comparison: Comparison,
    measure: Measure,
    colour_of: Callable[[str], str],
    ink: str,
) -> Any:
    """A matplotlib figure: a line of points for each variant, from top to bottom."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    variants = list(dict.fromkeys(change.variant for change in found))
    decoders = list(dict.fromkeys(change.decoder for change in found))
    made = Figure(figsize=(7.2, 1.3 + 0.2 * len(variants) * max(len(decoders), 2)), layout="constrained")
    axes = made.add_subplot()
    axes.axvline(0, color=ink, linewidth=0.8)
    for change in found:
        place = decoders.index(change.decoder)
        height = -variants.index(change.variant) - GAP * (place - (len(decoders) - 1) / 2)
        own = colour_of(change.variant)
        axes.plot([change.low, change.high], [height, height], color=own, linewidth=1.6)
        axes.plot(
            [change.value],
            [height],
            marker=MARKERS[place % len(MARKERS)],
            markersize=6,
            color=own,
            fillstyle="full" if change.certain else "none",
        )
    axes.set_yticks([-i for i in range(len(variants))], variants, parse_math=False)
    axes.set_ylim(-len(variants) + 0.4, 0.6)
    axes.grid(axis="x", linewidth=0.4, alpha=0.3, color=ink)
    better = "right" if measure.higher_is_better else "left"
    level = f"{comparison.level:.0%}".replace("%", " %")
    axes.set_xlabel(
        f"change of {measure.name} against {comparison.baseline}, {level} interval; {better} is better",
        parse_math=False,
    )
    keys = [
        Line2D(
            [],
            [],
            color=ink,
            marker=MARKERS[i % len(MARKERS)],
            linestyle="none",
            fillstyle="none",
            label=name,
        )
        for i, name in enumerate(decoders)
    ]
    if len(decoders) > 1:
        legend = made.legend(
            handles=keys, loc="outside upper center", ncols=min(len(keys), 6), frameon=False, fontsize="small"
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    return made
