"""Learning curves as inline SVG: a colour a variant, thin lines its seeds, a thick line their mean."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from unforced.report.inline import COLOURS, INK, colour, inline

LETTER = 6.6  # points that a letter of a label takes, about
TALL = 34  # letters of a label that fit beside the vertical axis
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1, 2)))  # of variants that share a colour


class Curve(NamedTuple):
    """One run's points, at rising steps."""

    variant: str
    steps: list[float]
    values: list[float]


def plot(curves: Sequence[Curve], variants: Sequence[str], *, x: str, y: str, name: str) -> str:
    """An ``<svg>`` element with these curves, labelled at their right ends; ``name`` keeps its ids apart from others."""
    label = f"{y} against {x} for {', '.join(variants)}"
    return inline(lambda: _draw(curves, variants, x, y), name, label)


def _draw(curves: Sequence[Curve], variants: Sequence[str], x: str, y: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.4))
    longest = max(map(len, variants), default=0) * LETTER / (72 * figure.get_figwidth())
    lines = textwrap.wrap(y, TALL, break_long_words=False)
    left = 0.13 + 0.04 * (len(lines) - 1)
    width = min(0.83 - left, max(0.40, 0.96 - left - longest))  # names stand at the right
    axes = figure.add_axes((left, 0.15, width, 0.80))
    axes.set_xlabel(x, parse_math=False)
    axes.set_ylabel("\n".join(lines), parse_math=False)
    axes.grid(axis="y", linewidth=0.4, alpha=0.3, color=INK)
    ends = []
    for i, variant in enumerate(variants):
        mine = [curve for curve in curves if curve.variant == variant and curve.steps]
        look: dict[str, Any] = {"color": colour(i), "linestyle": DASHES[i // COLOURS % len(DASHES)]}
        centre = mean_curve(mine)
        for curve in mine:
            single = len(mine) == 1 or centre is None
            axes.plot(
                curve.steps,
                curve.values,
                linewidth=1.8 if single else 0.7,
                marker="o" if len(curve.steps) == 1 else None,
                markersize=4,
                alpha=1 if single else 0.45,
                **look,
            )
        if centre is not None and len(mine) > 1:
            axes.plot(centre.steps, centre.values, linewidth=2.0, **look)
        if mine:
            last = centre or mine[0]
            ends.append((last.values[-1], variant, colour(i)))
    _label(axes, ends)
    return figure


def mean_curve(curves: Sequence[Curve]) -> Curve | None:
    """Mean over runs at the steps that all of them have; None where they share none.

    >>> mean_curve([Curve("a", [1, 2, 3], [1.0, 2.0, 3.0]), Curve("a", [1, 3], [3.0, 5.0])])
    Curve(variant='a', steps=[1, 3], values=[2.0, 4.0])
    """
    if not curves:
        return None
    tables = [dict(zip(curve.steps, curve.values)) for curve in curves]
    shared = sorted(set.intersection(*(set(table) for table in tables)))
    if not shared:
        return None
    return Curve(
        curves[0].variant, shared, [float(np.mean([table[step] for table in tables])) for step in shared]
    )


def spread(heights: Sequence[float], gap: float) -> list[float]:
    """Heights in [0, 1] moved as little as a single sweep can so that neighbours are ``gap`` apart.

    >>> [round(h, 2) for h in spread([0.5, 0.5, 0.1], 0.1)]
    [0.5, 0.6, 0.1]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    placed = list(heights)
    for below, above in pairwise(order):
        placed[above] = max(placed[above], placed[below] + gap)
    excess = max([placed[order[-1]] - 1.0, 0.0]) if order else 0.0
    return [height - excess for height in placed]


def _label(axes: Any, ends: list[tuple[float, str, str]]) -> None:
    low, high = axes.get_ylim()
    heights = [(value - low) / (high - low) if np.isfinite(value) else 0.5 for value, _, _ in ends]
    for height, (_, variant, own) in zip(spread(heights, 0.065), ends):
        axes.text(1.02, height, variant, color=own, transform=axes.transAxes, va="center", parse_math=False)
