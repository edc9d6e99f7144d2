"""Many chains over many sweeps, kept in a folder, so that a run that was killed goes on and ends with the same bits.

| file | what is in it |
|---|---|
| ``chains.json`` | ``created``, ``chains`` (of each example), ``facts``: what a resumed run must share with the first, and ``burn_in``: sweeps that the report left out |
| ``traces.jsonl`` | a line a sweep: ``sweep``, and lists over chains: ``energy`` afterwards, proposals ``proposed``, ``accepted``, ``moved`` |
| ``samples.jsonl`` | a line for each chain after each sweep that is kept: ``sweep``, ``example``, ``chain``, ``energy``, ``output`` |
| ``checkpoints/step-00000020/`` | the state of all chains after sweep 20 as safetensors, with hashes; the newest two are kept |
| ``finished.json`` | written last: ``{"sweeps"}`` |

The random numbers of a sweep are a function of the seed and the sweep's number, so more sweeps can be asked for later.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unforced.energy.samplers import SweepInfo, sweep
from unforced.errors import InputError
from unforced.ops.random_streams import generator
from unforced.training import checkpoints
from unforced.training.checkpoints import Checkpoint, step_name
from unforced.training.distributed import catch_signals
from unforced.training.run_folder import LineLog, RunFolder, differences, read_json, read_lines, replace_json
from unforced.types import ChainState, Kernel

KEPT = 2  # checkpoints


class Traces(NamedTuple):
    """What each of R chains did in each of N sweeps: [N,R] each."""

    energy: Tensor  # float64, after the sweep
    proposed: Tensor  # long, proposals made
    accepted: Tensor  # long, of which accepted
    moved: Tensor  # long, of which to another sequence

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], chains: int) -> "Traces":
        """From the lines of traces.jsonl, each with lists over ``chains`` chains."""
        columns = []
        for name in cls._fields:
            kind = torch.float64 if name == "energy" else torch.long
            columns.append(torch.tensor([row[name] for row in rows], dtype=kind).reshape(len(rows), chains))
        return cls(*columns)


def _row(number: int, info: SweepInfo) -> dict[str, Any]:
    """A line of traces.jsonl."""
    columns = (info.energy.double(), info.proposed, info.accepted, info.novel)
    return {"sweep": number, **{name: column.tolist() for name, column in zip(Traces._fields, columns)}}


def sweeps_from(
    kernel: Kernel, state: ChainState, seed: int, until: int
) -> Iterator[tuple[int, ChainState, SweepInfo]]:
    """Go on to sweep ``until``; yields each sweep's number 1, 2, …, the state after it and what it did."""
    for number in range(int(state.sweep) + 1, until + 1):
        state, info = sweep(kernel, generator(state.tokens.device, seed, number), state)
        yield number, state, info


def simulate(kernel: Kernel, tokens: Tensor, sweeps: int, seed: int) -> tuple[ChainState, Traces]:
    """Chains that start from tokens [R,T], kept in memory alone: the last state, and the traces."""
    last, rows = kernel.init(tokens), []
    for number, state, info in sweeps_from(kernel, last, seed, sweeps):
        rows.append(_row(number, info))
        last = state
    return last, Traces.of(rows, len(tokens))


class ChainFolder(RunFolder):
    """A folder with chains in it."""

    def exists(self) -> bool:
        return (self.path / "chains.json").is_file()

    def info(self) -> dict[str, Any]:
        if not self.exists():
            raise InputError(f"{self.path}: holds no chains (it has no chains.json)")
        return read_json(self.path / "chains.json")

    def leave_out(self, sweeps: int) -> None:
        """Note how many sweeps of burn-in there are."""
        replace_json(self.path / "chains.json", {**self.info(), "burn_in": sweeps})

    def traces(self) -> Traces:
        """The traces so far."""
        rows = self._lines("traces.jsonl")
        return Traces.of(rows, len(rows[0]["energy"]) if rows else 0)

    def samples(self) -> list[dict[str, Any]]:
        return self._lines("samples.jsonl")

    def _lines(self, name: str) -> list[dict[str, Any]]:
        self.info()
        path = self.path / name
        return read_lines(path) if path.is_file() else []


Show = Callable[[Tensor], Sequence[str]]  # [R,T] tokens -> the text of each row
Watch = Callable[[int, SweepInfo], None]


def run_chains(
    kernel: Kernel,
    tokens: Tensor,
    folder: str | Path,
    *,
    chains: int,
    sweeps: int,
    seed: int,
    facts: Mapping[str, Any],
    show: Show,
    keep_every: int = 1,
    save_every: int = 10,
    resume: bool = False,
    watch: Watch | None = None,
) -> Traces:
    """Run chains that start from tokens [R,T], ``chains`` adjacent rows for each example, and keep them in a folder.

    A folder with content is refused unless ``resume``, which goes on from the newest whole checkpoint, bit for bit as if
    nothing had happened, also behind the end of a run that was finished with fewer sweeps. ``facts`` say what the chains
    are; they must be the same then. ``show`` makes text of tokens for the sweeps that are kept. SIGTERM and SIGINT end in a
    checkpoint and ``SystemExit`` with 143 or 130.
    """
    for name, value in (("sweeps", sweeps), ("keep_every", keep_every), ("save_every", save_every)):
        if value < 1:
            raise InputError(f"{name} must be at least 1, not {value}")
    place = ChainFolder(folder)
    identity = {**facts, "seed": seed, "chains": chains, "rows": len(tokens), "keep_every": keep_every}
    with place.writing(resume=resume), _undone_if_refused(place):
        if place.exists():
            _refuse_changes(place, identity, sweeps)
        else:
            created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
            replace_json(place.path / "chains.json", {"created": created, "chains": chains, "facts": identity})
        done = place.finished()
        if done is None or done["sweeps"] < sweeps:
            _Run(place, kernel, chains, show, keep_every, save_every).until(sweeps, tokens, seed, watch)
            replace_json(place.path / "finished.json", {"sweeps": sweeps})
        return place.traces()


@contextmanager
def _undone_if_refused(place: ChainFolder) -> Iterator[None]:
    """A start that is refused leaves nothing in the way of the next one."""
    fresh = not place.exists()
    try:
        yield
    except InputError:
        if fresh and checkpoints.newest(place) is None:
            place.discard()
        raise


def _refuse_changes(place: ChainFolder, identity: Mapping[str, Any], sweeps: int) -> None:
    changes = differences(place.info().get("facts", {}), identity)
    if changes:
        raise InputError(f"{place.path}: can't be resumed with other settings: {'; '.join(changes)}")
    done, newest = place.finished(), checkpoints.newest(place)
    made = max(0 if done is None else done["sweeps"], 0 if newest is None else checkpoints.read(newest).state["sweep"])
    if made > sweeps:
        raise InputError(f"{place.path}: has {made} sweeps already, more than the {sweeps} wanted")


class _Run:
    """Chains in progress."""

    def __init__(
        self, place: ChainFolder, kernel: Kernel, chains: int, show: Show, keep_every: int, save_every: int
    ) -> None:
        self.place, self.kernel, self.chains, self.show = place, kernel, chains, show
        self.keep_every, self.save_every = keep_every, save_every

    def until(self, sweeps: int, tokens: Tensor, seed: int, watch: Watch | None) -> None:
        newest = checkpoints.newest(self.place)
        if newest is None:
            state, sizes = self.kernel.init(tokens), {}
        else:
            saved = checkpoints.read(newest)
            if set(saved.model) != set(ChainState._fields):
                raise InputError(f"{self.place.path}: was saved by another version of unforced, and can't go on")
            state = ChainState(**{name: leaf.to(tokens.device) for name, leaf in saved.model.items()})
            sizes = saved.state["logs"]
        with self.logs(sizes), catch_signals() as signals:
            for number, now, info in sweeps_from(self.kernel, state, seed, sweeps):
                self.traces.append(_row(number, info))
                if number % self.keep_every == 0:
                    self.keep(number, now)
                if watch is not None:
                    watch(number, info)
                stopped = signals.received is not None
                if number % self.save_every == 0 or number == sweeps or stopped:
                    self.save(number, now)
                if stopped and number < sweeps:
                    raise SystemExit(signals.exit_code)

    @contextmanager
    def logs(self, sizes: Mapping[str, int]) -> Iterator[None]:
        """Both logs, cut back to what the checkpoint has seen."""
        path = self.place.path
        with (
            LineLog(path / "traces.jsonl", sizes.get("traces", 0)) as self.traces,
            LineLog(path / "samples.jsonl", sizes.get("samples", 0)) as self.samples,
        ):
            yield

    def keep(self, number: int, state: ChainState) -> None:
        energies = state.energy.tolist()
        for row, text in enumerate(self.show(state.tokens)):
            example, chain = divmod(row, self.chains)
            about = {"sweep": number, "example": example, "chain": chain, "energy": energies[row]}
            self.samples.append({**about, "output": text})

    def save(self, number: int, state: ChainState) -> None:
        sizes = {"traces": self.traces.sync(), "samples": self.samples.sync()}
        checkpoint = Checkpoint(state._asdict(), {}, {}, {"sweep": number, "logs": sizes})
        checkpoints.publish(self.place.path / "checkpoints", step_name(number), checkpoint)
        checkpoints.rotate(self.place, KEPT)
