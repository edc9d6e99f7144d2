"""The report page, and the tables alone as Markdown."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unforced.errors import InputError
from unforced.experiments.comparison import Comparison
from unforced.experiments.runs import Run, read_runs
from unforced.experiments.statistics import summarize
from unforced.recipes.recipe import flatten
from unforced.reports.examples import galleries
from unforced.reports.figures import Curve, inline_changes, inline_curves, palette
from unforced.reports.tables import comparison_markdown, comparison_notes, comparison_tables, decimals, number
from unforced.training.run_folder import replace_bytes

AXES = ("kind", "step", "epoch")  # keys of an event that are not measured
NOT_LISTED = (*AXES, "loss", "nll", "learning_rate", "tokens", "seconds")  # drawn, or not about the method
UNCHANGING = ("name", "description", "seeds", "baseline", "variants")  # keys of a recipe that don't affect a run

Section = tuple[Comparison, Sequence[Run]]


def write_report(paths: Sequence[Path], output: Path) -> Path:
    """Write a page about run folders or folders of comparisons, or only the tables if ``output`` ends in ``.md``.

    The page is one file that loads nothing from elsewhere. The same folders give the same bytes.
    """
    if output.suffix not in (".html", ".htm", ".md"):
        raise InputError(f"{output}: the name of a report must end in .html, or in .md for the tables alone")
    own = (b'<meta name="generator" content="unforced">', b"| variant | decoder |")
    if output.is_file() and output.stat().st_size and not any(mark in output.read_bytes() for mark in own):
        raise InputError(f"{output} exists and is not a report; choose another name or remove it")
    sections = [_read(group) for group in _groups(paths)]
    if output.suffix != ".md":
        replace_bytes(output, render(sections).encode())
        return output
    for (comparison, _), group in zip(sections, _groups(paths)):
        if not comparison.rows:
            raise InputError(f"{group[0]} has no scores yet, so there are no tables; run `unforced evaluate`")
    replace_bytes(output, "\n".join(comparison_markdown(comparison) for comparison, _ in sections).encode())
    return output


def write_comparison_page(folder: Path, comparison: Comparison, runs: Sequence[Run]) -> Path:
    """Write ``report.html`` about a comparison into its folder."""
    page = folder / "report.html"
    replace_bytes(page, render([(comparison, runs)]).encode())
    return page


def _groups(paths: Sequence[Path]) -> list[list[Path]]:
    """The paths of each section: several comparisons have a section each, all other paths share one."""
    comparisons = [path for path in paths if (path / "comparison.json").is_file()]
    if len(comparisons) < 2:
        return [list(paths)]
    rest = [path for path in paths if path not in comparisons]
    return [*([path] for path in comparisons), *([rest] if rest else [])]


def _read(paths: Sequence[Path]) -> Section:
    runs, comparison = read_runs(paths)
    if comparison is None:
        names = list(dict.fromkeys(run.name for run in runs))
        descriptions = {str(run.recipe.get("description", "")) for run in runs}
        description = descriptions.pop() if len(descriptions) == 1 else ""
        command = shlex.join(["unforced", "report", *(str(run.path) for run in runs)])
        comparison = summarize(runs, name=", ".join(names), description=description, command=command)
    return comparison, runs


def render(sections: Sequence[Section]) -> str:
    """Return the text of the page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("unforced", "reports/templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("comparison.html.jinja")
    contents = [_contents(comparison, runs, prefix=f"s{i}-") for i, (comparison, runs) in enumerate(sections)]
    names = [comparison.name for comparison, _ in sections]
    colours = max(len(each["variants"]) for each in contents)
    return environment.get_template("report.html.jinja").render(
        title=", ".join(names) if len(names) > 1 else f"{names[0]}: {', '.join(contents[0]['variants'])}",
        complete=all(comparison.complete for comparison, _ in sections),
        colours=palette(colours),
        dark_colours=palette(colours, dark=True),
        sections=[Markup(template.render(each)) for each in contents],
    )


def _contents(comparison: Comparison, runs: Sequence[Run], *, prefix: str) -> dict[str, Any]:
    """What the template of a section shows; ``prefix`` begins the ids of its figures."""
    from markupsafe import Markup

    variants = list(dict.fromkeys(run.label for run in runs))
    measure = comparison.measures[0] if comparison.measures else None
    changes = inline_changes(comparison, variants, f"{prefix}changes")
    return {
        "comparison": comparison,
        "changes": changes and Markup(changes),
        "tables": comparison_tables(comparison),
        "notes": comparison_notes(comparison),
        "variants": variants,
        "colours": {variant: i for i, variant in enumerate(variants)},
        "differences": _differences(runs, variants),
        "curves": [Markup(svg) for svg in learning_curves(runs, variants, prefix)],
        "measured": objective_metrics(runs, variants),
        "by_length": [(decoder, Markup(svg)) for decoder, svg in _length_curves(comparison, variants, prefix)],
        "galleries": galleries(runs, variants, comparison.split, measure),
        "runs": [_run_line(run, comparison) for run in runs],
        "recipes": {run.label: run.recipe_text for run in reversed(runs)},
        "versions": _versions(runs),
        "data": _data(runs),
    }


def learning_curves(runs: Sequence[Run], variants: Sequence[str], prefix: str = "") -> list[str]:
    """Return training loss and development score against updates, as SVG."""

    def curves(kind: str, key: str) -> list[Curve]:
        found = []
        for run in runs:
            events = [e for e in run.events if e["kind"] == kind and isinstance(e.get(key), int | float)]
            found.append(Curve(run.label, [e["step"] for e in events], [float(e[key]) for e in events]))
        return found

    comparable = all("nll" in event for run in runs for event in run.train)
    loss = ("nll", "training NLL per token") if comparable else ("loss", "training loss (of each method)")
    measured = [key for run in runs for event in run.dev for key in event if key not in AXES]
    metric = next((run.best["metric"] for run in runs if run.best), measured[0] if measured else "")
    figures = []
    for kind, (key, label), name in [("train", loss, "loss"), ("dev", (metric, f"development {metric}"), "dev")]:
        found = curves(kind, key)
        if any(curve.steps for curve in found):
            figures.append(inline_curves(found, variants, x="updates", y=label, name=f"{prefix}{name}"))
    return figures


def objective_metrics(runs: Sequence[Run], variants: Sequence[str]) -> tuple[list[str], list[list[str]]] | None:
    """Return what the objectives logged last: names, and a row of means over seeds for each variant."""
    last = [(run.label, run.train[-1]) for run in runs if run.train]
    keys = list(dict.fromkeys(key for _, event in last for key in event if key not in NOT_LISTED))
    rows = []
    for variant in variants:
        mine = [event for label, event in last if label == variant]
        found = [[event[key] for event in mine if isinstance(event.get(key), int | float)] for key in keys]
        rows.append([variant, *(f"{sum(values) / len(values):.4g}" if values else "–" for values in found)])
    return (keys, rows) if keys else None


def _length_curves(comparison: Comparison, variants: Sequence[str], prefix: str) -> list[tuple[str, str]]:
    """The first metric by length, a figure for each decoder."""
    if not comparison.lengths or not comparison.measures:
        return []
    measure = comparison.measures[0].name
    middles = [(each.low + each.high) / 2 for each in comparison.lengths]
    label = f"length ({comparison.length_unit})"
    figures = []
    for i, decoder in enumerate(dict.fromkeys(row.decoder for row in comparison.rows)):
        curves = []
        for row in comparison.rows:
            if row.decoder == decoder and measure in row.cells:
                points = [(x, y) for x, y in zip(middles, row.cells[measure].by_length) if y is not None]
                curves.append(Curve(row.variant, [x for x, _ in points], [y for _, y in points]))
        figures.append((decoder, inline_curves(curves, variants, x=label, y=measure, name=f"{prefix}length{i}")))
    return figures


def _differences(runs: Sequence[Run], variants: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The settings that differ between variants, with the value in each."""
    recipes = [next(run.recipe for run in runs if run.label == variant) for variant in variants]
    tables = [flatten({key: value for key, value in each.items() if key not in UNCHANGING}) for each in recipes]
    keys = dict.fromkeys(key for table in tables for key in table)
    texts = [(key, [_text(table[key]) if key in table else "" for table in tables]) for key in keys]
    return [(key, values) for key, values in texts if len(set(values)) > 1]


def _run_line(run: Run, comparison: Comparison) -> list[str]:
    """The line of a run in the list of runs."""
    states = {(state.variant, state.seed): state.state for state in comparison.runs}
    end, best = run.finished or {}, run.best
    speed = end["tokens"] / end["seconds"] if end.get("seconds") else None
    parameters = run.info.get("parameters")
    return [
        run.label,
        str(run.seed),
        states.get((run.label, run.seed), "finished" if run.finished else "unfinished"),
        str(end.get("steps", run.train[-1]["step"] if run.train else 0)),
        number(end["seconds"] / 60, 1) if end else "–",
        number(speed, 0),
        f"{best['metric']} {number(best['score'], decimals([best['score']]))}" if best else "–",
        "–" if parameters is None else f"{parameters:,}",
    ]


def _versions(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """The versions of the software and the numbers of threads and processes, with all values."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        facts = {**run.info.get("versions", {}), **{k: run.info[k] for k in ("threads", "world") if k in run.info}}
        for name, value in facts.items():
            found.setdefault(name, {})[str(value)] = None
    return [(name, ", ".join(values)) for name, values in found.items()]


def _data(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """How many examples of each split were read, kept and dropped, in the first run."""
    counts: dict[str, Any] = next((run.info["examples"] for run in runs if "examples" in run.info), {})
    return [(split, _text(count)) for split, count in counts.items()]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
