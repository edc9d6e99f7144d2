"""Learning curves as inline SVG: a colour a variant, thin lines its seeds, a thick line their mean.

The same runs give the same bytes. Text and axes take the page's colour, lines take its palette (``--line-0`` …), so the
figure follows the page into dark mode.
"""

from __future__ import annotations

import io
import re
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

INK = "#010203"  # stands for the page's text colour until the SVG is written
LETTER = 6.6  # points that a letter of a label takes, about
TALL = 34  # letters of a label that fit beside the vertical axis
COLOURS = 8  # in the page's palette; further variants repeat them with dashes
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1, 2)))


class Curve(NamedTuple):
    """One run's points, at rising steps."""

    variant: str
    steps: list[float]
    values: list[float]


def plot(curves: Sequence[Curve], variants: Sequence[str], *, x: str, y: str, name: str) -> str:
    """An ``<svg>`` element with these curves, labelled at their right ends; ``name`` keeps its ids apart from others."""
    import matplotlib

    style: Any = {
        "svg.fonttype": "none",
        "svg.hashsalt": "unforced",
        "font.size": 10,
        "font.family": "sans-serif",
        "axes.spines.top": False,
        "axes.spines.right": False,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK
        ),
        **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
    }
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's own style is
        matplotlib.rcParams.update(style)
        return _inline(_draw(curves, variants, x, y), name, f"{y} against {x} for {', '.join(variants)}")


def _draw(curves: Sequence[Curve], variants: Sequence[str], x: str, y: str) -> str:
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
        look: dict[str, Any] = {"color": _placeholder(i), "linestyle": DASHES[i // COLOURS % len(DASHES)]}
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
            ends.append((last.values[-1], variant, _placeholder(i)))
    _label(axes, ends)
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return text.getvalue()


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
    for height, (_, variant, colour) in zip(spread(heights, 0.065), ends):
        axes.text(
            1.02, height, variant, color=colour, transform=axes.transAxes, va="center", parse_math=False
        )


def _placeholder(i: int) -> str:
    """A colour that ``_inline`` replaces by the page's ``--line-i``."""
    return f"#0405{i % COLOURS:02x}"


def _inline(svg: str, name: str, label: str) -> str:
    """The ``<svg>`` element alone, without namespaces, with ids of its own and with the page's colours."""
    from html import escape

    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg, count=2)
    svg = re.sub(
        r'<svg width="[^"]*" height="[^"]*"', f'<svg role="img" aria-label="{escape(label)}"', svg, count=1
    )
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(INK, "currentColor")
    svg = re.sub(r"#0405(0[0-7])", lambda match: f"var(--line-{int(match[1], 16)})", svg)
    return re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
