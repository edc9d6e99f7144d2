"""Chains in a folder: what is written, and that an interrupted run ends with the same bits as an uninterrupted one."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from masked_folders import random_weights
from safetensors.torch import load_file
from torch import Tensor

from unforced.chains.options import ChainOptions
from unforced.chains.results import ChainFolder
from unforced.chains.sampling import run_chains, sweeps_from
from unforced.energy.diagnostics import Traces
from unforced.energy.gibbs import Gibbs
from unforced.energy.mask_predict import random_start
from unforced.energy.metropolis_hastings import MetropolisHastings
from unforced.errors import InputError
from unforced.models.field import Field
from unforced.types import Batch, Kernel, Sizes, Symbols

SWEEPS = 9
SAMPLERS = {
    "mh": MetropolisHastings(energy="raw"),
    "mh-local-annealed": MetropolisHastings(energy="local", anneal=0.05, forced=2, temperature=1.3),
    "mh-blocks": MetropolisHastings(energy="local", block=3, shrink=4, order="left_to_right", nucleus=0.9),
    "gibbs": Gibbs(block=2),
}


def kernel_and_tokens(sampler: Any) -> tuple[Kernel, Tensor]:
    """Three chains each of strings of two and four letters."""
    gold = torch.tensor([[0, 0, 4, 4], [0, 0, 0, 0]])
    symbols = Symbols(pad=4, bos=3, eos=None, banned=(3, 4))
    batch = Batch.of_gold(gold, gold == 0, symbols, ids=torch.arange(2))
    model = random_weights(Field(hidden=5, embedding=4).build(Sizes(target=5)), 1.0)
    return sampler.kernel(model, batch), random_start(batch, 3, torch.Generator().manual_seed(4), 3)


def run(sampler: Any, folder: Path, kernel: Kernel | None = None, *, facts: Any = None, watch: Any = None,
        resume: bool = False, **options: Any) -> Traces:  # fmt: skip
    usual, tokens = kernel_and_tokens(sampler)
    chosen = ChainOptions(**{"chains": 3, "sweeps": SWEEPS, "seed": 7, "keep_every": 2, "save_every": 2, **options})

    def show(tokens: Tensor) -> list[str]:
        return [" ".join(map(str, row)) for row in tokens.tolist()]

    facts = facts or {"kernel": repr(sampler)}
    return run_chains(kernel or usual, tokens, folder, chosen, facts=facts, show=show, resume=resume, watch=watch)


def content(folder: Path) -> dict[str, Any]:
    """Return the content of a folder of chains without its date."""
    (last,) = [path for path in (folder / "checkpoints").iterdir() if path.name.endswith(f"{SWEEPS:08d}")]
    state = {name: tensor.tolist() for name, tensor in load_file(last / "model.safetensors").items()}
    return {
        "traces": (folder / "traces.jsonl").read_bytes(),
        "samples": (folder / "samples.jsonl").read_bytes(),
        "state": state,
        "finished": (folder / "finished.json").read_text(),
        "names": sorted(str(path.relative_to(folder)) for path in folder.rglob("*")),
    }


class Killed(BaseException):
    """Ends a run at any place, without cleaning up."""


@pytest.mark.parametrize("sampler", [SAMPLERS["mh-blocks"], SAMPLERS["gibbs"]], ids=["mh", "gibbs"])
def test_resumed_runs_have_the_same_bits(sampler: Any, tmp_path: Path) -> None:
    expected = run(sampler, tmp_path / "uninterrupted")
    kernel, _ = kernel_and_tokens(sampler)
    steps = 0

    def step(rng: torch.Generator, state: Any) -> Any:
        nonlocal steps
        steps += 1
        if steps in (3, 11, 14):
            raise Killed
        return kernel.step(rng, state)

    kills = 0
    while True:
        try:
            found = run(sampler, tmp_path / "broken", Kernel(kernel.init, step), resume=kills > 0)
            break
        except Killed:
            kills += 1
    assert kills == 3
    for a, b in zip(found, expected):
        assert torch.equal(a, b)
    assert content(tmp_path / "broken") == content(tmp_path / "uninterrupted")


def test_resume_from_the_checkpoint_before_a_damaged_one(tmp_path: Path) -> None:
    sampler = SAMPLERS["mh-blocks"]
    run(sampler, tmp_path / "uninterrupted")
    run(sampler, tmp_path / "broken", sweeps=6)
    newest = tmp_path / "broken" / "checkpoints" / "step-00000006" / "model.safetensors"
    data = bytearray(newest.read_bytes())
    data[-3] ^= 1
    newest.write_bytes(data)
    with pytest.warns(UserWarning, match="step-00000006.*is damaged.*older checkpoint is used"):
        run(sampler, tmp_path / "broken", resume=True)
    for name in ("traces.jsonl", "samples.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "uninterrupted" / name).read_bytes()


def test_more_sweeps_with_resume(tmp_path: Path) -> None:
    sampler = SAMPLERS["mh-local-annealed"]
    run(sampler, tmp_path / "uninterrupted", save_every=3)
    run(sampler, tmp_path / "longer", sweeps=6, save_every=3)
    run(sampler, tmp_path / "longer", resume=True, save_every=3)
    assert content(tmp_path / "longer") == content(tmp_path / "uninterrupted")


def test_refused_resumes_change_no_file(tmp_path: Path) -> None:
    run(SAMPLERS["mh"], tmp_path / "run")
    before = content(tmp_path / "run")
    refusals: list[tuple[dict[str, Any], str]] = [
        ({}, "is not empty; resume"),
        ({"resume": True, "seed": 8}, "cannot be resumed with other settings: seed is 7 in the run and 8 now"),
        ({"resume": True, "keep_every": 3}, "keep_every is 2 in the run and 3 now"),
        ({"resume": True, "facts": {"kernel": "another"}}, "kernel is MetropolisHastings.* and another now"),
        ({"resume": True, "sweeps": 4}, "already has 9 sweeps, more than the requested 4"),
    ]
    for options, message in refusals:
        with pytest.raises(InputError, match=message):
            run(SAMPLERS["mh"], tmp_path / "run", **options)
        assert content(tmp_path / "run") == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("notes")
    with pytest.raises(InputError, match="contains other files but no run"):
        run(SAMPLERS["mh"], tmp_path / "other", resume=True)
    assert sorted(os.listdir(tmp_path / "other")) == ["notes.txt"]
    with pytest.raises(InputError, match="holds no chains"):
        ChainFolder(tmp_path / "other").traces()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    """The second process is refused while the first writes."""

    def watch(number: int, info: Any) -> None:
        with pytest.raises(InputError, match="another process is writing"):
            run(SAMPLERS["mh"], tmp_path / "run", resume=True)

    run(SAMPLERS["mh"], tmp_path / "run", sweeps=2, watch=watch)


def test_a_signal_saves_a_checkpoint(tmp_path: Path) -> None:
    sampler = SAMPLERS["gibbs"]
    run(sampler, tmp_path / "uninterrupted")

    def watch(sweep: int, info: Any) -> None:
        if sweep == 4:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(SystemExit) as raised:
        run(sampler, tmp_path / "broken", watch=watch, save_every=100)
    assert raised.value.code == 143
    assert [path.name for path in (tmp_path / "broken" / "checkpoints").iterdir()] == ["step-00000004"]
    run(sampler, tmp_path / "broken", resume=True, save_every=100)
    for name in ("traces.jsonl", "samples.jsonl"):
        assert (tmp_path / "broken" / name).read_bytes() == (tmp_path / "uninterrupted" / name).read_bytes()


def test_traces_and_samples(tmp_path: Path) -> None:
    sampler = SAMPLERS["mh"]
    traces = run(sampler, tmp_path / "run")
    kernel, tokens = kernel_and_tokens(sampler)
    energies = [state.energy for _, state, _ in sweeps_from(kernel, kernel.init(tokens), 7, SWEEPS)]
    assert torch.equal(traces.energy, torch.stack(energies))
    assert traces.proposed.tolist() == [[2, 2, 2, 4, 4, 4]] * SWEEPS
    assert bool((traces.moved <= traces.accepted).all())
    assert bool((traces.accepted <= traces.proposed).all())
    assert bool(traces.moved.any())
    rows = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert [(row["sweep"], row["example"], row["chain"]) for row in rows] == [
        (sweep, example, chain) for sweep in (2, 4, 6, 8) for example in (0, 1) for chain in range(3)
    ]
    assert [row["energy"] for row in rows if row["sweep"] == 8] == traces.energy[7].tolist()
    assert ChainFolder(tmp_path / "run").samples() == rows
    assert ChainFolder(tmp_path / "run").info()["chains"] == 3
    moved = [row["output"] for row in rows if row["sweep"] == 8]
    assert all(set(output.split()[: (2, 4)[i // 3]]) <= {"0", "1", "2"} for i, output in enumerate(moved))
