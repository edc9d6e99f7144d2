"""The page itself: gathers tables, curves and examples, and fills the template."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unforced.errors import InputError
from unforced.experiments.comparison import Comparison
from unforced.experiments.summary import summarize
from unforced.reports.examples import galleries
from unforced.reports.figures import COLOURS, Curve, inline_changes, plot
from unforced.reports.runs import Run, read_runs, settings
from unforced.reports.tables import comparison_markdown, comparison_notes, comparison_tables, decimals, number
from unforced.training.run_folder import replace_bytes

AXES = ("kind", "step", "epoch")  # keys of an event that are no measurement
# those that are drawn, or tell nothing of a method
APART = (*AXES, "loss", "nll", "learning_rate", "tokens", "seconds")


def check_output(output: Path) -> None:
    """Raise ``InputError`` if something else than a report stands where one is to be written."""
    marks = (b'<meta name="generator" content="unforced">', b"| variant | decoder |")
    if output.is_file() and output.stat().st_size and not any(mark in output.read_bytes() for mark in marks):
        raise InputError(f"{output}: is there already and is no report; choose another name, or remove it")


def write_report(runs: Sequence[Path], output: Path) -> Path:
    """Write one HTML file about these run folders (or about the folder of a comparison); returns its path.

    The page loads nothing: styles, figures and pictures are inside. The same folders give the same bytes.
    Raises ``InputError`` where a folder is no run or a file in it is broken.
    """
    replace_bytes(Path(output), render([Path(run) for run in runs]).encode("utf-8"))
    return Path(output)


def write_tables(runs: Sequence[Path], output: Path) -> Path:
    """Write the tables of the report alone, as Markdown, for pages that hold generated figures; returns the path."""
    texts = []
    for group in groups([Path(run) for run in runs]):
        found, comparison = read_runs(group)
        summary = comparison or _from_scores(found)
        if not summary.rows:
            raise InputError(f"{group[0]}: has no scores yet, so there are no tables; unforced evaluate makes some")
        texts.append(comparison_markdown(summary))
    replace_bytes(Path(output), "\n".join(texts).encode("utf-8"))
    return Path(output)


def render(paths: Sequence[Path]) -> str:
    """The text of the page: a section for each comparison, and one for runs that belong to none."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("unforced", "reports/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    contents = [section(*read_runs(group), prefix=f"s{i}-") for i, group in enumerate(groups(paths))]
    template = environment.get_template("comparison.html.jinja")
    names = [each["comparison"].name for each in contents]
    title = ", ".join(names) if len(names) > 1 else f"{names[0]}: {', '.join(contents[0]['variants'])}"
    return environment.get_template("report.html.jinja").render(
        title=title,
        complete=all(each["comparison"].complete for each in contents),
        sections=[Markup(template.render(each)) for each in contents],
    )


def groups(paths: Sequence[Path]) -> list[list[Path]]:
    """The paths of each section: folders of comparisons apart where there are several, all else together."""
    apart = [path for path in paths if (path / "comparison.json").is_file()]
    if len(apart) < 2:
        return [list(paths)]
    rest = [path for path in paths if path not in apart]
    return [*([path] for path in apart), *([rest] if rest else [])]


def section(runs: Sequence[Run], comparison: Comparison | None, *, prefix: str) -> dict[str, Any]:
    """What the template of a section shows; ``prefix`` keeps the ids of its figures apart from other sections'."""
    from markupsafe import Markup

    if comparison is None:
        comparison = _from_scores(runs)
    variants = list(dict.fromkeys(run.label for run in runs))
    measure = comparison.measures[0] if comparison.measures else None
    changes = inline_changes(comparison, variants, f"{prefix}changes")
    return {
        "comparison": comparison,
        "changes": changes and Markup(changes),
        "tables": comparison_tables(comparison),
        "notes": comparison_notes(comparison),
        "variants": variants,
        "colours": {variant: i % COLOURS for i, variant in enumerate(variants)},
        "what_differs": what_differs(runs, variants),
        "curves": [Markup(svg) for svg in learning_curves(runs, variants, prefix)],
        "measured": measured(runs, variants),
        "by_length": [(title, Markup(svg)) for title, svg in length_curves(comparison, variants, prefix)],
        "galleries": galleries(runs, variants, comparison.split, measure),
        "progress": [_progress(run, comparison) for run in runs],
        "recipes": {run.label: run.recipe_text for run in reversed(runs)},
        "versions": _versions(runs),
        "data": _data(runs),
    }


def learning_curves(runs: Sequence[Run], variants: Sequence[str], prefix: str = "") -> list[str]:
    """Training loss and development score against updates, as SVG."""
    figures = []
    comparable = all("nll" in event for run in runs for event in run.train)
    key, label = ("nll", "training NLL per token") if comparable else ("loss", "training loss (of each method)")
    training = [_curve(run, run.train, key) for run in runs]
    if any(curve.steps for curve in training):
        figures.append(plot(training, variants, x="updates", y=label, name=f"{prefix}loss"))
    metric = next((run.best["metric"] for run in runs if run.best), None)
    if metric is None:
        metric = next((k for run in runs for event in run.dev for k in event if k not in AXES), None)
    dev = [_curve(run, run.dev, str(metric)) for run in runs]
    if any(curve.steps for curve in dev):
        figures.append(plot(dev, variants, x="updates", y=f"development {metric}", name=f"{prefix}dev"))
    return figures


def measured(runs: Sequence[Run], variants: Sequence[str]) -> tuple[list[str], list[list[str]]] | None:
    """What objectives reported at the last log line of training, a row for each variant, means over its runs."""
    ends = [(run.label, run.train[-1]) for run in runs if run.train]
    keys = list(dict.fromkeys(key for _, event in ends for key in event if key not in APART))
    if not keys:
        return None
    rows = []
    for variant in variants:
        mine = [event for label, event in ends if label == variant]
        found = [[event[key] for event in mine if isinstance(event.get(key), int | float)] for key in keys]
        rows.append([variant, *(f"{sum(some) / len(some):.4g}" if some else "–" for some in found)])
    return keys, rows


def length_curves(comparison: Comparison, variants: Sequence[str], prefix: str = "") -> list[tuple[str, str]]:
    """The first metric by length, a figure for each decoder."""
    if not comparison.lengths or not comparison.measures:
        return []
    measure = comparison.measures[0].name
    middles = [(each.low + each.high) / 2 for each in comparison.lengths]
    figures = []
    for i, decoder in enumerate(dict.fromkeys(row.decoder for row in comparison.rows)):
        curves = []
        for row in comparison.rows:
            if row.decoder == decoder and measure in row.cells:
                points = [(x, y) for x, y in zip(middles, row.cells[measure].by_length) if y is not None]
                curves.append(Curve(row.variant, [x for x, _ in points], [y for _, y in points]))
        label = f"length ({comparison.length_unit})"
        figures.append((decoder, plot(curves, variants, x=label, y=measure, name=f"{prefix}length{i}")))
    return figures


def what_differs(runs: Sequence[Run], variants: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The settings that are not the same in all variants, with the value that each has."""
    flat = [next(settings(run) for run in runs if run.label == variant) for variant in variants]
    keys = dict.fromkeys(key for table in flat for key in table)
    texts = [(key, [_spell(table[key]) if key in table else "" for table in flat]) for key in keys]
    return [(key, values) for key, values in texts if len(set(values)) > 1]


def _from_scores(runs: Sequence[Run]) -> Comparison:
    names = list(dict.fromkeys(run.name for run in runs))
    described = {str(run.recipe.get("description", "")) for run in runs}
    command = "unforced report " + " ".join(shlex.quote(str(run.folder.path)) for run in runs)
    return summarize(
        runs, name=", ".join(names), description=described.pop() if len(described) == 1 else "", command=command
    )


def _curve(run: Run, events: Sequence[dict[str, Any]], key: str) -> Curve:
    points = [(event["step"], event[key]) for event in events if isinstance(event.get(key), int | float)]
    return Curve(run.label, [step for step, _ in points], [float(value) for _, value in points])


def _progress(run: Run, comparison: Comparison) -> list[str]:
    """The line of a run in the list of runs."""
    state = next(
        (s.state for s in comparison.runs if (s.variant, s.seed) == (run.label, run.seed)),
        "finished" if run.finished else "unfinished",
    )
    end = run.finished or {}
    best = f"{run.best['metric']} {number(run.best['score'], decimals([run.best['score']]))}" if run.best else "–"
    speed = end["tokens"] / end["seconds"] if end.get("seconds") else None
    return [
        run.label,
        str(run.seed),
        state,
        str(end.get("steps", run.train[-1]["step"] if run.train else 0)),
        number(end["seconds"] / 60, 1) if end else "–",
        number(speed, 0),
        best,
        f"{run.info['parameters']:,}" if isinstance(run.info.get("parameters"), int) else "–",
    ]


def _versions(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Versions of the software, all that occurred."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        versions = run.info.get("versions")
        for name, version in (versions if isinstance(versions, dict) else {}).items():
            found.setdefault(str(name), {})[str(version)] = None
        for name in ("threads", "world"):
            if name in run.info:
                found.setdefault(name, {})[str(run.info[name])] = None
    return [(name, ", ".join(values)) for name, values in found.items()]


def _data(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """How many examples each split had and why others were left out, as the first run counted them."""
    counts: dict[str, Any] = next(
        (run.info["examples"] for run in runs if isinstance(run.info.get("examples"), dict)), {}
    )
    return [(str(split), _spell(count)) for split, count in counts.items()]


def _spell(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_spell(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return "[" + ", ".join(_spell(item) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
