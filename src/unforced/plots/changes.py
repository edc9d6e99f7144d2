"""What the variants of a comparison change against its baseline, as a picture of its own."""

from __future__ import annotations

from pathlib import Path

from unforced.comparison import read_comparison
from unforced.errors import InputError
from unforced.plots.figure import check, colours, save
from unforced.report.changes import changes, figure

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
    return save(
        lambda: figure(found, comparison, measure, palette.__getitem__, "black"), path or folder / PICTURE
    )
