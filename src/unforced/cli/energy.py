"""Commands for masked models read as energies: score sentences, run chains."""

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from unforced.reports.tables import print_table


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
    from unforced.chains.readers import open_model
    from unforced.chains.sampling import score_lines

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
        print_table(("what", "value"), found.rows())
    for warning in found.warnings():
        print(f"unforced: {warning}", file=sys.stderr)


def _finite(value: Any) -> Any:
    """JSON knows no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
