"""Figures for files and for pages; equal figures give equal bytes."""

import colorsys
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
from unforced.training.run_folder import replace_bytes

FORMATS = (".svg", ".png", ".pdf")
PALETTE = ("#0072b2", "#b25000", "#007a5a", "#aa3377", "#7a6a00", "#4b3fae", "#00707f", "#8c2a4b")
DARK_PALETTE = ("#62b5ec", "#f2914f", "#3fcaa0", "#e68cc2", "#d8c64e", "#ada4f7", "#6fd2de", "#ea7f9c")

# Inline figures are drawn in these colours; the page replaces them with its own
INK = "#010203"
PLACEHOLDER = "#0405{:02x}"


def palette(count: int, dark: bool = False) -> list[str]:
    """Return that many different colours for a light or dark background.

    >>> len(set(palette(30)))
    30
    """
    chosen = list(DARK_PALETTE if dark else PALETTE)[:count]
    for i in range(len(chosen), count):  # other hues, at steps of the golden ratio
        rgb = colorsys.hls_to_rgb(0.618 * i % 1, (0.35 + 0.3 * dark) + 0.1 * (i % 2), 0.6)
        chosen.append("#{:02x}{:02x}{:02x}".format(*(round(255 * part) for part in rgb)))
    return chosen


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
    svg = re.sub(r"#0405([0-9a-f]{2})", lambda match: f"var(--line-{int(match[1], 16)})", svg)
    return re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)


def _write(draw: Callable[[], Any], file: Any, style: Mapping[str, Any], **options: Any) -> None:
    import matplotlib

    fixed: dict[Any, Any] = {"svg.hashsalt": "unforced", "axes.spines.top": False, "axes.spines.right": False, **style}
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # ignore the user's own style
        matplotlib.rcParams.update(fixed)
        draw().savefig(file, **options)


# Lines on panels


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
    """Draw the panels side by side into a file."""

    def draw() -> Any:
        from matplotlib.figure import Figure

        labels = [[textwrap.fill(line.label, 60) for line in panel.lines] for panel in panels]
        below = max(sum(label.count("\n") + 1 for label in each) for each in labels)
        figure = Figure(figsize=(6.2 * len(panels), 4.2 + 0.2 * below), layout="constrained")
        for axes, panel, names in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, labels):
            for colour, line, name in zip(palette(len(panel.lines)), panel.lines, names):
                axes.plot(line.x, line.y, linewidth=1.6, color=colour, label=name)
            axes.set_xlabel(panel.x, parse_math=False)
            axes.set_ylabel(panel.y, parse_math=False)
            axes.set_title(panel.title, parse_math=False, fontsize="medium")
            axes.grid(linewidth=0.4, alpha=0.4)
            axes.set_yscale("log" if panel.log else "linear")
            axes.set_xscale("log" if panel.log_x else "linear")
            axes.legend(fontsize="small", frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.13))
        return figure

    return save_figure(draw, path)


# Changes against the baseline: a point for each variant and decoder, with its interval

MARKERS = "osD^vP*X"  # of decoders


class Change(NamedTuple):
    """The score of a variant with a decoder minus the baseline's, with its interval."""

    variant: str
    decoder: str
    value: float
    low: float
    high: float


def changes(comparison: Comparison, measure: Measure) -> list[Change]:
    """Return the changes in the order of the table; there are none before all runs have ended."""
    found = []
    for row in comparison.rows:
        if cell := row.cells.get(measure.name):
            value, low, high = cell.difference, cell.difference_low, cell.difference_high
            if value is not None and low is not None and high is not None:
                found.append(Change(row.variant, row.decoder, value, low, high))
    return found


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
    variants = list(dict.fromkeys(change.variant for change in found))
    colours = dict(zip(variants, palette(len(variants))))
    path = path or folder / "changes.svg"
    return save_figure(lambda: change_figure(found, comparison, measure, colours, "black"), path)


def inline_changes(comparison: Comparison, variants: Sequence[str], name: str) -> str:
    """Return the changes by the first metric as an ``<svg>`` element; an empty text without changes."""
    if not comparison.measures or not (found := changes(comparison, comparison.measures[0])):
        return ""
    measure = comparison.measures[0]
    colours = {variant: PLACEHOLDER.format(i) for i, variant in enumerate(variants)}
    label = f"change of {measure.name} against {comparison.baseline}"
    return inline_figure(lambda: change_figure(found, comparison, measure, colours, INK), name, label)


def change_figure(
    found: Sequence[Change], comparison: Comparison, measure: Measure, colours: Mapping[str, str], ink: str
) -> Any:
    """Return a matplotlib figure, 600 pixels wide, with a line for each change and its numbers on the right."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    from unforced.reports.tables import bounds, decimals, number

    variants = list(dict.fromkeys(change.variant for change in found))
    decoders = list(dict.fromkeys(change.decoder for change in found))
    per_variant = max(sum(change.variant == variant for change in found) for variant in variants)
    figure = Figure(figsize=(6.25, 1.15 + 0.27 * len(found) + 0.08 * len(variants)), layout="constrained")
    axes = figure.add_subplot()
    axes.axvline(0, color=ink, linewidth=0.8)
    places = decimals(row.cells[measure.name].mean for row in comparison.rows if measure.name in row.cells)
    ticks, height = {}, 0.0
    for variant in variants:
        mine = [change for change in found if change.variant == variant]
        ticks[variant] = height - (len(mine) - 1) / 2
        for change in mine:
            axes.plot([change.low, change.high], [height, height], color=colours[variant], linewidth=1.8)
            axes.plot(
                [change.value],
                [height],
                marker=MARKERS[decoders.index(change.decoder) % len(MARKERS)],
                markersize=7,
                color=colours[variant],
                fillstyle="full" if change.low > 0 or change.high < 0 else "none",
            )
            numbers = f"{number(change.value, places, sign=True)}  {bounds(change.low, change.high, places, sign=True)}"
            axes.annotate(
                numbers, (1.02, height), xycoords=("axes fraction", "data"), va="center", color=ink, parse_math=False
            )
            height -= 1
        height -= 0.3 if per_variant > 1 else 0
    axes.set_yticks(list(ticks.values()), list(ticks), parse_math=False)
    axes.set_ylim(height + 0.5, 0.6)
    axes.tick_params(axis="y", length=0, labelsize=10.5)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", linewidth=0.4, alpha=0.3, color=ink)
    better = "right" if measure.higher_is_better else "left"
    level = f"{comparison.level:.0%}".replace("%", " %")
    caption = f"change of {measure.name} against {comparison.baseline}, with {level} intervals"
    lines = [*textwrap.wrap(caption, 78), f"further {better} is better"]
    label = figure.supxlabel("\n".join(lines), fontsize=10)
    label.set_parse_math(False)
    keys = [
        Line2D([], [], color=ink, marker=MARKERS[i % len(MARKERS)], linestyle="none", fillstyle="none", label=name)
        for i, name in enumerate(decoders)
    ]
    if len(decoders) > 1:
        legend = figure.legend(handles=keys, loc="outside upper center", ncols=min(len(keys), 5), frameon=False)
        for text in legend.get_texts():
            text.set_parse_math(False)
    return figure


# Learning curves: a thin line for each run, a thick one for the mean of a variant

LETTER = 6.0  # width of a letter of a label in points, about
LABEL_LETTERS = 34  # that fit along the vertical axis
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (5, 2, 1, 2)))  # change after each round of the palette


class Curve(NamedTuple):
    """The points of one run, at rising steps."""

    variant: str
    steps: list[float]
    values: list[float]


def inline_curves(curves: Sequence[Curve], variants: Sequence[str], *, x: str, y: str, name: str) -> str:
    """Return the curves as an ``<svg>`` element with the names of the variants at their right ends."""
    return inline_figure(lambda: _curves(curves, variants, x, y), name, f"{y} against {x} for {', '.join(variants)}")


def _curves(curves: Sequence[Curve], variants: Sequence[str], x: str, y: str) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.6, 3.4))
    longest = max(map(len, variants), default=0) * LETTER / (72 * figure.get_figwidth())
    lines = textwrap.wrap(y, LABEL_LETTERS, break_long_words=False)
    left = 0.13 + 0.04 * (len(lines) - 1)
    width = min(0.83 - left, max(0.40, 0.96 - left - longest))
    axes = figure.add_axes((left, 0.15, width, 0.80))
    axes.set_xlabel(x, parse_math=False)
    axes.set_ylabel("\n".join(lines), parse_math=False)
    axes.grid(axis="y", linewidth=0.4, alpha=0.3, color=INK)
    ends = []
    for i, variant in enumerate(variants):
        mine = [curve for curve in curves if curve.variant == variant and curve.steps]
        style: dict[str, Any] = {"color": PLACEHOLDER.format(i), "linestyle": DASHES[i // len(PALETTE) % len(DASHES)]}
        centre = mean_curve(mine)
        single = len(mine) == 1 or centre is None
        for curve in mine:
            marker = "o" if len(curve.steps) == 1 else None
            thin: dict[str, Any] = {"linewidth": 1.8 if single else 0.7, "alpha": 1 if single else 0.45}
            axes.plot(curve.steps, curve.values, marker=marker, markersize=4, **thin, **style)
        if centre is not None and not single:
            axes.plot(centre.steps, centre.values, linewidth=2.0, **style)
        if mine:
            ends.append(((centre or mine[0]).values[-1], variant, style["color"]))
    low, high = axes.get_ylim()
    heights = [(value - low) / (high - low) if np.isfinite(value) else 0.5 for value, _, _ in ends]
    for height, (_, variant, colour) in zip(spread_labels(heights, 0.065), ends):
        axes.text(1.02, height, variant, color=colour, transform=axes.transAxes, va="center", parse_math=False)
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
