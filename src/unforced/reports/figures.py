"""Figures for files and for pages; equal figures give equal bytes."""

import io
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from unforced.errors import InputError
from unforced.experiments.comparison import Comparison, Measure, read_comparison
from unforced.reports.tables import Change, bounds, changes, decimals, number, per_cent
from unforced.training.run_folder import replace_bytes

FORMATS = (".svg", ".png", ".pdf")

# Lines: number i has a colour and, after each round of the colours, another dash. Within a round, colours also differ
# for readers with any kind of colour blindness.

COLOURS = ("#1163d8", "#af4110", "#145f4b", "#84597f", "#1a1d9d", "#d47c26", "#1ea68c", "#631c06")
DARK_COLOURS = ("#6acbff", "#d66b62", "#007a7b", "#ba9eb1", "#6959d1", "#fab242", "#bcceb2", "#a24d09")  # dark pages
DASHES = ((), (5, 2), (1.5, 1.5), (6, 1.5, 1.5, 1.5))  # points on and off
INK = "#010203"  # stands for the colour of text in inline figures


def line_style(number: int) -> dict[str, Any]:
    """Return the colour and dash of a line for matplotlib; 32 numbers have different styles.

    >>> line_style(9)
    {'color': '#af4110', 'linestyle': (0, (5, 2))}
    """
    dash = DASHES[number // len(COLOURS) % len(DASHES)]
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": (0, dash) if dash else "-"}


def css_line(number: int) -> str:
    """Return the CSS background of a line in the same style; the page defines the colours as variables.

    >>> css_line(8)
    'repeating-linear-gradient(90deg, var(--line-0) 0em 0.5em, transparent 0.5em 0.7em)'
    """
    colour, stops, end = f"var(--line-{number % len(COLOURS)})", [], 0.0
    for i, length in enumerate(DASHES[number // len(COLOURS) % len(DASHES)]):
        start, end = end, end + length / 10
        stops.append(f"{'transparent' if i % 2 else colour} {start:.3g}em {end:.3g}em")
    return f"repeating-linear-gradient(90deg, {', '.join(stops)})" if stops else colour


# Saving


def check_format(path: Path) -> None:
    """Raise `InputError` if the path has no ending of a picture."""
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"{path}: the name of a picture must end in {', '.join(FORMATS)}")


def save_figure(draw: Callable[[], Any], path: Path) -> Path:
    """Write the matplotlib figure that ``draw`` returns, in the format of the path's ending."""
    check_format(path)
    kind = path.suffix.lower().lstrip(".")
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    file = io.BytesIO()
    _write(draw, file, {}, format=kind, dpi=150, metadata=dates.get(kind))
    replace_bytes(path, file.getvalue())
    return path


def inline_figure(draw: Callable[[], Any], name: str, label: str) -> str:
    """Return the matplotlib figure that ``draw`` returns as an ``<svg>`` element of a page.

    Args:
        name: Begins the ids of the element, which must be unique in a page.
        label: The text for screen readers.
    """
    from html import escape

    inks = ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color")
    faces = ("axes.facecolor", "figure.facecolor", "savefig.facecolor")
    style = {"svg.fonttype": "none", **dict.fromkeys(inks, INK), **dict.fromkeys(faces, "none")}
    text = io.StringIO()
    _write(draw, text, style, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :].strip()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r' xmlns(:\w+)?="[^"]*"', "", svg, count=2)
    svg = re.sub(r'<svg width="[^"]*" height="[^"]*"', f'<svg role="img" aria-label="{escape(label)}"', svg, count=1)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(INK, "currentColor")
    for i, colour in enumerate(COLOURS):
        svg = svg.replace(colour, f"var(--line-{i})")
    return re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)


def _write(draw: Callable[[], Any], file: Any, style: Mapping[str, Any], **options: Any) -> None:
    import matplotlib

    fixed: dict[Any, Any] = {"svg.hashsalt": "unforced", "axes.spines.top": False, "axes.spines.right": False, **style}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the user's own style
        matplotlib.rcParams.update(fixed)
        draw().savefig(file, **options)


# Lines on panels

MOST_COLUMNS = 3  # panels side by side
MOST_TICKS = 8  # on a logarithmic axis, with the values as labels


class Line(NamedTuple):
    """One line; ``label`` is shown in the legend."""

    label: str
    x: Sequence[float]
    y: Sequence[float]


class Panel(NamedTuple):
    """Lines with common axes."""

    lines: Sequence[Line]
    x: str  # label of the axis
    y: str
    title: str = ""
    log: bool = False  # logarithmic y axis
    log_x: bool = False


def draw_panels(panels: Sequence[Panel], path: Path) -> Path:
    """Draw the panels into a file."""
    return save_figure(lambda: panel_figure(panels), path)


def panel_figure(panels: Sequence[Panel]) -> Any:
    """Return a matplotlib figure of the panels, at most three side by side."""
    from matplotlib.figure import Figure

    labels = [[textwrap.fill(line.label, 60) for line in panel.lines] for panel in panels]
    below = max(sum(label.count("\n") + 1 for label in each) for each in labels)
    rows = -(-len(panels) // MOST_COLUMNS)
    columns = -(-len(panels) // rows)
    figure = Figure(figsize=(6.2 * columns, (4.2 + 0.2 * below) * rows), layout="constrained")
    places = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    for axes, panel, names in zip(places, panels, labels):
        for i, (line, name) in enumerate(zip(panel.lines, names)):
            axes.plot(line.x, line.y, linewidth=1.6, label=name, **line_style(i))
        axes.set_xlabel(panel.x, parse_math=False)
        axes.set_ylabel(panel.y, parse_math=False)
        axes.set_title(panel.title, parse_math=False, fontsize="medium")
        axes.grid(linewidth=0.4, alpha=0.4)
        axes.set_yscale("log" if panel.log else "linear")
        axes.set_xscale("log" if panel.log_x else "linear")
        values = sorted({x for line in panel.lines for x in line.x})
        if panel.log_x and len(values) <= MOST_TICKS:  # doubled numbers, such as beam widths
            axes.set_xticks(values, [f"{value:g}" for value in values])
            axes.minorticks_off()
        axes.legend(fontsize="small", frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13))
    return figure


# Changes against the baseline: a point for each variant and decoder, with its interval

MARKERS = "osD^vP*X"  # of decoders


def plot_changes(folder: Path, path: Path | None = None, *, metric: str | None = None) -> Path:
    """Draw the changes in a comparison by one metric.

    Args:
        folder: The folder of the comparison.
        path: The picture; ``changes.svg`` in the folder by default.
        metric: The first of the comparison by default.
    """
    if not (folder / "comparison.json").is_file():
        raise InputError(f"{folder} holds no comparison; name a folder that `unforced compare` has written")
    comparison = read_comparison(folder / "comparison.json")
    measures = {measure.name: measure for measure in comparison.measures}
    measure = measures.get(metric or next(iter(measures)))
    if measure is None:
        raise InputError(f"{folder} has no metric {metric}; it has {', '.join(measures)}")
    found = changes(comparison, measure)
    if not found:
        raise InputError(f"{folder} has no changes yet; they are computed when all runs have ended")
    return save_figure(lambda: change_figure(found, comparison, measure, "black"), path or folder / "changes.svg")


def inline_changes(comparison: Comparison, name: str) -> str:
    """Return the changes by the first metric as an ``<svg>`` element; empty if there are none."""
    if not comparison.measures or not (found := changes(comparison, comparison.measures[0])):
        return ""
    measure = comparison.measures[0]
    label = f"change of {measure.name} against {comparison.baseline}"
    return inline_figure(lambda: change_figure(found, comparison, measure, INK), name, label)


def change_figure(found: Sequence[Change], comparison: Comparison, measure: Measure, ink: str) -> Any:
    """Return a matplotlib figure, 600 pixels wide, with a line for each change and its numbers on the right."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    variants = list(dict.fromkeys(change.variant for change in found))
    decoders = list(dict.fromkeys(change.decoder for change in found))
    figure = Figure(figsize=(6.25, 1.15 + 0.27 * len(found) + 0.08 * len(variants)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0, color=ink, linewidth=0.8)
    places = decimals(row.cells[measure.name].mean for row in comparison.rows if measure.name in row.cells)
    ticks, height = {}, 0.0
    for variant in variants:
        mine = [change for change in found if change.variant == variant]
        ticks[variant] = height - (len(mine) - 1) / 2
        colour = line_style(comparison.variants.index(variant))["color"]
        for change in mine:
            axes.plot([change.low, change.high], [height, height], color=colour, linewidth=1.8)
            axes.plot(
                [change.value],
                [height],
                marker=MARKERS[decoders.index(change.decoder) % len(MARKERS)],
                markersize=7,
                color=colour,
                fillstyle="full" if change.low > 0 or change.high < 0 else "none",
            )
            numbers = f"{number(change.value, places, sign=True)}  {bounds(change.low, change.high, places, sign=True)}"
            axes.annotate(
                numbers, (1.02, height), xycoords=("axes fraction", "data"), va="center", color=ink, parse_math=False
            )
            height -= 1
        height -= 0.3 if len(found) > len(variants) else 0
    axes.set_yticks(list(ticks.values()), list(ticks), parse_math=False)
    axes.set_ylim(height + 0.5, 0.6)
    axes.tick_params(axis="y", length=0, labelsize=10.5)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", linewidth=0.4, alpha=0.3, color=ink)
    caption = f"change of {measure.name} against {comparison.baseline}, with {per_cent(comparison.level)} intervals"
    lines = [*textwrap.wrap(caption, 78), f"further {'right' if measure.higher_is_better else 'left'} is better"]
    figure.supxlabel("\n".join(lines), fontsize=10).set_parse_math(False)
    if len(decoders) > 1:
        keys = [
            Line2D([], [], color=ink, marker=MARKERS[i % len(MARKERS)], linestyle="none", fillstyle="none", label=name)
            for i, name in enumerate(decoders)
        ]
        legend = figure.legend(handles=keys, loc="outside upper center", ncols=min(len(keys), 5), frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


# Learning curves: a thin line for each run, a thick one for the mean of a variant

LETTER = 6.0  # width of a letter of a label in points, about
LABEL_LETTERS = 34  # that fit along the vertical axis


class Curve(NamedTuple):
    """The points of one run, at rising steps."""

    variant: str
    steps: list[float]
    values: list[float]


def inline_curves(curves: Sequence[Curve], variants: Sequence[str], *, x: str, y: str, name: str) -> str:
    """Return the curves as an ``<svg>`` element with the names of the variants at their right ends.

    The place of a variant in ``variants`` is the number of its style.
    """
    curves = [curve for curve in curves if curve.steps]
    shown = ", ".join(variant for variant in variants if any(curve.variant == variant for curve in curves))
    return inline_figure(lambda: _curves(curves, variants, x, y), name, f"{y} against {x} for {shown}")


def _curves(curves: Sequence[Curve], variants: Sequence[str], x: str, y: str) -> Any:
    from matplotlib.figure import Figure

    tall = max(3.4, 0.24 * len(variants) + 0.7)
    figure = Figure(figsize=(5.6, tall))
    longest = (max(len(curve.variant) for curve in curves) + 5) * LETTER / (72 * figure.get_figwidth())
    lines = textwrap.wrap(y, LABEL_LETTERS, break_long_words=False)
    left = 0.13 + 0.04 * (len(lines) - 1)
    width = min(0.83 - left, max(0.40, 0.96 - left - longest))
    axes = figure.add_axes((left, 0.15, width, 0.80))
    axes.set_xlabel(x, parse_math=False)
    axes.set_ylabel("\n".join(lines), parse_math=False)
    axes.grid(axis="y", linewidth=0.4, alpha=0.3, color=INK)
    ends = []
    for i, variant in enumerate(variants):
        mine, style = [curve for curve in curves if curve.variant == variant], line_style(i)
        if not mine:
            continue
        centre = mean_curve(mine)
        single = len(mine) == 1 or centre is None
        for curve in mine:
            marker = "o" if len(curve.steps) == 1 else None
            thin: dict[str, Any] = {"linewidth": 1.8 if single else 0.7, "alpha": 1 if single else 0.45}
            axes.plot(curve.steps, curve.values, marker=marker, markersize=4, **thin, **style)
        if centre is not None and not single:
            axes.plot(centre.steps, centre.values, linewidth=2.0, **style)
        ends.append(((centre or mine[0]).values[-1], variant, style))
    low, high = axes.get_ylim()
    heights = [(value - low) / (high - low) if np.isfinite(value) else 0.5 for value, _, _ in ends]
    for height, (_, variant, style) in zip(spread_labels(heights, 0.22 / tall), ends):
        sample: dict[str, Any] = {"transform": axes.transAxes, "clip_on": False, "linewidth": 2.0}
        axes.plot([1.02, 1.09], [height, height], **sample, **style)
        axes.text(1.11, height, variant, transform=axes.transAxes, va="center", parse_math=False)
    return figure


def mean_curve(curves: Sequence[Curve]) -> Curve | None:
    """Return the mean over runs at the steps that all of them have; None if there are none.

    >>> mean_curve([Curve("a", [1, 2, 3], [1.0, 2.0, 3.0]), Curve("a", [1, 3], [3.0, 5.0])])
    Curve(variant='a', steps=[1, 3], values=[2.0, 4.0])
    """
    tables = [dict(zip(curve.steps, curve.values)) for curve in curves]
    shared = sorted(set.intersection(*(set(table) for table in tables))) if tables else []
    means = [float(np.mean([table[step] for table in tables])) for step in shared]
    return Curve(curves[0].variant, shared, means) if shared else None


def spread_labels(heights: Sequence[float], gap: float) -> list[float]:
    """Move heights in [0, 1] up so that neighbours are ``gap`` apart.

    >>> [round(h, 2) for h in spread_labels([0.5, 0.5, 0.1], 0.1)]
    [0.5, 0.6, 0.1]
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    moved = list(heights)
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + gap)
    excess = max([0.0, *(height - 1.0 for height in moved)])
    return [height - excess for height in moved]
