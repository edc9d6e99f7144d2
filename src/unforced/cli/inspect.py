"""Commands that only tell or draw: what recipes can name, what they say, what was found, which data are there."""

import json
import sys
from pathlib import Path
from typing import Annotated, Literal, get_args

from cyclopts import Parameter

from unforced.errors import InputError
from unforced.reports.tables import print_table

Kind = Literal["objectives", "tasks", "models", "decoders", "schedules", "costs", "kernels", "recipes"]


def list_(kind: Kind | None = None, /, *, json_: Annotated[bool, Parameter(name="--json")] = False) -> None:
    """List what recipes can name.

    Parameters
    ----------
    kind
        Which part of the catalogue; the names of all parts unless given.
    json_
        All fields with types, defaults and choices, as JSON.
    """
    from unforced.recipes.listing import entries

    if kind is None:
        parts = {part: [entry["name"] for entry in entries(part)] for part in get_args(Kind)}
        if json_:
            print(json.dumps(parts, indent=2))
        else:
            print_table(("part", "names"), [(part, ", ".join(names)) for part, names in parts.items()])
        return
    found = entries(kind)
    if json_:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        print_table(("name", "what it is"), [(entry["name"], entry["summary"]) for entry in found])


def show(recipe: str, /, *overrides: str, variant: str | None = None, plot: Path | None = None) -> None:
    """Print a recipe with every default filled in, as TOML.

    Parameters
    ----------
    recipe
        Name of a built-in recipe, a TOML file, or a run folder.
    overrides
        Changes such as training.epochs=3.
    variant
        Only this variant.
    plot
        Draw the schedules of its objectives to this file (.svg, .png, .pdf) instead.
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
    what: Literal["changes", "discontinuity", "traces"],
    folder: Path | None = None,
    /,
    *,
    metric: str | None = None,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
) -> None:
    """Draw what a comparison found, how chains went, or a picture that explains a method.

    Parameters
    ----------
    what
        changes: what the variants of the comparison in FOLDER change against its baseline. traces: the energies and acceptance of
        the chains in FOLDER. discontinuity: the loss of scheduled sampling along a line in parameter space, hard and relaxed.
    folder
        For changes: what compare has written. For traces: what sample has written.
    metric
        For changes: the comparison's first unless given.
    output
        The file (.svg, .png, .pdf). Unless given, FOLDER/changes.svg, FOLDER/traces.svg, or discontinuity.svg here, where there is
        none yet.
    """
    if metric is not None and what != "changes":
        raise InputError(f"--metric goes with changes, not with {what}")
    if what == "discontinuity":
        from unforced.reports.discontinuity import plot_discontinuity

        if folder is not None:
            raise InputError("the discontinuity is drawn of no folder")
        path = Path("discontinuity.svg")
        if output is None and path.exists():
            raise InputError(f"{path} is there already: say by --output where the picture may go")
        print(plot_discontinuity(output or path))
        return
    if folder is None:
        raise InputError(f"plot {what} needs the folder of the {'chains' if what == 'traces' else 'comparison'}")
    if what == "changes":
        from unforced.reports.figures import plot_changes

        print(plot_changes(folder, output, metric=metric))
        return
    from unforced.reports.traces import plot_folder

    print(plot_folder(folder, output))


def data() -> None:
    """Say which data sets are in place, and where each comes from."""
    from unforced.tasks.datasets import VARIABLE, available, root

    rows = []
    for entry in available():
        state = "found" if not entry.missing else f"missing {', '.join(entry.missing)}"
        if len(entry.missing) == len(entry.dataset.files):
            state = "missing"
        rows.append((entry.dataset.folder, state, entry.dataset.title, entry.dataset.origin, entry.dataset.licence))
    print_table(("folder", "state", "what it is", "origin", "licence"), rows)
    if root() is None:
        print(f"Set {VARIABLE} to the folder that holds these folders.", file=sys.stderr)
