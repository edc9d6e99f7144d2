"""The command line: thin words over ``unforced.api``, which is imported only by the commands that need it.

What the user got wrong is one line on standard error and exit code 2.
"""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

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

Kind = Literal["objectives", "tasks", "models", "decoders", "schedules", "costs", "kernels", "recipes"]


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
def score(
    model: Path,
    /,
    *,
    energy: Literal["raw", "local"] | None = None,
    whole_words: bool = False,
    json_: Annotated[bool, Parameter(name="--json")] = False,
    checkpoint: str = "best",
    batch: int = 32,
) -> None:
    """Read sentences from standard input, a line each, and say what a masked model makes of them.

    A line is written for each: its energies (raw, then local), its pseudo-log-likelihood, its number of tokens and the
    sentence itself, with tabs between them.

    Parameters
    ----------
    model
        A run folder of a masked model, or a folder that transformers saved one in. Lines for a model that reads sources
        have the source, a tab and the sentence.
    energy
        Only this energy.
    whole_words
        For the pseudo-log-likelihood, hide a piece together with all later pieces of its word (PLL-word-l2r).
    json_
        A JSON object a line, with every token's logarithmic probability.
    checkpoint
        best, last, or the name of a checkpoint of the run.
    batch
        Lines scored together.
    """
    from unforced.sampling import score_lines
    from unforced.sentences import open_model

    kinds = ("raw", "local") if energy is None else (energy,)
    masking: Any = "left_to_right" if whole_words else "single"
    for found in score_lines(open_model(model, checkpoint), sys.stdin.buffer, masking, batch):
        energies = {f"energy_{kind}": found.energy(kind) for kind in kinds}  # type: ignore[arg-type]
        if json_:
            said = {**energies, "pseudo_log_likelihood": found.pseudo_log_likelihood, "tokens": found.tokens}
            print(json.dumps({"sentence": found.text, **said}, ensure_ascii=False), flush=True)
        else:
            numbers = (f"{value:.4f}" for value in (*energies.values(), found.pseudo_log_likelihood))
            print(*numbers, len(found.tokens), found.text, sep="\t", flush=True)


@app.command
def sample(
    model: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"))],
    kernel: Literal["metropolis_hastings", "gibbs"] = "metropolis_hastings",
    energy: Literal["raw", "local"] | None = None,
    sweeps: int = 100,
    chains: int = 4,
    start: Literal["random", "greedy", "data"] = "greedy",
    seed: int = 1,
    temperature: float | None = None,
    nucleus: float | None = None,
    block: int | None = None,
    shrink: int | None = None,
    order: Literal["random", "left_to_right"] | None = None,
    target_temperature: float | None = None,
    anneal: float | None = None,
    lowest: float | None = None,
    forced: int | None = None,
    input_: Annotated[Path | None, Parameter(name="--input", allow_leading_hyphen=True)] = None,
    split: Literal["train", "dev", "test"] = "test",
    examples: int | None = None,
    length: int | None = None,
    burn_in: int | None = None,
    keep_every: int = 1,
    save_every: int = 10,
    checkpoint: str = "best",
    resume: bool = False,
    quiet: bool = False,
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> None:
    """Sample sequences from a masked model by Markov chains, and keep them in a folder.

    Prints how many proposals were accepted, how many changed the sequence, energies, R-hat and the effective sample size of
    the energy, and which chains are stuck; OUTPUT/traces.svg shows the chains, OUTPUT/samples.jsonl has the sequences.

    Parameters
    ----------
    model
        A run folder of a masked model, or a folder that transformers saved one in.
    output
        The folder to write; one with content is refused unless it is resumed.
    kernel
        metropolis_hastings, or gibbs, which accepts every proposal and samples from no known distribution.
    energy
        Of the distribution that is sampled (Gibbs: that is reported); local unless given.
    sweeps
        How often each position is visited. With --resume it may be more than before.
    chains
        Chains of each example.
    start
        What chains start from: random tokens, the model's best guess of all tokens at once, or the data. R-hat tells
        most of chains that start far apart, at random tokens.
    seed
        Of all random numbers.
    temperature
        Of the proposals; 1 unless given.
    nucleus
        Propose only from the most probable tokens that have so much probability together.
    block
        Positions that are proposed together; 1 unless given.
    shrink
        Sweeps in which the block shrinks to one position.
    order
        In which a sweep visits positions; random unless given.
    target_temperature
        Of the distribution that is sampled; 1 unless given.
    anneal
        What is taken from the target's temperature after each sweep.
    lowest
        What the target's temperature never falls below; 0.05, or the target's if that is less, unless given.
    forced
        Sweeps at the beginning in which every proposal is accepted.
    input_
        A file of lines (- for standard input): sources for a model that reads some (source, tab, target with --start
        data), or sentences whose lengths the outputs have. A split of the run's data unless given.
    split
        Which part of the data.
    examples
        How many examples, the first ones; 1, or all lines of --input, unless given.
    length
        Tokens of an output, where the data shall not say it.
    burn_in
        Sweeps that the report leaves out; a fifth, and all that are forced, unless given.
    keep_every
        Sweeps from one whose sequences are kept to the next.
    save_every
        Sweeps from checkpoint to checkpoint.
    checkpoint
        best, last, or the name of a checkpoint of the run.
    resume
        Continue interrupted chains, or add sweeps to finished ones.
    quiet
        Show no progress.
    json_
        The report as a JSON object.
    """
    from unforced import api

    found = api.sample(
        model,
        output,
        kernel,
        lines=input_,
        split=split,
        examples=examples,
        length=length,
        chains=chains,
        sweeps=sweeps,
        burn_in=burn_in,
        start=start,
        seed=seed,
        keep_every=keep_every,
        save_every=save_every,
        checkpoint=checkpoint,
        resume=resume,
        quiet=quiet,
        energy=energy,
        temperature=temperature,
        nucleus=nucleus,
        block=block,
        shrink=shrink,
        order=order,
        target=target_temperature,
        anneal=anneal,
        lowest=lowest,
        forced=forced,
    )
    if json_:
        report = {**found.report(), "folder": str(found.folder), "picture": str(found.picture)}
        print(json.dumps({key: _finite(value) for key, value in report.items()}))
    else:
        table(("what", "value"), found.rows())
    for warning in found.warnings():
        print(f"unforced: {warning}", file=sys.stderr)


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
def list_(kind: Kind | None = None, /, *, json_: Annotated[bool, Parameter(name="--json")] = False) -> None:
    """List what recipes can name.

    Parameters
    ----------
    kind
        Which part of the catalogue; the names of all parts unless given.
    json_
        All fields with types, defaults and choices, as JSON.
    """
    from unforced.describe import entries

    if kind is None:
        parts = {part: [entry["name"] for entry in entries(part)] for part in get_args(Kind)}
        if json_:
            print(json.dumps(parts, indent=2))
        else:
            table(("part", "names"), [(part, ", ".join(names)) for part, names in parts.items()])
        return
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
        from unforced.plots.discontinuity import plot_discontinuity

        if folder is not None:
            raise InputError("the discontinuity is drawn of no folder")
        path = Path("discontinuity.svg")
        if output is None and path.exists():
            raise InputError(f"{path} is there already: say by --output where the picture may go")
        print(plot_discontinuity(output or path))
        return
    if folder is None:
        raise InputError(
            f"plot {what} needs the folder of the {'chains' if what == 'traces' else 'comparison'}"
        )
    if what == "changes":
        from unforced.plots.changes import plot_changes

        print(plot_changes(folder, output, metric=metric))
        return
    from unforced.plots.traces import plot_folder

    print(plot_folder(folder, output))


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


def _finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


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
