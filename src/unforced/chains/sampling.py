"""Run Markov chains of a masked model in a folder: what ``unforced sample`` does.

Interrupted runs continue with ``resume`` and end with the same bits. The random numbers of a sweep depend on the seed
and on the number of the sweep, so that sweeps can be added to a finished run. `results` describes the files of the
folder.
"""

import hashlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from unforced.chains.options import ChainOptions
from unforced.chains.readers import Reader
from unforced.chains.results import ChainFolder, ChainSummary, summarize_chains, trace_row
from unforced.energy import energies
from unforced.energy.diagnostics import Traces
from unforced.energy.mask_predict import random_start, warm_start
from unforced.energy.samplers import SweepInfo, sweep
from unforced.errors import InputError
from unforced.ops.random_streams import generator
from unforced.protocols import Sampler
from unforced.tasks.files import decode_line
from unforced.training import checkpoints
from unforced.training.checkpoints import Checkpoint, step_name
from unforced.training.distributed import catch_signals
from unforced.training.progress import Display, duration
from unforced.training.run_folder import LineLog, differences, replace_json
from unforced.types import Batch, ChainState, Kernel

CHECKPOINTS = 2  # the newest ones that are kept
Show = Callable[[Tensor], Sequence[str]]  # tokens [R,T] -> the text of each row
Watch = Callable[[int, SweepInfo], None]
T = TypeVar("T")


def sample(
    reader: Reader,
    sampler: Sampler,
    output: str | Path,
    options: ChainOptions,
    *,
    lines: Iterable[bytes] | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> ChainSummary:
    """Run chains in the folder ``output`` and summarise them.

    Outputs have the lengths of the sentences in ``lines``, or else of the first ``options.examples`` of a split, or
    ``options.length`` tokens. A model with sources reads them from the same place. Its outputs have that length or the
    most probable one, or with ``start="data"`` the lengths of the targets.
    """
    batch = starting_batch(reader, options, lines)
    if options.banned:
        batch = ban_tokens(batch, reader.find_tokens(options.banned), options.start)
    if not bool(energies.variables(batch).any()):
        raise InputError("there is nothing to sample: no example has a token that may vary")
    if not bool(energies.allowed(batch.symbols, reader.size).any()):
        raise InputError("there is nothing to sample: all tokens are banned")
    tokens = starting_tokens(reader, batch, options)
    free = energies.variables(batch).repeat_interleave(options.chains, dim=0).cpu()
    facts = {
        "kernel": type(sampler).__name__,
        **{name: value for name, value in asdict(sampler).items() if name != "rows"},  # type: ignore[call-overload]
        "weights": hash_tensors([tensor for _, tensor in sorted(reader.model.state_dict().items())]),
        "batch": hash_tensors([leaf for leaf in (batch.gold, batch.mask, batch.source) if leaf is not None]),
        "start": options.start,
        **({"banned": list(options.banned)} if options.banned else {}),
        "starting tokens": hash_tensors([tokens]),
    }

    def show(tokens: Tensor) -> list[str]:
        return [reader.show(row[here].tolist()) for row, here in zip(tokens.cpu(), free)]

    with Display(quiet) as display:
        bar, began, swept = display.bar("sampling", total=options.sweeps), time.monotonic(), 0
        display.say(
            f"sampling with {type(sampler).__name__}: {options.sweeps} sweeps, examples: {len(batch)}, "
            f"chains of each: {options.chains}, tokens: {int(free.sum())}, device: {batch.gold.device}"
        )

        def watch(number: int, info: SweepInfo) -> None:
            nonlocal swept
            swept += 1
            acceptance = int(info.accepted.sum()) / max(1, int(info.proposed.sum()))
            note = f"energy {float(info.energy.mean()):.2f} · accepted {acceptance:.2f}"
            bar.move(number, note)
            if display.line_due() or number == options.sweeps:
                left = duration((time.monotonic() - began) / swept * (options.sweeps - number))
                display.log(f"sweep {number} of {options.sweeps}: {note} · {left} left")

        kernel = sampler.kernel(reader.model, batch)
        try:
            traces = run_chains(kernel, tokens, output, options, facts=facts, show=show, resume=resume, watch=watch)
        except SystemExit:
            display.say("interrupted; the chains are saved: repeat the command with --resume to continue")
            raise
    answers = reader.answers(options.split, len(batch)) if lines is None else None
    return summarize_chains(Path(output), traces, options, sampler, answers, reader.metrics())


# ---- where chains start ----


def read_source(source: str | Path | Iterable[str] | None) -> list[bytes] | None:
    """Return lines as bytes: of a file, of standard input ("-"), or of given texts."""
    if source is None:
        return None
    if str(source) == "-":
        return sys.stdin.buffer.readlines()
    if not isinstance(source, str | Path):
        return [text.encode() for text in source]
    try:
        with open(source, "rb") as file:
            return file.readlines()
    except OSError as error:
        raise InputError(f"{source}: cannot be read: {error.strerror or error}") from None


def starting_batch(reader: Reader, options: ChainOptions, lines: Iterable[bytes] | None) -> Batch:
    """Return the examples to sample outputs for, with room for the outputs."""
    examples, length = options.examples, options.length
    choose_length = reader.takes_source and options.start != "data"
    if length is not None and not reader.takes_source:
        if lines is not None:
            raise InputError("the sentences set the lengths: remove length")
        if examples is not None:
            raise InputError(
                "without sources, outputs of one length have no separate examples: use more chains instead"
            )
        return reader.placeholder(length)
    if lines is None:
        batch = reader.collate(reader.examples(options.split, examples or 1))
        return reader.fit_lengths(batch, length) if choose_length else batch
    if choose_length:
        return reader.fit_lengths(reader.sources(_parse(lines, examples, str)), length)
    return reader.collate(_parse(lines, examples, reader.read))


def _parse(lines: Iterable[bytes], most: int | None, parse: Callable[[str], T]) -> list[T]:
    found = []
    for number, line in enumerate(lines, start=1):
        if most is not None and number > most:
            break
        try:
            found.append(parse(decode_line(line, number)))
        except InputError as error:
            raise InputError(f"line {number}: {error}") from None
    if not found:
        raise InputError("the input has no lines")
    return found


def ban_tokens(batch: Batch, ids: Sequence[int], start: str) -> Batch:
    """Return the batch with more banned ids; placeholders take the place of those in the targets."""
    symbols = batch.symbols._replace(banned=tuple(sorted({*batch.symbols.banned, *ids})))
    found = energies.variables(batch) & torch.isin(batch.gold, torch.tensor(ids, device=batch.gold.device))
    if start == "data" and bool(found.any()):
        raise InputError("chains cannot start from the data, which has a banned token: choose another start")
    gold = batch.gold.masked_fill(found, energies.first_allowed(symbols))
    return replace(batch, gold=gold, symbols=symbols)


def starting_tokens(reader: Reader, batch: Batch, options: ChainOptions) -> Tensor:
    """Return the tokens that chains start from: [B·chains,T]."""
    if options.start == "data":
        return batch.gold.repeat_interleave(options.chains, dim=0)
    if options.start == "greedy":
        return warm_start(reader.model, batch, options.chains)
    return random_start(batch, reader.size, generator(batch.gold.device, options.seed, 0), options.chains)


def hash_tensors(tensors: Sequence[Tensor]) -> str:
    """Return a short hash of the types, shapes and values of tensors."""
    total = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        total.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return total.hexdigest()


# ---- running chains ----


def sweeps_from(
    kernel: Kernel, state: ChainState, seed: int, until: int
) -> Iterator[tuple[int, ChainState, SweepInfo]]:
    """Continue to sweep ``until``; yield the number of each sweep 1, 2, …, the state after it, and its counts."""
    for number in range(int(state.sweep) + 1, until + 1):
        state, info = sweep(kernel, generator(state.tokens.device, seed, number), state)
        yield number, state, info


def run_chains(
    kernel: Kernel,
    tokens: Tensor,
    folder: str | Path,
    options: ChainOptions,
    *,
    facts: Mapping[str, Any],
    show: Show,
    resume: bool = False,
    watch: Watch | None = None,
) -> Traces:
    """Run chains that start from tokens [B·chains,T] in a folder and return their traces.

    The folder must be new or empty unless ``resume`` is set, which continues from the newest valid checkpoint, bit
    for bit. ``facts`` describe the chains and must not change then. ``show`` converts the tokens of kept sweeps to
    text. SIGTERM and SIGINT save a checkpoint and raise ``SystemExit`` with code 143 or 130.
    """
    place = ChainFolder(folder)
    keep_every, chains = options.keep_every, options.chains
    identity = {**facts, "seed": options.seed, "chains": chains, "rows": len(tokens), "keep_every": keep_every}
    with place.writing(resume=resume):
        if place.exists():
            _check_unchanged(place, identity, options.sweeps)
        else:
            created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            replace_json(place.path / "chains.json", {"created": created, "chains": chains, "facts": identity})
        done = place.finished()
        if done is None or done["sweeps"] < options.sweeps:
            _run(place, kernel, tokens, options, show, watch)
            replace_json(place.path / "finished.json", {"sweeps": options.sweeps})
        return place.traces()


def _check_unchanged(place: ChainFolder, identity: Mapping[str, Any], sweeps: int) -> None:
    changes = differences(place.info().get("facts", {}), identity)
    if changes:
        raise InputError(f"{place.path}: cannot be resumed with other settings: {'; '.join(changes)}")
    done, newest = place.finished(), checkpoints.newest(place)
    finished = max(
        0 if done is None else done["sweeps"], 0 if newest is None else checkpoints.read(newest).state["sweep"]
    )
    if finished > sweeps:
        raise InputError(f"{place.path}: already has {finished} sweeps, more than the requested {sweeps}")


def _run(
    place: ChainFolder, kernel: Kernel, tokens: Tensor, options: ChainOptions, show: Show, watch: Watch | None
) -> None:
    newest = checkpoints.newest(place)
    if newest is None:
        state, sizes = kernel.init(tokens), {}
    else:
        saved = checkpoints.read(newest)
        if set(saved.model) != set(ChainState._fields):
            raise InputError(f"{place.path}: was saved by another version of unforced and cannot be resumed")
        state = ChainState(**{name: leaf.to(tokens.device) for name, leaf in saved.model.items()})
        sizes = saved.state["logs"]
    with (
        LineLog(place.path / "traces.jsonl", sizes.get("traces", 0)) as traces,  # cut back to the checkpoint
        LineLog(place.path / "samples.jsonl", sizes.get("samples", 0)) as samples,
        catch_signals() as signals,
    ):
        for number, now, info in sweeps_from(kernel, state, options.seed, options.sweeps):
            traces.append(trace_row(number, info))
            if number % options.keep_every == 0:
                _keep(samples, number, now, options.chains, show)
            if watch is not None:
                watch(number, info)
            stopped = signals.received is not None
            if number % options.save_every == 0 or number == options.sweeps or stopped:
                logs = {"traces": traces.sync(), "samples": samples.sync()}
                checkpoint = Checkpoint(now._asdict(), {}, {}, {"sweep": number, "logs": logs})
                checkpoints.publish(place.path / "checkpoints", step_name(number), checkpoint)
                checkpoints.rotate(place, CHECKPOINTS)
            if stopped and number < options.sweeps:
                raise SystemExit(signals.exit_code)


def _keep(samples: LineLog, number: int, state: ChainState, chains: int, show: Show) -> None:
    energy = state.energy.tolist()
    for row, text in enumerate(show(state.tokens)):
        example, chain = divmod(row, chains)
        samples.append({"sweep": number, "example": example, "chain": chain, "energy": energy[row], "output": text})
