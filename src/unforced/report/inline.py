"""Figures inside a page, as SVG. The same figure gives the same bytes.

Text and axes take the page's colour, lines take its palette (``--line-0`` …), so that figures follow the page into dark mode.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

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
    svg = re.sub(
        r'<svg width="[^"]*" height="[^"]*"', f'<svg role="img" aria-label="{escape(label)}"', svg, count=1
    )
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    svg = svg.replace(INK, "currentColor")
    svg = re.sub(r"#0405(0[0-7])", lambda match: f"var(--line-{int(match[1], 16)})", svg)
    return re.sub(r"font-family: [^;\"]*", "font-family: inherit", svg)
