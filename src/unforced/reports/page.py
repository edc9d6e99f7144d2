"""The report page, and the tables alone as Markdown."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unforced.errors import InputError
from unforced.experiments.comparison import Comparison
from unforced.experiments.runs import Run, read_comparison_folder, read_runs
from unforced.experiments.statistics import summarize
from unforced.recipes.recipe import flatten
from unforced.reports.diagnosis import diagnosis_table, inline_diagnosis
from unforced.reports.examples import galleries
from unforced.reports.figures import COLOURS, DARK_COLOURS, Curve, css_line, inline_changes, inline_curves
from unforced.reports.tables import (
    DASH,
    TextTable,
    comparison_markdown,
    comparison_notes,
    comparison_tables,
    decimals,
    minutes,
    number,
    verdicts,
)
from unforced.training.run_folder import replace_bytes

NOT_LISTED = ("kind", "step", "epoch", "loss", "nll", "learning_rate", "tokens", "seconds")  # keys of log lines
OWN = re.compile(
    rb'<!DOCTYPE html>.{,99}<meta name="generator" content="unforced">|(## .*\n\n)?\S+ \((higher|lower) is', re.S
)
UNCHANGING = ("name", "description", "seeds", "baseline", "variants")  # keys of a recipe that don't affect a run

Section = tuple[Comparison, Sequence[Run]]


def write_report(paths: Sequence[Path], output: Path) -> Path:
    """Write a page about run folders or folders of comparisons, or only the tables if ``output`` ends in ``.md``.

    The page is one file that loads nothing from elsewhere. The same folders give the same bytes.
    """
    if output.suffix not in (".html", ".md"):
        raise InputError(f"{output}: the name of a report must end in .html, or in .md for the tables alone")
    if output.is_file() and output.stat().st_size and not OWN.match(output.read_bytes()):
        raise InputError(f"{output} exists and is not a report; choose another name or remove it")
    sections = _sections(paths)
    if output.suffix == ".html":
        text = render(sections)
    else:
        for comparison, _ in sections:
            if not comparison.rows:
                raise InputError(f"{comparison.name} has no scores to tabulate; run `unforced evaluate` first")
        titles = [f"## {comparison.name}\n\n" if len(sections) > 1 else "" for comparison, _ in sections]
        text = "\n".join(title + comparison_markdown(comparison) for title, (comparison, _) in zip(titles, sections))
    replace_bytes(output, text.encode())
    return output


def write_comparison_page(folder: Path, comparison: Comparison, runs: Sequence[Run], running: bool = False) -> Path:
    """Write ``report.html`` about a comparison into its folder; a page about a ``running`` one reloads itself."""
    page = folder / "report.html"
    replace_bytes(page, render([(comparison, runs)], reload=running).encode())
    return page


def _sections(paths: Sequence[Path]) -> list[Section]:
    """Read the sections of a page: one for each comparison, and one for each task of all other runs."""
    comparisons = [path for path in paths if (path / "comparison.json").is_file()]
    sections: list[Section] = [read_comparison_folder(path) for path in comparisons]
    groups = read_runs([path for path in paths if path not in comparisons])
    names = [", ".join(dict.fromkeys(run.name for run in runs)) for runs in groups]
    for name, runs in zip(names, groups):
        folders = [str(run.path) for run in runs]
        descriptions = {run.recipe.get("description", "") for run in runs}
        comparison = summarize(
            runs,
            name=name if names.count(name) == 1 else f"{name} ({', '.join(folders)})",
            description=descriptions.pop() if len(descriptions) == 1 else "",
            command=shlex.join(["unforced", "report", *folders]),
        )
        sections.append((comparison, runs))
    if not sections:
        raise InputError("there is no run to report on; name at least one run folder")
    return sections


def render(sections: Sequence[Section], *, reload: bool = False) -> str:
    """Return the text of the page, which may reload every 30 seconds."""
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
    contents = [_contents(comparison, runs, reload, prefix=f"s{i}-") for i, (comparison, runs) in enumerate(sections)]
    names = [comparison.name for comparison, _ in sections]
    return environment.get_template("report.html.jinja").render(
        title=", ".join(names) if len(names) > 1 else f"{names[0]}: {', '.join(contents[0]['variants'])}",
        reload=reload,
        colours=COLOURS,
        dark_colours=DARK_COLOURS,
        swatches=[css_line(i) for i in range(max(len(comparison.variants) for comparison, _ in sections))],
        sections=[Markup(template.render(each)) for each in contents],
    )


def _contents(comparison: Comparison, runs: Sequence[Run], reload: bool, *, prefix: str) -> dict[str, Any]:
    """Return the variables of the template of a section; ``prefix`` begins the ids of its figures."""
    from markupsafe import Markup

    started = {run.label for run in runs}
    variants = [variant for variant in comparison.variants if variant in started]
    return {
        "comparison": comparison,
        "unfinished": _unfinished(comparison, reload),
        "verdicts": verdicts(comparison),
        "changes": Markup(inline_changes(comparison, f"{prefix}changes")),
        "tables": comparison_tables(comparison),
        "notes": comparison_notes(comparison),
        "variants": variants,
        "colours": {variant: i for i, variant in enumerate(comparison.variants)},
        "settings": differing_settings(runs, variants),
        "curves": [Markup(svg) for svg in learning_curves(runs, comparison.variants, prefix)],
        "logged": objective_metrics(runs, variants),
        "by_length": [(decoder, Markup(svg)) for decoder, svg in _length_curves(comparison, prefix)],
        "diagnoses": _diagnoses(runs, prefix),
        "galleries": galleries(runs, variants, comparison),
        "runs": _run_table(runs, comparison),
        "recipes": {run.label: run.recipe_text for run in reversed(runs)},
        "versions": _versions(runs),
        "data": _data(runs),
    }


def _unfinished(comparison: Comparison, reload: bool) -> str:
    """Say which runs have not ended, and what to do; return an empty text if all have."""
    states = [run.state for run in comparison.runs]
    counts = {state: states.count(state) for state in ("running", "interrupted", "waiting") if state in states}
    if not counts:
        return ""
    text = f"Unfinished runs: {', '.join(f'{count} {state}' for state, count in counts.items())}."
    if reload:
        text += " This page reloads every 30 seconds."
    elif "interrupted" in counts:
        text += " Continue a training with --resume, a comparison by the same command."
    return text


def learning_curves(runs: Sequence[Run], variants: Sequence[str], prefix: str = "") -> list[str]:
    """Return training loss and development score against updates, as SVG."""

    def curves(kind: str, key: str) -> list[Curve]:
        found = []
        for run in runs:
            events = [event for event in run.events if event["kind"] == kind and event.get(key) is not None]
            found.append(Curve(run.label, [event["step"] for event in events], [event[key] for event in events]))
        return found

    comparable = all("nll" in event for run in runs for event in run.train)
    loss = ("nll", "training NLL per token") if comparable else ("loss", "training loss (of each method)")
    metric = next((run.best["metric"] for run in runs if run.best), "")
    figures = []
    for kind, (key, label), name in [("train", loss, "loss"), ("dev", (metric, f"development {metric}"), "dev")]:
        found = curves(kind, key)
        if any(curve.steps for curve in found):
            figures.append(inline_curves(found, variants, x="updates", y=label, name=f"{prefix}{name}"))
    return figures


def objective_metrics(runs: Sequence[Run], variants: Sequence[str]) -> TextTable:
    """Return the last metrics that the objectives logged, as means over the seeds of each variant."""
    last = [(run.label, run.train[-1]) for run in runs if run.train]
    keys = list(dict.fromkeys(key for _, event in last for key in event if key not in NOT_LISTED))
    rows = []
    for variant in variants:
        values = [[event[key] for label, event in last if label == variant and key in event] for key in keys]
        rows.append((variant, *(f"{sum(each) / len(each):.4g}" if each else DASH for each in values)))
    return TextTable("", ("variant", *keys), tuple(rows) if keys else (), (False, *(True for _ in keys)))


def _length_curves(comparison: Comparison, prefix: str) -> list[tuple[str, str]]:
    """Return a figure of the first metric by length for each decoder."""
    if not comparison.lengths:
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
        figures.append(
            (decoder, inline_curves(curves, comparison.variants, x=label, y=measure, name=f"{prefix}length{i}"))
        )
    return figures


def _diagnoses(runs: Sequence[Run], prefix: str) -> list[dict[str, Any]]:
    """Return the table, the sentences and the figures of each run that `unforced.diagnose` has measured."""
    from markupsafe import Markup

    diagnoses = []
    for i, run in enumerate(runs):
        if (found := run.folder.diagnosis()) is not None:
            figures = [(caption, Markup(svg)) for caption, svg in inline_diagnosis(found, f"{prefix}diagnosis{i}")]
            table, early = diagnosis_table(found), found["too_early"]
            diagnoses.append(
                {"run": f"{run.label}, seed {run.seed}", "table": table, "early": early, "figures": figures}
            )
    return diagnoses


def differing_settings(runs: Sequence[Run], variants: Sequence[str]) -> TextTable:
    """Return the settings that differ between variants, with a column for each variant."""
    recipes = [next(run.recipe for run in runs if run.label == variant) for variant in variants]
    tables = [flatten({key: value for key, value in each.items() if key not in UNCHANGING}) for each in recipes]
    keys = dict.fromkeys(key for table in tables for key in table)
    rows = [(key, *(_text(table[key]) if key in table else "" for table in tables)) for key in keys]
    differing = tuple(row for row in rows if len(set(row[1:])) > 1)
    return TextTable("", ("setting", *variants), differing, (False,) * (1 + len(variants)))


def _run_table(runs: Sequence[Run], comparison: Comparison) -> TextTable:
    header = ("variant", "seed", "state", "updates", "minutes", "tokens/s", "best development score", "parameters")
    states = {(state.variant, state.seed): state.state for state in comparison.runs}
    rows = []
    for run in runs:
        end, best, parameters = run.finished or {}, run.best, run.info.get("parameters")
        rows.append(
            (
                run.label,
                str(run.seed),
                states[run.label, run.seed],
                str(end.get("steps", run.train[-1]["step"] if run.train else 0)),
                minutes(end["seconds"] / 60) if end else DASH,
                number(end["tokens"] / end["seconds"], 0) if end.get("seconds") else DASH,
                f"{best['metric']} {number(best['score'], decimals([best['score']]))}" if best else DASH,
                DASH if parameters is None else f"{parameters:,}",
            )
        )
    return TextTable("", header, tuple(rows), (False, True, False, True, True, True, True, True))


def _versions(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return the versions of software and the numbers of threads and processes, with all values over runs."""
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        facts = {**run.info.get("versions", {}), **{k: run.info.get(k) for k in ("threads", "world")}}
        for name, value in facts.items():
            if value is not None:
                found.setdefault(name, {})[str(value)] = None
    return [(name, ", ".join(values)) for name, values in found.items()]


def _data(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """Return how many examples of each split were read, kept and dropped, in the first run."""
    counts: dict[str, Any] = next((run.info["examples"] for run in runs if "examples" in run.info), {})
    return [(split, _text(count)) for split, count in counts.items()]


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(item)}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return "[" + ", ".join(_text(item) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
