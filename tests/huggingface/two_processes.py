"""What each of several processes runs, below a launcher: ``two_processes.py OUTPUT ROWS JOBS``.

Each job is a way of splitting and an objective; losses and weights of all of them go to OUTPUT.
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from trainer_cases import MODELS, arguments, copies, losses, objective, trainer

import unforced


def whole(model: Any) -> dict[str, torch.Tensor]:
    """The weights, put together where they are split."""
    found = {}
    for name, value in model.state_dict().items():
        full = value.full_tensor() if hasattr(value, "full_tensor") else value
        found[name] = full.detach().clone().contiguous()
    return found


def train(folder: Path, how: str, kind: str, name: str, rows: int) -> dict[str, torch.Tensor]:
    """Losses, gradient norms and weights after three updates of a tiny model; ``how`` is "ddp" or "fsdp"."""
    data = copies(kind, 24, least=1, most=6)  # ragged: processes take different numbers of steps
    model = MODELS[kind]().double()
    if how == "fsdp":
        model = unforced.shard(model)
    made = trainer(
        kind, objective(name), folder, model=model, data=data, max_steps=3, optim="sgd", learning_rate=0.05,
        per_device_train_batch_size=rows, max_grad_norm=0.5,
    )  # fmt: skip
    made.train()
    if how == "fsdp":
        made.save_model(str(folder / f"{kind}-{name}"))
    norms = [float(entry["grad_norm"]) for entry in made.state.log_history if "grad_norm" in entry]
    return {"losses": torch.tensor(losses(made)), "norms": torch.tensor(norms), **whole(made.model)}


def main(output: str, rows: str, *jobs: str) -> None:
    folder = Path(output).parent
    assert arguments(folder).device.type == "cpu"  # starts the processes' group
    assert dist.get_world_size() == 2
    assert dist.get_backend() == "gloo"
    found = {job: train(folder, *job.split("-"), int(rows)) for job in jobs}  # type: ignore[call-arg]
    if dist.get_rank() == 0:
        save_file({f"{job}/{key}": value for job in jobs for key, value in found[job].items()}, output)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
