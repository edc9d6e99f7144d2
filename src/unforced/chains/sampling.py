"""Score sentences by a masked model, and run chains from its energies: what the commands ``score`` and ``sample`` do."""

import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from unforced import registry
from unforced.chains import results
from unforced.chains.chains import ChainFolder, Traces, run_chains
from unforced.chains.readers import Reader, Sentence
from unforced.chains.results import Sampled
from unforced.cli.decode_stream import text_of
from unforced.energy import energies
from unforced.energy.diagnostics import diagnose
from unforced.energy.energies import Kind, Masking, token_scores
from unforced.energy.mask_predict import random_start, warm_start
from unforced.energy.samplers import SweepInfo
from unforced.errors import InputError
from unforced.ops.random_streams import generator
from unforced.options import Count, Natural, Options
from unforced.protocols import Sampler, Split
from unforced.reports.traces import PICTURE, plot_traces
from unforced.training.progress import Display
from unforced.types import Batch

Start = Literal["random", "greedy", "data"]


class Score(NamedTuple):
    """What a masked model makes of a sentence."""

    text: str
    energy_raw: float
    energy_local: float
    pseudo_log_likelihood: float
    tokens: list[tuple[str, float]]  # each token and its logarithmic probability

    def energy(self, kind: Kind) -> float:
        return self.energy_raw if kind == "raw" else self.energy_local


def score_lines(reader: Reader, lines: Iterable[bytes], masking: Masking = "single", size: int = 32) -> Iterator[Score]:
    """The scores of UTF-8 lines of text, in their order, ``size`` lines together.

    A line that can't be read ends the stream with an ``InputError`` that has its number, after the scores of those before it.
    """
    if size < 1:
        raise InputError(f"batch must be at least 1, not {size}")
    waiting: list[Sentence] = []
    for number, line in enumerate(lines, start=1):
        try:
            waiting.append(reader.read(text_of(line, number)))
        except InputError as error:
            yield from score_sentences(reader, waiting, masking)
            raise InputError(f"standard input:{number}: {error}") from None
        if len(waiting) == size:
            yield from score_sentences(reader, waiting, masking)
            waiting = []
    yield from score_sentences(reader, waiting, masking)


def score_sentences(reader: Reader, sentences: Sequence[Sentence], masking: Masking = "single") -> list[Score]:
    """The scores of sentences."""
    if not sentences:
        return []
    batch = reader.collate(sentences)
    words = None if masking == "single" else reader.word_numbers(sentences, batch)
    found = token_scores(reader.model, batch, words, masking, reader.over)
    raw, local = (found.energy(kind).tolist() for kind in get_args(Kind))
    total, free = found.pseudo_log_likelihood.tolist(), energies.variables(batch)
    scores = []
    for row, sentence in enumerate(sentences):
        here = free[row]
        names = reader.token_names(batch.gold[row][here].tolist())
        tokens = list(zip(names, found.log_probs[row][here].tolist()))
        scores.append(Score(sentence.text, raw[row], local[row], total[row], tokens))
    return scores


@dataclass(frozen=True, kw_only=True)
class Chains(Options):
    """Which chains to run: how many, from where, and for how long."""

    chains: Count = 4  # of each example
    sweeps: Count = 100
    burn_in: Natural | None = None  # sweeps that the report leaves out; a fifth and all forced ones unless given
    start: Start = "greedy"
    seed: Natural = 1
    keep_every: Count = 1  # sweeps from one that is kept to the next
    save_every: Count = 10  # sweeps from checkpoint to checkpoint
    patience: Count = 5  # sweeps without a change that make a chain stuck

    def check(self) -> None:
        if self.burn_in is not None and self.burn_in >= self.sweeps:
            raise InputError(f"burn_in must be below sweeps, {self.sweeps}, got {self.burn_in}")

    def left_out(self, forced: int = 0) -> int:
        """Sweeps that the report leaves out, where so many were forced."""
        if self.burn_in is not None:
            return self.burn_in
        return min(max(self.sweeps // 5, forced), self.sweeps - 1)


def kernel_of(name: str, **options: Any) -> Sampler:
    """A sampler by its name, with those of the options that aren't None.

    >>> kernel_of("gibbs", block=2, target=None)
    Gibbs(block=2, ...)
    """
    kind = registry.resolve("kernels", name)
    known = {field.name for field in fields(kind)}
    given = {key: value for key, value in options.items() if value is not None}
    foreign = [key for key in given if key not in known]
    if foreign:
        raise InputError(f"{name} has no {foreign[0]}: it accepts every proposal")
    made: Sampler = kind(**given)
    return made


def sample(
    reader: Reader,
    kernel: Any,
    output: str | Path,
    plan: Chains,
    *,
    lines: Iterable[bytes] | None = None,
    split: Split = "test",
    examples: int | None = None,
    length: int | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Sampled:
    """Run chains and keep them in the folder ``output``; see ``unforced.chains.chains`` for its files.

    Outputs have the lengths of the sentences in ``lines`` (or else of the first ``examples`` of a split), or ``length`` tokens. A
    model that reads sources takes them from there too; its outputs then have ``length`` tokens or as many as it guesses, or
    with ``start`` "data" those of the targets behind the sources.
    """
    batch = starting_batch(reader, plan.start, lines, split, examples, length)
    tokens = starting_tokens(reader, batch, plan)
    free = energies.variables(batch).repeat_interleave(plan.chains, dim=0).cpu()

    def show(tokens: Tensor) -> list[str]:
        return [reader.show(row[here].tolist()) for row, here in zip(tokens.cpu(), free)]

    with Display(quiet) as display:
        bar = display.bar("sampling", total=plan.sweeps)

        def watch(number: int, info: SweepInfo) -> None:
            tries = max(1, int(info.proposed.sum()))
            energy, accepted = float(info.energy.mean()), int(info.accepted.sum()) / tries
            note = f"energy {energy:.2f} · accepted {accepted:.2f}"
            bar.move(number, note)
            if number % plan.save_every == 0 or number == plan.sweeps:
                display.log(f"sweep {number} of {plan.sweeps}: {note}")

        facts = {
            **kernel_facts(kernel),
            "weights": weights_digest(reader.model),
            "batch": tensor_digest([leaf for leaf in (batch.gold, batch.mask, batch.source) if leaf is not None]),
            "start": plan.start,
            "starting tokens": tensor_digest([tokens]),
        }
        try:
            traces = run_chains(
                kernel.kernel(reader.model, batch),
                tokens,
                output,
                chains=plan.chains,
                sweeps=plan.sweeps,
                seed=plan.seed,
                facts=facts,
                show=show,
                keep_every=plan.keep_every,
                save_every=plan.save_every,
                resume=resume,
                watch=watch,
            )
        except SystemExit:
            display.say("interrupted between two sweeps, and saved")
            raise
    answers = reader.answers(split, len(batch)) if lines is None else None
    return judged(Path(output), traces, plan, kernel, answers, reader.metrics())


def kernel_facts(kernel: Any) -> dict[str, Any]:
    """What a sampler is, but for the size of its micro-batches, which changes no result."""
    if not is_dataclass(kernel):
        return {"kernel": repr(kernel)}
    options = {field.name: getattr(kernel, field.name) for field in fields(kernel) if field.name != "rows"}
    return {"kernel": type(kernel).__name__, **options}


def judged(
    folder: Path,
    traces: Traces,
    plan: Chains,
    kernel: Any = None,
    answers: Sequence[Sequence[Any]] | None = None,
    metrics: Sequence[Any] = (),
) -> Sampled:
    """Diagnose chains, grade their outputs where there are answers, and draw them."""
    forced = int(getattr(kernel, "forced", 0))
    left_out, place = plan.left_out(forced), ChainFolder(folder)
    found = diagnose(*traces, chains=plan.chains, burn_in=left_out, patience=plan.patience)
    scores = {} if answers is None else results.graded(place.samples(), answers, metrics)
    if scores:
        results.write(folder, scores)
    place.leave_out(left_out)
    picture = plot_traces(traces, plan.chains, folder / PICTURE, burn_in=left_out, scores=scores)
    annealed = getattr(kernel, "anneal", 0) > 0
    return Sampled(folder, traces, found, picture, scores, left_out, forced, annealed)


@contextmanager
def lines_of(source: str | Path | Iterable[str] | None) -> Iterator[Iterable[bytes] | None]:
    """Lines as bytes: of a file, of standard input if that is ``-``, or of given texts."""
    if source is None:
        yield None
    elif str(source) == "-":
        yield sys.stdin.buffer
    elif isinstance(source, str | Path):
        try:
            file = open(source, "rb")  # noqa: SIM115 (closed below)
        except OSError as error:
            raise InputError(f"{source}: can't be read: {error.strerror or error}") from None
        with file:
            yield file
    else:
        yield (text.encode() for text in source)


def starting_batch(
    reader: Reader, start: Start, lines: Iterable[bytes] | None, split: Split, examples: int | None, length: int | None
) -> Batch:
    """The examples whose outputs are sampled, with room for these."""
    if length is not None and length < 1:
        raise InputError(f"length must be at least 1, not {length}")
    if examples is not None and examples < 1:
        raise InputError(f"examples must be at least 1, not {examples}")
    if length is not None and start == "data":
        raise InputError("start data takes the lengths of the data: leave length out, or start elsewhere")
    if lines is None and not reader.takes_source and length is not None:
        if examples is not None:
            raise InputError(
                "outputs of one length without sources have nothing that tells examples apart: give chains"
            )
        return reader.blank(length)
    if not reader.takes_source and length is not None:
        raise InputError("lengths are those of the sentences: leave length out")
    if lines is None:
        batch = reader.collate(reader.examples(split, examples or 1))
        return batch if start == "data" or not reader.takes_source else reader.fit_lengths(batch, length)
    if reader.takes_source and start != "data":
        return reader.fit_lengths(_read(lines, examples, lambda text: text, reader.sources), length)
    return _read(lines, examples, reader.read, reader.collate)


def _read(lines: Iterable[bytes], most: int | None, read: Any, make: Any) -> Batch:
    found = []
    for number, line in enumerate(lines, start=1):
        if most is not None and number > most:
            break
        try:
            found.append(read(text_of(line, number)))
        except InputError as error:
            raise InputError(f"line {number}: {error}") from None
    if not found:
        raise InputError("there is no line to read")
    batch: Batch = make(found)
    return batch


def starting_tokens(reader: Reader, batch: Batch, plan: Chains) -> Tensor:
    """The tokens that chains start from: [B·chains,T]."""
    if plan.start == "data":
        return batch.gold.repeat_interleave(plan.chains, dim=0)
    if plan.start == "greedy":
        return warm_start(reader.model, batch, plan.chains)
    return random_start(batch, reader.size, generator(batch.gold.device, plan.seed, 0), plan.chains)


def weights_digest(model: Any) -> str:
    """A short hash of a model's weights."""
    return tensor_digest([tensor for _, tensor in sorted(model.state_dict().items())])


def tensor_digest(tensors: Sequence[Tensor]) -> str:
    """A short hash of tensors, of their shapes and kinds too."""
    total = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        total.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()
