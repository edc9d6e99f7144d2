"""Commands for masked models and their energies: score sentences, run Markov chains."""

import json
import math
import shlex
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict

from cyclopts import Parameter

from unforced.chains.options import ChainOptions
from unforced.errors import InputError, printable, write_error
from unforced.reports.tables import print_table

if TYPE_CHECKING:
    from unforced.chains.scoring import Score, Skipped

CHAINS = ChainOptions()


def score(
    model: Path,
    /,
    *,
    energy: Literal["raw", "local"] | None = None,
    whole_words: bool = False,
    skip: bool = False,
    json_: Annotated[bool, Parameter(name="--json")] = False,
    checkpoint: str = "best",
    batch: int = 32,
    quiet: bool = False,
) -> None:
    """Score sentences from standard input, one per line, with a masked model.

    Write a line for each sentence with tabs between the columns: raw energy, local energy, pseudo-log-likelihood,
    number of tokens, sentence.

    Parameters
    ----------
    model
        A run folder of a masked model, or a folder saved by transformers. For a model with sources, a line has the
        source, a tab and the sentence.
    energy
        Write only this energy.
    whole_words
        For the pseudo-log-likelihood, mask a token with all later tokens of its word (PLL-word-l2r).
    skip
        Write a line with empty columns for a line that cannot be scored, instead of stopping there.
    json_
        Write JSON objects, with the log-probability of every token.
    checkpoint
        best, last, or the name of a checkpoint of the run.
    batch
        Lines scored together.
    quiet
        Show no progress and no summary.
    """
    from unforced.chains.readers import open_model
    from unforced.chains.scoring import Skipped, score_lines

    kinds: tuple[Literal["raw", "local"], ...] = ("raw", "local") if energy is None else (energy,)
    columns = [*(f"energy_{kind}" for kind in kinds), "pseudo_log_likelihood"]
    reader, source = open_model(model, checkpoint), sys.stdin.buffer
    lines = source.readlines() if source.seekable() else source  # a pipe is scored line by line
    scores: Iterable[Score | Skipped] = score_lines(reader, lines, whole_words=whole_words, skip=skip, size=batch)
    if not quiet and not sys.stdout.isatty():
        scores = _with_progress(scores, len(lines) if isinstance(lines, list) else None)
    scored, errors = 0, []
    for found in scores:
        if isinstance(found, Skipped):
            errors.append(found.error)
            data: dict[str, Any] = {"error": found.error}
            cells = [""] * len(columns) + ["0"]
        else:
            scored += 1
            values = dict(zip(columns, [*map(found.energy, kinds), found.pseudo_log_likelihood]))
            data = {**values, "tokens": found.tokens}
            cells = [*(f"{value:.4f}" for value in values.values()), str(len(found.tokens))]
        text = json.dumps({"sentence": found.text, **data}, ensure_ascii=False)
        print(text if json_ else "\t".join([*cells, printable(found.text)]), flush=True)
    if errors and not scored:
        raise InputError(f"none of the lines could be scored; {errors[0]}")
    if not quiet:
        command = f"unforced sample {shlex.quote(str(model))} -o chains{' --length 8' if reader.task is None else ''}"
        write_error(f"lines scored: {scored}; lower energies are more probable. To sample: {command}\n")
    if errors:
        write_error(f"unforced: skipped {len(errors)} of {scored + len(errors)} lines; {errors[0]}\n")


def _with_progress(scores: "Iterable[Score | Skipped]", total: int | None) -> "Iterator[Score | Skipped]":
    """Yield the scores; every ten seconds print how many there are, and the time left if the total is known."""
    from unforced.training.progress import EVERY, duration

    began = reported = time.monotonic()
    for done, score in enumerate(scores, start=1):
        yield score
        now = time.monotonic()
        if now - reported > EVERY:
            reported = now
            left = duration((now - began) / done * ((total or done) - done))
            write_error(f"scored {done}{'' if total is None else f' of {total} lines, {left} left'}\n")


class KernelOptions(TypedDict, total=False):
    """Options of the sampler that were given; see `unforced.energy.MetropolisHastings` and `Gibbs`."""

    energy: Literal["raw", "local"]
    temperature: float
    nucleus: float
    block: int
    shrink: int
    order: Literal["random", "left_to_right"]
    target: Annotated[float, Parameter(name="--target-temperature")]
    anneal: float
    lowest: float
    forced: int


def sample(
    model: Path,
    /,
    *,
    output: Annotated[Path, Parameter(name=("--output", "-o"))],
    kernel: Literal["metropolis_hastings", "gibbs"] = "metropolis_hastings",
    options: Annotated[KernelOptions | None, Parameter(name="*")] = None,
    chains: Annotated[ChainOptions, Parameter(name="*")] = CHAINS,
    input_: Annotated[Path | None, Parameter(name="--input", allow_leading_hyphen=True)] = None,
    checkpoint: str = "best",
    resume: bool = False,
    quiet: bool = False,
    json_: Annotated[bool, Parameter(name="--json")] = False,
) -> None:
    """Sample sequences from a masked model by Markov chains, in a folder.

    Print acceptance rates, energies, R-hat, the effective sample size of the energy, and stuck chains.
    OUTPUT/traces.svg plots the chains, OUTPUT/samples.jsonl has the sequences.

    Parameters
    ----------
    model
        A run folder of a masked model, or a folder saved by transformers.
    output
        The folder to write; it must be new or empty, except with --resume.
    kernel
        metropolis_hastings, or gibbs, which accepts every proposal and samples from no known distribution.
    options.energy
        Energy of the sampled distribution (with gibbs: to report). Default: local.
    options.temperature
        Temperature of the proposals. Default: 1.
    options.nucleus
        Propose only the most probable tokens with this total probability.
    options.block
        Positions that are proposed together. Default: 1.
    options.shrink
        Sweeps in which the block shrinks to one position.
    options.order
        Order in which a sweep visits positions. Default: random.
    options.target
        Temperature of the sampled distribution. Default: 1.
    options.anneal
        Decrease of this temperature after each sweep.
    options.lowest
        Minimum of this temperature. Default: 0.05, or the target temperature if that is smaller.
    options.forced
        First sweeps in which every proposal is accepted.
    input_
        File of lines, - for standard input: sources for a model with sources (source, tab, target with --start data),
        or sentences that set the lengths. Default: a split of the run's data.
    checkpoint
        best, last, or the name of a checkpoint of the run.
    resume
        Continue interrupted chains, or add sweeps to finished ones.
    quiet
        Show no progress.
    json_
        Print the report as a JSON object.
    """
    from unforced import api

    summary = api.sample(
        model,
        output,
        kernel,
        lines=input_,
        checkpoint=checkpoint,
        resume=resume,
        quiet=quiet,
        **asdict(chains),
        **(options or {}),
    )
    if json_:
        report = {**summary.report(), "folder": str(summary.folder), "picture": str(summary.picture)}
        print(json.dumps({key: _finite(value) for key, value in report.items()}))
    else:
        print_table(("what", "value"), summary.rows())
    for warning in summary.warnings():
        write_error(f"unforced: {warning}\n")
    if not quiet:
        write_error(
            f"sequences of {chains.sweeps} sweeps are in {output / 'samples.jsonl'}; "
            f"to add sweeps, repeat the command with --resume --sweeps {2 * chains.sweeps}\n"
        )


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
