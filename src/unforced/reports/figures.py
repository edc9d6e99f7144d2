"""Figures as files, most of them lines on panels; the same figure gives the same bytes."""

import io
import os
import re
import textwrap
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unforced.errors import InputError
from unforced.experiments.comparison import Comparison, Measure, read_comparison

FORMATS = (".svg", ".png", ".pdf")


class Line(NamedTuple):
    """One line and what the legend calls it."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


class Panel(NamedTuple):
    """Lines that share their axes; ``log`` makes the vertical one logarithmic, ``log_x`` the other."""

    lines: Sequence[Line]
    x: str
    y: str
    title: str = ""
    log: bool = False
    log_x: bool = False


def check(path: Path) -> None:
    """Complain about a file that could not be written, before any work is done for it."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: a picture's name ends in {', '.join(FORMATS)}")
    if not path.parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise InputError(f"{path} is a folder")


def draw(panels: Sequence[Panel], path: Path) -> Path:
    """Write the panels side by side to ``path``, whose ending says in which format."""
    return save(lambda: _figure(panels), path)


def save(make: Callable[[], Any], path: Path) -> Path:
    """Write the figure that ``make`` gives to ``path``, whose ending says in which format."""
    import matplotlib

    check(path)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's own style is
        matplotlib.rcParams.update({"svg.hashsalt": "unforced", "axes.spines.top": False, "axes.spines.right": False})
        unfinished = path.with_name(f".{path.name}.part")
        kind: Any = path.suffix.lower().lstrip(".")
        dated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        make().savefig(unfinished, format=kind, dpi=150, metadata=dated)
        os.replace(unfinished, path)
    return path


def _figure(panels: Sequence[Panel]) -> Any:
    from matplotlib.figure import Figure

    below = max(sum(_label(line).count("\n") + 1 for line in panel.lines) for panel in panels)
    figure = Figure(figsize=(6.2 * len(panels), 4.2 + 0.2 * below), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        _fill(axes, panel)
    return figure


def _fill(axes: Any, panel: Panel) -> None:
    for colour, line in zip(colours(len(panel.lines)), panel.lines):
        axes.plot(line.x, line.y, linewidth=1.6, color=colour, label=_label(line))
    axes.set_xlabel(panel.x, parse_math=False)
    axes.set_ylabel(panel.y, parse_math=False)
    axes.set_title(panel.title, parse_math=False, fontsize="medium")
    axes.grid(linewidth=0.4, alpha=0.4)
    if panel.log:
        axes.set_yscale("log")
    if panel.log_x:
        axes.set_xscale("log")
    axes.legend(fontsize="small", frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13))


def _label(line: Line) -> str:
    """The legend's words on lines of bearable length."""
    return textwrap.fill(line.label, 60)


def colours(count: int) -> list[Any]:
    """The usual colours, or as many of a continuous scale as there are lines."""
    import matplotlib

    if count <= 10:
        return [f"C{i}" for i in range(count)]
    scale = matplotlib.colormaps["turbo"]
    return [scale(i / (count - 1)) for i in range(count)]


# What the variants of a comparison change against its baseline, as a picture of its own.

PICTURE = "changes.svg"  # beside the comparison


def plot_changes(folder: Path, path: Path | None = None, *, metric: str | None = None) -> Path:
    """Draw a comparison's changes by its first metric, or by ``metric``; beside it unless ``path`` says where."""
    if path is not None:
        check(path)
    file = folder / "comparison.json"
    if not file.is_file():
        raise InputError(f"{folder} holds no comparison: name a folder that unforced compare has written")
    comparison = read_comparison(file)
    names = [measure.name for measure in comparison.measures]
    if metric is not None and metric not in names:
        raise InputError(f"{folder} has no metric {metric}: choose among {', '.join(names)}")
    measure = next((each for each in comparison.measures if metric in (None, each.name)), None)
    found = [] if measure is None else changes(comparison, measure)
    if measure is None or not found:
        raise InputError(f"{folder} has nothing to compare yet: changes are known when all runs have ended")
    variants = list(dict.fromkeys(change.variant for change in found))
    palette = dict(zip(variants, colours(len(variants))))
    return save(lambda: figure(found, comparison, measure, palette.__getitem__, "black"), path or folder / PICTURE)


# Figures inside a page, as SVG. The same figure gives the same bytes.

INK = "#010203"  # stands for the page's text colour until the SVG is written
COLOURS = 8  # in the page's palette
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "unforced",
    "font.size": 10,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("axes.facecolor", "figure.facecolor", "savefig.facecolor"), "none"),
}


def colour(i: int) -> str:
    """A colour that stands for the page's ``--line-i`` until the SVG is written; there are ``COLOURS`` of them."""
    return f"#0405{i % COLOURS:02x}"


def inline(draw: Callable[[], Any], name: str, label: str) -> str:
    """The figure that ``draw`` makes as an ``<svg>`` element; ``name`` keeps its ids apart from others, ``label`` says what it shows."""
    import matplotlib

    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # whatever the user's own style is
        matplotlib.rcParams.update(STYLE)
        text = io.StringIO()
        silent = {"Date": None, "Creator": None, "Format": None, "Type": None}
        draw().savefig(text, format="svg", metadata=silent)
    return _element(text.getvalue(), name, label)


def _element(svg: str, name: str, label: str) -> str:
    """The ``<svg>`` element alone, without namespaces, with ids of its own and with the page's colours."""
    from html import escape

    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg, count=2)
    svg = re.sub(r'<svg width="[^"]*" height="[^"]*"', f'<svg role="img" aria-label="{escape(label)}"', svg, count=1)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(INK, "currentColor")
    svg = re.sub(r"#0405(0[0-7])", lambda match: f"var(--line-{int(match[1], 16)})", svg)
    return re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)


# What variants change against the baseline, as a picture: a point for each decoder, and its interval.

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
            found.append(Change(row.variant, row.decoder, cell.difference, cell.difference_low, cell.difference_high))
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
    found: Sequence[Change], comparison: Comparison, measure: Measure, colour_of: Callable[[str], str], ink: str
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
        Line2D([], [], color=ink, marker=MARKERS[i % len(MARKERS)], linestyle="none", fillstyle="none", label=name)
        for i, name in enumerate(decoders)
    ]
    if len(decoders) > 1:
        legend = made.legend(
            handles=keys, loc="outside upper center", ncols=min(len(keys), 6), frameon=False, fontsize="small"
        )
        for text in legend.get_texts():
            text.set_parse_math(False)
    return made


# Learning curves as inline SVG: a colour a variant, thin lines its seeds, a thick line their mean.

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
    _curve_label(axes, ends)
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
    return Curve(curves[0].variant, shared, [float(np.mean([table[step] for table in tables])) for step in shared])


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


def _curve_label(axes: Any, ends: list[tuple[float, str, str]]) -> None:
    low, high = axes.get_ylim()
    heights = [(value - low) / (high - low) if np.isfinite(value) else 0.5 for value, _, _ in ends]
    for height, (_, variant, own) in zip(spread(heights, 0.065), ends):
        axes.text(1.02, height, variant, color=own, transform=axes.transAxes, va="center", parse_math=False)
