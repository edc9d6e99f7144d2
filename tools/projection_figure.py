"""Draw Figure 6.1 of Goyal (2021): likelihood of masked models trained on few strings, by number of strings.

    python tools/projection_figure.py RUNS

RUNS is the folder of the comparisons energy_projection and energy_projection_phonemes, or of one of them. The figure
goes to docs/figures/projection.svg, with a panel for each.
"""

import argparse
import sys
from collections import defaultdict
from pathlib import Path

from unforced.experiments.comparison import Comparison, read_comparison
from unforced.recipes.recipe import load
from unforced.reports.figures import Line, Panel, draw_panels
from unforced.tasks.synthetic import Synthetic

ROOT = Path(__file__).resolve().parent.parent
TITLES = {
    "energy_projection": "strings of a hidden Markov model",
    "energy_projection_phonemes": "phonemes of English words",
}
MEASURE = "sequence_nll"
LABELS = {
    "pll": "pseudo-likelihood, from scratch",
    "kl": "projection of the masked model",
    "kl_pll": "projection and pseudo-likelihood",
}


def panel(comparison: Comparison, title: str, strings: int, truth: float | None) -> Panel:
    """Return a panel with a line for each objective, over the number of training strings.

    Horizontal lines show the masked model, which was trained on ``strings`` strings, and the true distribution if
    known.
    """
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in comparison.rows:
        if row.variant != comparison.baseline:
            training, size = row.variant.rsplit("_", 1)
            points[training].append((float(size), row.cells[MEASURE].mean))
        else:
            level = row.cells[MEASURE].mean
    sizes = sorted({size for line in points.values() for size, _ in line})
    ends = (sizes[0], sizes[-1])
    lines = [Line(LABELS[training], *zip(*sorted(line))) for training, line in points.items()]
    lines.append(Line(f"the masked model itself ({strings:,} strings)", ends, (level, level)))
    if truth is not None:
        lines.append(Line("the true distribution, on the same test strings", ends, (truth, truth)))
    return Panel(lines, "training strings", "negative log-likelihood of a string, nats", title, log_x=True)


def panel_of(folder: Path) -> Panel:
    recipe = load(folder / "recipe.toml")
    task = recipe.single(recipe.baseline).task
    known = isinstance(task, Synthetic)
    return panel(
        read_comparison(folder / "comparison.json"),
        TITLES[folder.name],
        task.size if known else task.train_limit,
        task.surprise("test") if known else None,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Draw Figure 6.1 from finished comparisons.")
    parser.add_argument("runs", type=Path)
    runs = parser.parse_args().runs
    present = [name for name in TITLES if (runs / name / "comparison.json").is_file()]
    draw_panels([panel_of(runs / name) for name in present], ROOT / "docs/figures/projection.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
