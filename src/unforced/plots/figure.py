"""Figures as files, most of them lines on panels; the same figure gives the same bytes."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from unforced.errors import InputError

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
        matplotlib.rcParams.update(
            {"svg.hashsalt": "unforced", "axes.spines.top": False, "axes.spines.right": False}
        )
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
