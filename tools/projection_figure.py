"""Figure 6.1 of Goyal (2021): what few strings make of a masked model, by training and by their number.

    python tools/projection_figure.py COMPARISON

COMPARISON is the folder that ``unforced compare energy_projection`` left. The picture goes to docs/projection.svg.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from pathlib import Path

from unforced.comparison import Comparison, read_comparison
from unforced.plots.figure import Line, Panel, draw
from unforced.recipe import load

ROOT = Path(__file__).resolve().parent.parent
MEASURE = "sequence_nll"
SAYS = {
    "pll": "pseudo-likelihood, from scratch",
    "kl": "projection of the masked model",
    "kl_pll": "projection and pseudo-likelihood",
}


def panel(comparison: Comparison, truth: float) -> Panel:
    """A line for each training, its points by the number of strings; level lines for the masked model and the truth."""
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in comparison.rows:
        if row.variant != comparison.baseline:
            training, size = row.variant.rsplit("_", 1)
            points[training].append((float(size), row.cells[MEASURE].mean))
        else:
            level = row.cells[MEASURE].mean
    sizes = sorted({size for line in points.values() for size, _ in line})
    ends = (sizes[0], sizes[-1])
    lines = [Line(SAYS[training], *zip(*sorted(line))) for training, line in points.items()]
    lines.append(Line("the masked model itself (100,000 strings)", ends, (level, level)))
    lines.append(Line("the true distribution, on the same test strings", ends, (truth, truth)))
    return Panel(lines, "training strings", "negative log-likelihood of a string, nats", log_x=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw what the comparison energy_projection found.")
    parser.add_argument("comparison", type=Path)
    folder = parser.parse_args().comparison
    task = load(folder / "recipe.toml").task
    draw(
        [panel(read_comparison(folder / "comparison.json"), task.surprise("test"))],
        ROOT / "docs" / "projection.svg",
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
