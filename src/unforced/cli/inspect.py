"""Commands that print or plot: registered names, recipes, results and data sets."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal, get_args

from cyclopts import Parameter

from unforced.errors import InputError
from unforced.reports.tables import print_table

Kind = Literal["objectives", "tasks", "models", "decoders", "schedules", "costs", "kernels", "recipes", "training"]


def list_(kind: Kind | None = None, /, *, json_: Annotated[bool, Parameter(name="--json")] = False) -> None:
    """List the names that recipes can use, or the settings of training.

    Parameters
    ----------
    kind
        Kind of names, or training for the fields of [training] with their defaults (default: the names of all kinds).
    json_
        Print all fields with values, defaults and choices as JSON.
    """
    from unforced.recipes.listing import entries
    from unforced.recipes.recipe import spell_none

    if kind is None:
        parts = {part: [entry["name"] for entry in entries(part)] for part in get_args(Kind)}
        if json_:
            print(json.dumps(parts, indent=2))
        else:
            print_table(("kind", "names"), [(part, ", ".join(names)) for part, names in parts.items()])
        return
    found = entries(kind)
    if json_:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    elif kind == "training":
        rows = [(f["name"], json.dumps(spell_none(f["default"])), f["expected"], f["doc"]) for f in found]
        print_table(("setting", "default", "value", "description"), rows)
    else:
        print_table(("name", "description"), [(entry["name"], entry["summary"]) for entry in found])


def show(recipe: str, /, *overrides: str, variant: str | None = None, plot: Path | None = None) -> None:
    """Print a recipe with every default filled in, as TOML.

    Parameters
    ----------
    recipe
        Name of a built-in recipe, a TOML file, or a run folder.
    overrides
        Settings such as training.epochs=3.
    variant
        Print only this variant.
    plot
        Plot the schedules of its objectives to this file (.svg, .png, .pdf) instead.
    """
    from unforced.recipes import recipe as recipes

    loaded = recipes.load(recipe, overrides, variant)
    try:
        for each in loaded.variants:
            loaded.single(each.name)
    except InputError as error:
        raise InputError(f"{recipe}: {error}") from None
    if plot is None:
        print(loaded.to_toml(), end="")
        return
    from unforced.reports.schedules import plot_schedules

    print(plot_schedules(loaded, plot))


def plot(
    what: Literal["changes", "diagnosis", "discontinuity", "traces"],
    folder: Path | None = None,
    /,
    *,
    metric: str | None = None,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
) -> None:
    """Plot the results of a comparison, the traces of chains, or a figure that explains a method.

    Parameters
    ----------
    what
        changes: differences between the variants of the comparison in FOLDER and its baseline. diagnosis: what
        diagnose found for the run in FOLDER. traces: energies and acceptance rates of the chains in FOLDER.
        discontinuity: the loss of scheduled sampling along a line in parameter space, hard and relaxed.
    folder
        For changes, a folder written by compare; for diagnosis, a run folder; for traces, a folder written by sample.
    metric
        For changes, the metric to plot (default: the first of the comparison).
    output
        File to write, .svg, .png or .pdf (default: WHAT.svg in FOLDER, or discontinuity.svg).
    """
    if metric is not None and what != "changes":
        raise InputError(f"--metric is an option of plot changes, not of plot {what}")
    if what == "discontinuity":
        from unforced.reports.discontinuity import plot_discontinuity

        if folder is not None:
            raise InputError("plot discontinuity takes no folder")
        path = Path("discontinuity.svg")
        if output is None and path.exists():
            raise InputError(f"{path} exists already: choose another file with --output")
        print(plot_discontinuity(output or path))
        return
    if folder is None:
        owner = {"changes": "comparison", "diagnosis": "run", "traces": "chains"}[what]
        raise InputError(f"plot {what} needs the folder of the {owner}")
    if what == "changes":
        from unforced.reports.figures import plot_changes

        print(plot_changes(folder, output, metric=metric))
        return
    if what == "diagnosis":
        from unforced.reports.diagnosis import plot_diagnosis

        print(plot_diagnosis(folder, output))
        return
    from unforced.reports.traces import plot_folder

    print(plot_folder(folder, output))


def data() -> None:
    """List the data sets, whether they are installed, and where each comes from."""
    from unforced.tasks.datasets import VARIABLE, available, root

    rows = []
    for entry in available():
        state = "found" if not entry.missing else f"missing {', '.join(entry.missing)}"
        if len(entry.missing) == len(entry.dataset.files):
            state = "missing"
        rows.append((entry.dataset.folder, state, entry.dataset.title, entry.dataset.origin, entry.dataset.licence))
    print_table(("folder", "state", "description", "origin", "licence"), rows)
    if root() is None:
        print(f"Set {VARIABLE} to the folder that contains these folders.", file=sys.stderr)
