"""Commands that train, evaluate, use and compare models."""

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from unforced.errors import InputError, printable


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
        Settings such as training.epochs=3 or objective=label_smoothing.
    run
        Run folder (default: runs/RECIPE/VARIANT-SEED). With torchrun, which has its own --run, use -o.
    seed
        Random seed (default: the recipe's first).
    variant
        Variant of the recipe (default: the recipe without its variants).
    resume
        Continue an interrupted run: "unforced train RUN --resume", or the same command again with --resume.
    quiet
        Do not show progress.
    """
    from unforced import api

    folder = api.train(recipe, *overrides, run=run, seed=seed, variant=variant, resume=resume, quiet=quiet)
    if os.environ.get("RANK", "0") == "0":  # only one of several processes prints
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
    """Decode a split with a trained model and print the scores with 95 % intervals.

    Files in predictions/ and scores/ of the run folder have the outputs and the exact scores, for programs.

    Parameters
    ----------
    run
        A run folder.
    split
        Part of the data.
    decoder
        One of the recipe's decoders (default: all of them).
    checkpoint
        best, last, or the name of a checkpoint.
    quiet
        Do not show progress.
    """
    from unforced import api

    api.evaluate(run, split, decoder, checkpoint=checkpoint, quiet=quiet, table=True)


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
    """Read one source per line from standard input and print one output per line.

    Parameters
    ----------
    run
        A run folder.
    options
        Options of the decoder, such as beam=5.
    method
        Decoder of the run's recipe, or any decoder of "unforced list decoders".
    nbest
        Number of outputs per source; with more than one, each line has the number of the source, the score and the
        output.
    checkpoint
        best, last, or the name of a checkpoint.
    batch
        Number of lines decoded together.
    seed
        Random seed for decoders that sample.
    """
    from unforced.cli.decode_stream import decode_lines

    lines = decode_lines(
        run, sys.stdin.buffer, method, options, nbest=nbest, checkpoint=checkpoint, size=batch, seed=seed
    )
    for line in lines:
        print(printable(line), flush=True)


def compare(
    *words: str,
    root: Path = Path("runs"),
    variants: str | None = None,
    seeds: str | None = None,
    jobs: int = 1,
    quiet: bool = False,
) -> int:
    """Train every variant of recipes with every seed, compare their scores and write a report.

    Parameters
    ----------
    words
        Recipes, and settings such as training.epochs=3 for all of them. "variant:NAME" in a recipe is the run of that
        variant with the same seed, which is trained first.
    root
        Folder of the runs; finished runs are kept, interrupted runs are continued.
    variants
        Names of variants, separated by commas (default: all).
    seeds
        Random seeds, separated by commas (default: those of the recipe).
    jobs
        Number of runs to train at a time, each in a process of its own.
    quiet
        Do not show progress.
    """
    from unforced import api

    names = [word for word in words if "=" not in word]
    if not names:
        raise InputError("compare needs a recipe: the name of a built-in one or a TOML file")
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


def report(*runs: Path, output: Annotated[Path, Parameter(name=("--output", "-o"))] = Path("report.html")) -> None:
    """Write an HTML page with tables, curves and example outputs of runs, one comparison for each task.

    Parameters
    ----------
    runs
        Run folders, folders of comparisons, or folders that contain run folders.
    output
        File to write; with a name that ends in .md, only the tables, as Markdown.
    """
    from unforced import api

    if not runs:
        raise InputError("report needs at least one run folder")
    print(api.report(*runs, output=output))
