"""Commands that train models, judge them and use them."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from unforced.errors import InputError
from unforced.reports.tables import print_table


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
    print_table(("decoder", "metric", "score"), rows)


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
    from unforced.cli.decode_stream import decode_lines

    lines = decode_lines(
        run, sys.stdin.buffer, method, options, nbest=nbest, checkpoint=checkpoint, size=batch, seed=seed
    )
    for line in lines:
        print(line, flush=True)


def compare(
    *words: str,
    root: Path = Path("runs"),
    variants: str | None = None,
    seeds: str | None = None,
    jobs: int = 1,
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
    jobs
        Runs that are made at a time, each with its share of the cores.
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
    several = str(jobs) if jobs > 1 else None
    options = {"--root": str(root), "--variants": variants, "--seeds": seeds, "--jobs": several}
    given = [word for option, value in options.items() if value is not None for word in (option, value)]
    found = api.compare(
        *names,
        overrides=overrides,
        variants=chosen,
        root=root,
        jobs=jobs,
        quiet=quiet,
        command=shlex.join(["unforced", "compare", *words, *given]),
    )
    return 1 if found.failures else 0


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
