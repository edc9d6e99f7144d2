"""The command line: thin words over ``unforced.api``, which is imported only by the commands that need it.

What the user got wrong is one line on standard error and exit code 2.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Parameter

from unforced import __version__
from unforced.errors import InputError

app = App(
    name="unforced",
    help="Train, decode and compare sequence models beyond teacher forcing.",
    version=__version__,
    help_format="plaintext",
    exit_on_error=False,
    print_error=False,
    verbose=False,
    suppress_keyboard_interrupt=False,
    result_action="return_value",
    default_parameter=Parameter(negative=()),
)

Kind = Literal["objectives", "tasks", "models", "decoders", "schedules", "costs", "recipes"]


@app.command
def train(
    recipe: str,
    /,
    *overrides: str,
    run: Annotated[Path | None, Parameter(name=("--run", "-o"))] = None,
    seed: int | None = None,
    variant: str | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> None:
    """Train a model and keep everything about it in a run folder.

    Parameters
    ----------
    recipe
        Name of a built-in recipe, a TOML file, or a run folder to repeat.
    overrides
        Changes such as training.epochs=3 or objective=label_smoothing.
    run
        The run folder; runs/RECIPE/VARIANT-SEED unless given. (Below torchrun, which has a --run of its own, use -o.)
    seed
        The recipe's first seed unless given.
    variant
        A variant of the recipe; the recipe as it stands unless given.
    resume
        Continue an interrupted run.
    quiet
        Show no progress.
    """
    from unforced import api

    folder = api.train(recipe, *overrides, run=run, seed=seed, variant=variant, resume=resume, quiet=quiet)
    if os.environ.get("RANK", "0") == "0":  # of several processes, one speaks
        print(folder)


@app.command
def evaluate(
    run: Path,
    /,
    *,
    split: Literal["train", "dev", "test"] = "test",
    decoder: str | None = None,
    checkpoint: str = "best",
    quiet: bool = False,
) -> None:
    """Decode a split with a trained model and score the outputs.

    Parameters
    ----------
    run
        A run folder.
    split
        Which part of the data.
    decoder
        One of the recipe's decoders; all of them unless given.
    checkpoint
        best, last, or the name of a checkpoint.
    quiet
        Show no progress.
    """
    from unforced import api

    scores = api.evaluate(run, split, decoder, checkpoint=checkpoint, quiet=quiet)
    rows = [(name, metric, f"{score:.4f}") for name, all in scores.items() for metric, score in all.items()]
    table(("decoder", "metric", "score"), rows)


@app.command
def decode(
    run: Path,
    /,
    *options: str,
    method: str = "beam",
    nbest: int = 1,
    checkpoint: str = "best",
    batch: int = 32,
    seed: int = 1,
) -> None:
    """Read sources from standard input, a line each, and write an output for each.

    Parameters
    ----------
    run
        A run folder.
    options
        Fields of the decoder, such as beam=5.
    method
        A decoder of the run's recipe or of the catalogue.
    nbest
        With more than one, write that many lines for a source: its number, the score and the output.
    checkpoint
        best, last, or the name of a checkpoint.
    batch
        Lines decoded together.
    seed
        For decoders that draw at random.
    """
    from unforced.stream import decode_lines

    lines = decode_lines(
        run, sys.stdin.buffer, method, options, nbest=nbest, checkpoint=checkpoint, size=batch, seed=seed
    )
    for line in lines:
        print(line, flush=True)


@app.command
def compare(
    *words: str,
    root: Path = Path("runs"),
    variants: str | None = None,
    seeds: str | None = None,
    quiet: bool = False,
) -> int:
    """Train every variant of recipes with every seed, and say which is better.

    Parameters
    ----------
    words
        Recipes, and changes such as training.epochs=3 that hold for all of them.
    root
        Folder of the runs; finished runs found there are kept, interrupted ones continued.
    variants
        Only these, separated by commas.
    seeds
        Only these, separated by commas.
    quiet
        Show no progress.
    """
    from unforced import api

    names = [word for word in words if "=" not in word]
    if not names:
        raise InputError("compare needs the name or the file of a recipe")
    overrides = [word for word in words if "=" in word]
    if seeds is not None:
        overrides.append(f"seeds=[{seeds}]")
    chosen = None if variants is None else [name.strip() for name in variants.split(",")]
    options = {"--root": str(root), "--variants": variants, "--seeds": seeds}
    given = [word for option, value in options.items() if value is not None for word in (option, value)]
    found = api.compare(
        *names,
        overrides=overrides,
        variants=chosen,
        root=root,
        quiet=quiet,
        command=shlex.join(["unforced", "compare", *words, *given]),
    )
    return 1 if found.failures else 0


@app.command
def report(*runs: Path, output: Path = Path("report.html")) -> None:
    """Write one offline page about run folders.

    Parameters
    ----------
    runs
        Run folders, or folders that hold some.
    output
        The page to write; a name that ends in .md gets the tables alone, as Markdown.
    """
    from unforced import api

    if not runs:
        raise InputError("report needs at least one run folder")
    print(api.report(*runs, output=output))


@app.command(name="list")
def list_(kind: Kind, /, *, json_: Annotated[bool, Parameter(name="--json")] = False) -> None:
    """List what recipes can name.

    Parameters
    ----------
    kind
        Which part of the catalogue.
    json_
        All fields with types, defaults and choices, as JSON.
    """
    from unforced.describe import entries

    found = entries(kind)
    if json_:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    else:
        table(("name", "what it is"), [(entry["name"], entry["summary"]) for entry in found])


@app.command
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
    from unforced import recipe as recipes

    loaded = recipes.load(recipe, overrides, None if variant is None else [variant])
    if plot is None:
        print(loaded.to_toml(), end="")
        return
    from unforced.plots.schedules import plot_schedules

    print(plot_schedules(loaded, plot))


@app.command
def plot(
    what: Literal["discontinuity"],
    /,
    *,
    output: Annotated[Path | None, Parameter(name=("--output", "-o"))] = None,
) -> None:
    """Draw a picture that explains a method.

    Parameters
    ----------
    what
        discontinuity: the loss of scheduled sampling along a line in parameter space, hard and relaxed.
    output
        The file (.svg, .png, .pdf); WHAT.svg unless given.
    """
    from unforced.plots.discontinuity import plot_discontinuity

    print(plot_discontinuity(Path(f"{what}.svg") if output is None else output))


@app.command
def data() -> None:
    """Say which data sets are in place, and where each comes from."""
    from unforced.tasks.locate import VARIABLE, available, root

    rows = []
    for entry in available():
        state = "found" if not entry.missing else f"missing {', '.join(entry.missing)}"
        if len(entry.missing) == len(entry.dataset.files):
            state = "missing"
        rows.append(
            (entry.dataset.folder, state, entry.dataset.title, entry.dataset.origin, entry.dataset.licence)
        )
    table(("folder", "state", "what it is", "origin", "licence"), rows)
    if root() is None:
        print(f"Set {VARIABLE} to the folder that holds these folders.", file=sys.stderr)


def table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A table for people on a terminal; lines of cells with tabs between them for programs."""
    if not sys.stdout.isatty():
        for row in rows:
            print(*row, sep="\t")
        return
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(*header, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*(Text(str(cell)) for cell in row))
    Console().print(grid)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and give its exit code."""
    try:
        code = app(sys.argv[1:] if argv is None else list(argv))
        sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except (InputError, CycloptsError) as error:
        complain(error)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough: nothing more is written, not even at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        complain(error)
        return 1


def complain(error: Exception) -> None:
    print(f"unforced: {' '.join(str(error).split())}", file=sys.stderr)
