"""The table and the figures of a diagnosis, from diagnosis.json."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unforced.errors import InputError
from unforced.reports.figures import Line, Panel, draw_panels, inline_figure, panel_figure
from unforced.reports.tables import TextTable, bounds, number
from unforced.training.run_folder import RunFolder

if TYPE_CHECKING:
    from unforced.diagnosis.remedies import Trial

ROWS = ("history", "normalisation", "search", "ranking", "confidence")


def diagnosis_table(found: Mapping[str, Any]) -> TextTable:
    """Return the headroom of each finding with its interval."""
    rows = []
    for name in ROWS:
        finding = found[name]
        places = 2 if finding["unit"] == "points" else 4
        low, high = finding["interval"]
        interval = bounds(low, high, places, sign=True)
        rows.append((name, number(finding["headroom"], places, sign=True), interval, finding["unit"]))
    title = f"{found['metric']} on {found['examples']} examples of {found['split']}"
    return TextTable(title, ("what", "headroom", "95 % interval", "unit"), tuple(rows), (False, True, True, False))


def trial_rows(found: Mapping[str, Any], trials: Sequence["Trial"]) -> list[tuple[str, ...]]:
    """Return what each remedy promised and what it won."""
    rows: list[tuple[str, ...]] = []
    for name, run, gain in trials:
        headroom, interval = found[name]["headroom"], bounds(gain.low, gain.high, sign=True)
        rows.append((name, number(headroom, sign=True), number(gain.value, sign=True), interval, str(run)))
    return rows


def diagnosis_panels(found: Mapping[str, Any]) -> dict[str, list[Panel]]:
    """Return the panels of each finding."""
    metric, details = found["metric"], {name: found[name]["details"] for name in ROWS}
    places = details["history"].get("by_position")
    curve, x = (
        (places, "position") if places is not None else (details["history"]["by_cut"], "given share of the target")
    )
    at = [point["position"] if places is not None else point["given"] for point in curve]
    histories = [Line(f"{name} history", at, [point[name] for point in curve]) for name in ("own", "gold")]
    recovery = details["history"]["recovery"]
    distances = [point["distance"] for point in recovery]
    lost = Line("after one own mistake", distances, [point["accuracy"]["points"] for point in recovery])
    widths = details["normalisation"]["by_width"]
    local = [point["log_probs"]["points"] for point in widths]
    # gains are positive if better, also where a lower score is better
    lower = -1 if details["normalisation"]["lower_is_better"] else 1
    scores = [
        Line("log-probabilities", [point["width"] for point in widths], local),
        Line(
            "raw scores",
            [point["width"] for point in widths],
            [a + lower * b["raw"]["points"] for a, b in zip(local, widths)],
        ),
    ]
    errors = [
        Line(
            f"{kind} errors",
            [point["width"] for point in details["search"]["by_width"]],
            [point[f"{kind}_errors"] for point in details["search"]["by_width"]],
        )
        for kind in ("search", "model")
    ]
    several = [
        Line(
            f"{best} of n {kind}",
            [point["outputs"] for point in details["ranking"][key]],
            [point[best]["points"] for point in details["ranking"][key]],
        )
        for key, kind in (("nbest", "best"), ("samples", "samples"))
        for best in ("best", "mean")
    ]
    bins = details["confidence"]["reliability"]
    reliability = [
        Line("tokens", [each["confidence"] for each in bins], [each["accuracy"] for each in bins]),
        Line("calibrated", [0.0, 1.0], [0.0, 1.0]),
    ]
    beam = "beam width"
    return {
        "history": [
            Panel(histories, x, "accuracy" if places is not None else metric, "history"),
            Panel([lost], "steps after the mistake", "change of accuracy", "recovery"),
        ],
        "normalisation": [Panel(scores, beam, metric, "normalisation", log_x=True)],
        "search": [Panel(errors, beam, "% of examples", "search", log_x=True)],
        "ranking": [Panel(several, "n", f"gain over the first output, points of {metric}", "ranking", log_x=True)],
        "confidence": [Panel(reliability, "probability of the best token", "share that is right", "confidence")],
    }


def plot_diagnosis(run: Path, path: Path | None = None) -> Path:
    """Draw the diagnosis of a run; into ``diagnosis.svg`` in its folder by default."""
    found = RunFolder(run).diagnosis()
    if found is None:
        raise InputError(f"{run} has no diagnosis; make one with: unforced diagnose {run}")
    panels = [panel for each in diagnosis_panels(found).values() for panel in each]
    return draw_panels(panels, path or run / "diagnosis.svg")


def inline_diagnosis(found: Mapping[str, Any], name: str) -> list[tuple[str, str]]:
    """Return the caption and the ``<svg>`` element of each panel; ids begin with ``name``."""
    figures = []
    for row, panels in diagnosis_panels(found).items():
        for i, panel in enumerate(panels):
            caption = f"{row}: {found[row]['meaning']}" if i == 0 else f"{panel.title}: {panel.y} by {panel.x}"
            draw = partial(panel_figure, [panel._replace(title="")])
            figures.append((caption, inline_figure(draw, f"{name}{row}{i}", caption)))
    return figures
