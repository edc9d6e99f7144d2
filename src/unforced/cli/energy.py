"""Commands for masked models and their energies: score sentences, run Markov chains."""

import json
import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from cyclopts import Parameter

from unforced.chains.options import ChainOptions
from unforced.reports.tables import print_table

CHAINS = ChainOptions()


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
    json_
        Write JSON objects, with the log-probability of every token.
    checkpoint
        best, last, or the name of a checkpoint of the run.
    batch
        Lines scored together.
    """
    from unforced.chains.readers import open_model
    from unforced.chains.scoring import score_lines

    kinds: tuple[Literal["raw", "local"], ...] = ("raw", "local") if energy is None else (energy,)
    reader = open_model(model, checkpoint)
    for found in score_lines(reader, sys.stdin.buffer, whole_words=whole_words, size=batch):
        values = {f"energy_{kind}": found.energy(kind) for kind in kinds}
        values["pseudo_log_likelihood"] = found.pseudo_log_likelihood
        if json_:
            data = {"sentence": found.text, **values, "tokens": found.tokens}
            print(json.dumps(data, ensure_ascii=False), flush=True)
        else:
            numbers = (f"{value:.4f}" for value in values.values())
            print(*numbers, len(found.tokens), found.text, sep="\t", flush=True)


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
        print(f"unforced: {warning}", file=sys.stderr)


def _finite(value: Any) -> Any:
    """Replace NaN and infinity, which JSON does not have."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
