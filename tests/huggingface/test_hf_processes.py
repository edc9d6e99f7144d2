"""Two processes make the updates of one with the same global batch: DDP and FSDP2, on gloo."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hf_cases import fast
from safetensors.torch import load_file
from torch import Tensor
from trainer_cases import tf
from two_processes import train

import unforced
from unforced.errors import InputError

OBJECTIVES = ["cross_entropy", "parallel_scheduled_sampling", "soft_beam"]
JOBS = [f"{how}-t5-{name}" for how in ("ddp", "fsdp") for name in OBJECTIVES]
JOBS += ["ddp-gpt2-minimum_risk"]  # which counts examples, not tokens
FEW = ["ddp-gpt2-minimum_risk", "fsdp-t5-soft_beam"]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def launched(launcher: list[str], output: Path, jobs: list[str]) -> None:
    """Run the jobs in the processes that a launcher starts, four rows each; without one, start two by hand."""
    command = [sys.executable, *launcher, str(Path(__file__).with_name("two_processes.py")), str(output), "4", *jobs]
    usual = {**os.environ, "OMP_NUM_THREADS": "1"}
    settings: list[dict[str, str]] = [{}]
    if not launcher:
        group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
        settings = [{**group, "RANK": rank, "LOCAL_RANK": rank} for rank in "01"]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**usual, **more}) for more in settings]
    for process in started:
        errors = process.communicate(timeout=300)[1]
        assert process.returncode == 0, errors[-4000:]


def two_processes(tmp_path_factory: pytest.TempPathFactory, jobs: list[str], *launcher: str) -> dict[str, Tensor]:
    """Results of jobs in two processes, four rows each."""
    output = tmp_path_factory.mktemp("two") / "found.safetensors"
    launched(list(launcher), output, jobs)
    saved = output.parent / "t5-soft_beam"
    model = tf.AutoModelForSeq2SeqLM.from_pretrained(saved, local_files_only=True, dtype=torch.float64)
    loaded = {f"saved/{key}": value for key, value in model.state_dict().items()}
    return load_file(output) | loaded


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    return two_processes(tmp_path_factory, FEW)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={free_port()}"]
    return two_processes(tmp_path_factory, [*(job for job in JOBS if job not in FEW), FEW[1]], *torchrun)


@pytest.mark.parametrize("job", fast(JOBS, *FEW))
def test_two_processes_are_one(job: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    results = request.getfixturevalue("two" if job in FEW else "others")
    _, kind, name = job.split("-")
    one = train(tmp_path, "alone", kind, name, 8)
    found = {key.removeprefix(f"{job}/"): value for key, value in results.items() if key.startswith(f"{job}/")}
    assert set(found) == set(one)
    assert len(one["losses"]) == len(one["norms"]) == 3
    for key, value in one.items():
        torch.testing.assert_close(found[key], value, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_launcher_of_accelerate(others: dict[str, Tensor], tmp_path: Path) -> None:
    job, output = "ddp-t5-parallel_scheduled_sampling", tmp_path / "found.safetensors"
    # without a GPU it starts several processes by this word alone; the trainer's own arguments keep them on the CPU
    launcher = ["-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--num_machines=1"]
    options = ["--mixed_precision=no", "--dynamo_backend=no", f"--main_process_port={free_port()}"]
    launched([*launcher, *options], output, [job])
    found = load_file(output)
    assert found
    for key, value in found.items():
        torch.testing.assert_close(value, others[key], rtol=1e-6, atol=1e-9)


def test_split_parameters_are_saved_in_full(two: dict[str, Tensor]) -> None:
    saved = {key.removeprefix("saved/"): value for key, value in two.items() if key.startswith("saved/")}
    assert saved
    for key, value in saved.items():
        torch.testing.assert_close(value, two[f"fsdp-t5-soft_beam/{key}"], rtol=0, atol=0)


def test_a_lone_process_has_nothing_to_split_over() -> None:
    with pytest.raises(InputError, match="start the script with torchrun"):
        unforced.shard(torch.nn.Linear(2, 2))
