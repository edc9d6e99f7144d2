import errno
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from unforced.errors import InputError
from unforced.training import checkpoints
from unforced.training.checkpoints import (
    Checkpoint,
    fill_model,
    fill_optimizer,
    model_tensors,
    optimizer_tensors,
    step_name,
)
from unforced.training.run_folder import RunFolder


def tied() -> nn.Module:
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "norm": nn.BatchNorm1d(3), "project": nn.Linear(3, 5)})
    model["project"].weight = model["embed"].weight
    return model


def checkpoint(value: float = 0.0, **state: Any) -> Checkpoint:
    tensors = {"w": torch.full((2, 3), float(value))}
    return Checkpoint(
        tensors, {"w/step": torch.tensor(1.0)}, {"torch": torch.get_rng_state()[None]}, {"best": None, **state}
    )


def publish(run: RunFolder, step: int, best: int | None = None) -> Path:
    state = {"best": None if best is None else {"checkpoint": step_name(best)}}
    return checkpoints.publish(run.path / "checkpoints", step_name(step), checkpoint(step, **state))


def names(run: RunFolder) -> list[str]:
    return sorted(path.name for path in (run.path / "checkpoints").iterdir())


def test_a_checkpoint_round_trips_bit_for_bit(tmp_path: Path) -> None:
    model = tied()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(3):
        hidden = model["norm"](model["embed"](torch.tensor([1, 2, 3])))
        model["project"](hidden).square().sum().backward()
        optimizer.step()
    random = {"torch": torch.get_rng_state().unsqueeze(0)}
    saved = Checkpoint(model_tensors(model), optimizer_tensors(optimizer, model), random, {"step": 3})
    path = checkpoints.publish(tmp_path, step_name(3), saved)
    assert {file.suffix for file in path.iterdir()} == {".safetensors", ".json"}
    found = checkpoints.read(path)
    assert found.state == {"step": 3}
    for field in ("model", "optimizer", "random"):
        old, new = getattr(saved, field), getattr(found, field)
        assert old.keys() == new.keys()
        assert all(torch.equal(old[name], new[name]) and old[name].dtype == new[name].dtype for name in old)

    other = tied()
    other_optimizer = torch.optim.AdamW(other.parameters(), fused=True)
    fill_model(other, found.model, "here")
    fill_optimizer(other_optimizer, other, found.optimizer)
    assert other["project"].weight is other["embed"].weight
    for each, its in ((model, optimizer), (other, other_optimizer)):
        its.zero_grad()
        each["project"](each["norm"](each["embed"](torch.tensor([4, 0, 4])))).square().sum().backward()
        its.step()
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), other.state_dict().values()))
    assert all(
        torch.equal(value, optimizer_tensors(other_optimizer, other)[name])
        for name, value in optimizer_tensors(optimizer, model).items()
    )


def test_tied_weights_are_stored_once_and_views_are_no_obstacle(tmp_path: Path) -> None:
    model = tied()
    whole = torch.arange(6.0)
    model.register_buffer("left", whole[:4])
    model.register_buffer("right", whole[2:])
    path = checkpoints.publish(tmp_path, "x", Checkpoint(model_tensors(model), {}, {}, {}))
    found = checkpoints.read_model(path)
    assert "embed.weight" in found
    assert "project.weight" not in found
    assert found["right"].tolist() == [2, 3, 4, 5]


def test_weights_that_do_not_fit_are_listed() -> None:
    tensors = {name: tensor.detach() for name, tensor in model_tensors(tied()).items()}
    del tensors["norm.bias"]
    tensors["project.bias"] = torch.zeros(7)
    tensors["extra"] = torch.zeros(1)
    with pytest.raises(
        InputError, match=r"norm\.bias is missing; extra is not in the model; project\.bias is \[7\]"
    ) as error:
        fill_model(tied(), tensors, "run-a")
    assert str(error.value).startswith("run-a: ")


@pytest.mark.parametrize("fault", ["flip", "truncate", "remove", "manifest", "no manifest"])
def test_a_damaged_newest_checkpoint_is_named_and_the_previous_one_used(tmp_path: Path, fault: str) -> None:
    run = RunFolder(tmp_path)
    publish(run, 1)
    good, bad = publish(run, 2), publish(run, 3)
    file = bad / "optimizer.safetensors"
    data = bytearray(file.read_bytes())
    if fault == "flip":
        data[-1] ^= 1
        file.write_bytes(data)
    elif fault == "truncate":
        file.write_bytes(data[: len(data) // 2])
    elif fault == "remove":
        file.unlink()
    elif fault == "manifest":
        (bad / "manifest.json").write_text("{}")
    else:
        (bad / "manifest.json").unlink()
    with pytest.raises(InputError, match="step-00000003"):
        checkpoints.read(bad)
    with pytest.warns(UserWarning, match="step-00000003.*an older checkpoint is used"):
        assert checkpoints.newest(run) == good
    assert names(run) == ["damaged-00000003", "step-00000001", "step-00000002"]
    assert checkpoints.newest(run) == good  # and nothing more to warn of


def test_no_complete_checkpoint(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    assert checkpoints.newest(run) is None
    for step in (1, 2):
        (publish(run, step) / "state.json").unlink()
    with (
        pytest.warns(UserWarning, match="state.json"),
        pytest.raises(InputError, match="all 2 checkpoints are damaged"),
    ):
        checkpoints.newest(run)
    assert len(names(run)) == 2


def test_rotation_keeps_the_newest_and_every_best_they_name(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    for step, best in [(1, None), (2, 2), (3, 2), (4, 4), (5, 4)]:
        publish(run, step, best)
    checkpoints.rotate(run, keep=3)
    assert [path.name for path in run.checkpoints()] == [step_name(step) for step in (2, 3, 4, 5)]
    checkpoints.rotate(run, keep=1)
    assert [path.name for path in run.checkpoints()] == [step_name(step) for step in (4, 5)]
    assert names(run) == [step_name(4), step_name(5)]


def test_publishing_again_replaces(tmp_path: Path) -> None:
    checkpoints.publish(tmp_path, "step-00000001", checkpoint(1.0))
    path = checkpoints.publish(tmp_path, "step-00000001", checkpoint(2.0))
    assert checkpoints.read(path).model["w"].unique().item() == 2
    assert [each.name for each in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("call", range(1, 8))
def test_a_full_disk_at_any_moment_leaves_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int, again: bool
) -> None:
    """Five files, their folder and its parent are synced: fail at each of these."""
    run = RunFolder(tmp_path)
    publish(run, 1)
    calls = 0
    real = os.fsync

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="can't be written: No space left on device"):
        publish(run, 1 if again else 2)
    monkeypatch.undo()
    assert calls == call
    assert checkpoints.read(tmp_path / "checkpoints" / step_name(1)).model["w"].unique().item() == 1
    assert not [name for name in names(run) if name.startswith(".part")]
    newest = checkpoints.newest(run)
    assert newest is not None
    checkpoints.read(newest)


def test_the_mean_of_checkpoints(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    mean = checkpoints.average([publish(run, step) for step in (1, 2, 6)])
    assert mean["w"].tolist() == torch.full((2, 3), 3.0).tolist()
    assert mean["w"].dtype == torch.float32


def test_a_model_with_state_that_is_no_tensor_is_refused() -> None:
    class Odd(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"not": "a tensor"}

        def set_extra_state(self, state: Any) -> None:
            pass

    with pytest.raises(InputError, match="_extra_state, which is not a tensor"):
        model_tensors(Odd(2, 2))
