import errno
import itertools
import os
import shutil
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import CopyCodec, Exact, Noisy, Poisoned, content, job

from unforced.errors import InputError
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.objectives.minimum_risk import MinimumRisk
from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.protocols import FittedTask
from unforced.training import checkpoints
from unforced.training.checkpoints import model_tensors
from unforced.training.options import Training
from unforced.training.run_folder import RunFolder
from unforced.training.trainer import train

SHORT: dict[str, Any] = {"epochs": 2, "batch_tokens": 150, "log_every": 2, "learning_rate": 0.01}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_run_learns_and_leaves_what_the_design_says(folder: Path) -> None:
    made = job(options=Training(**{**SHORT, "epochs": 12}, log_samples=True))
    found = train(made, folder / "run", quiet=True)
    run = RunFolder(folder / "run")
    assert found.reason == "epochs"
    assert found.epochs == 12
    assert found.best is not None
    assert found.best["metric"] == "exact"
    assert found.best["score"] == 1.0
    assert run.finished() == {key: value for key, value in found._asdict().items() if key != "best"}
    assert found.tokens == 12 * sum(len(example.target) + 1 for example in made.train)
    assert {"recipe.toml", "run.json", "codec.json", "metrics.jsonl", "samples.jsonl", "checkpoints", "best.json"} < {
        path.name for path in run.path.iterdir()
    }
    info = run.info()
    assert {"name", "variant", "seed", "created", "versions", "threads", "world", "parameters", "fingerprint"} < set(
        info
    )
    assert info["examples"]["train"] == {"read": 60, "kept": 60, "dropped": {}}
    assert run.recipe() == made.recipe
    assert run.codec() == {"letters": "abcdefgh"}
    lines = run.events("train")
    assert lines[-1]["step"] == found.steps
    assert {"step", "epoch", "loss", "nll", "learning_rate", "grad_norm", "tokens", "seconds"} < set(lines[0])
    assert lines[-1]["loss"] < 0.3 * lines[0]["loss"]
    dev = run.events("dev")
    assert [event["epoch"] for event in dev] == list(range(1, 13))
    assert all(event["wrong"] == pytest.approx(1 - event["exact"]) for event in dev)
    assert len(run.samples()) == found.steps
    kept = {path.name for path in run.checkpoints()}
    assert found.best["checkpoint"] in kept
    assert len(kept) <= 3
    best = checkpoints.read_model(run.best_checkpoint())
    assert all(torch.equal(best[name], tensor) for name, tensor in model_tensors(made.model).items())
    assert not made.model.training


def test_the_window_of_a_log_line_is_the_mean_over_its_tokens(folder: Path) -> None:
    each = job(options=Training(**{**SHORT, "log_every": 1}), dropout=0.0)
    train(each, folder / "each", quiet=True)
    pairs = job(options=Training(**{**SHORT, "log_every": 2}), dropout=0.0)
    train(pairs, folder / "pairs", quiet=True)
    one, two = RunFolder(folder / "each").events("train"), RunFolder(folder / "pairs").events("train")
    tokens = one[0]["tokens"], one[1]["tokens"] - one[0]["tokens"]
    mean = (one[0]["loss"] * tokens[0] + one[1]["loss"] * tokens[1]) / sum(tokens)
    assert two[0]["loss"] == pytest.approx(mean, rel=1e-6)
    assert two[0]["grad_norm"] == pytest.approx((one[0]["grad_norm"] + one[1]["grad_norm"]) / 2, rel=1e-6)


def test_accumulation_leaves_training_what_it_was(folder: Path) -> None:
    losses = []
    for accumulate in (1, 4):
        made = job(options=Training(**SHORT, accumulate=accumulate), dropout=0.0, double=True)
        train(made, folder / str(accumulate), quiet=True)
        losses.append([event["loss"] for event in RunFolder(folder / str(accumulate)).events("train")])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


def test_a_finished_run_is_only_read(folder: Path) -> None:
    first = job(options=Training(**SHORT))
    found = train(first, folder / "run", quiet=True)
    before = snapshot(folder)
    again = job(options=Training(**SHORT, keep=5))
    assert train(again, folder / "run", resume=True, quiet=True) == found
    assert snapshot(folder) == before
    for a, b in zip(first.model.state_dict().values(), again.model.state_dict().values()):
        assert torch.equal(a, b)
    with pytest.raises(InputError, match="is not empty"):
        train(job(options=Training(**SHORT)), folder / "run", quiet=True)
    assert snapshot(folder) == before


def test_an_objective_that_can_not_be_fitted_leaves_an_empty_folder(folder: Path) -> None:
    run, path = folder / "run", folder / "vectors.txt"
    unfit = job(options=Training(**SHORT), objective=TokenSmoothing(vectors=str(path)))
    with pytest.raises(InputError, match="there is no such file"):
        train(unfit, run, quiet=True)
    assert not run.exists()
    path.write_text("a 1 2\n")  # but the letters of this task have no names
    with pytest.raises(InputError, match="word vectors are looked up by name"):
        train(unfit, run, quiet=True)
    assert {path.name for path in run.iterdir()} == {"lock"}
    assert train(job(options=Training(**SHORT)), run, quiet=True).steps > 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": Training(**{**SHORT, "batch_tokens": 140})}, "training.batch_tokens is 150 in the run and 140 now"),
        ({"objective": LabelSmoothing(0.1)}, r"objective is CrossEntropy\(\) in the run and LabelSmoothing\("),
        ({"seed": 2}, "seed is 1 in the run and 2 now"),
        ({"letters": "abcdefghi"}, "model is .* vocabulary is .* sizes is .*11, 11.* in the run and .*12, 12.* now"),
        ({"width": 8}, "model is Copier"),
        ({"examples": 50}, "training data is 60 examples"),
    ],
)  # fmt: skip
def test_resuming_with_other_settings_lists_the_differences(folder: Path, change: Any, message: str) -> None:
    train(job(options=Training(**SHORT)), folder / "run", quiet=True)
    (folder / "run" / "finished.json").unlink()
    before = snapshot(folder)
    with pytest.raises(InputError, match=message):
        train(job(**{"options": Training(**SHORT), **change}), folder / "run", resume=True, quiet=True)
    assert snapshot(folder) == before


def test_resuming_with_another_file_of_the_objective_is_refused(folder: Path) -> None:
    class Named(CopyCodec):
        def token_names(self) -> tuple[str, ...]:
            return ("<pad>", "<bos>", "<eos>", *self.letters)

    path, run = folder / "vectors.txt", folder / "run"
    path.write_text("".join(f"{letter} {n} 1\n" for n, letter in enumerate("abcdefgh")))
    token = TokenSmoothing(vectors=str(path), tau=0.1)

    def made() -> Any:
        found = job(options=Training(**SHORT), objective=TokenSequenceSmoothing(token=token))
        return replace(found, fitted=FittedTask(found.fitted.task, Named()))

    train(made(), run, quiet=True)
    (run / "finished.json").unlink()
    assert train(made(), run, resume=True, quiet=True).steps > 0
    (run / "finished.json").unlink()
    path.write_text("".join(f"{letter} {n} 2\n" for n, letter in enumerate("abcdefgh")))
    before = snapshot(folder)
    with pytest.raises(InputError, match=r"file vectors\.txt is \w+ in the run and \w+ now"):
        train(made(), run, resume=True, quiet=True)
    assert snapshot(folder) == before


@pytest.mark.parametrize("gradient", [False, True])
def test_a_loss_that_is_no_number_stops_at_its_step(folder: Path, gradient: bool) -> None:
    options = Training(**{**SHORT, "log_every": 100}, save_every=2, validate_every=100, log_samples=True)
    what = "gradient's norm is" if gradient else "loss is nan"
    with pytest.raises(InputError, match=f"{what}.* at step 7, epoch 1, examples ") as error:
        train(job(options=options, objective=Poisoned(7, gradient)), folder / "run", quiet=True)
    run = RunFolder(folder / "run")
    named = str(error.value).split("examples ")[1].split(";")[0]
    train(job(options=options), folder / "sound", quiet=True)
    assert named == ", ".join(map(str, RunFolder(folder / "sound").samples()[6]["ids"]))
    assert [path.name for path in run.checkpoints()] == ["step-00000004", "step-00000006"]
    assert run.samples()[-1]["step"] == 6
    assert run.events() == []
    assert run.finished() is None
    assert all(tensor.isfinite().all() for tensor in checkpoints.read_model(run.checkpoints()[-1]).values())


def test_early_stopping_and_a_metric_that_falls(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scores = iter([0.5, 0.4, 0.4, 0.3, 0.45, float("nan"), 0.3])
    monkeypatch.setattr(Exact, "score", lambda self, sums: next(scores))
    monkeypatch.setattr("toy_training.CopyTask.metrics", lambda self: (Exact(higher_is_better=False),))
    options = Training(**{**SHORT, "epochs": 50}, validate_every=2, patience=3)
    found = train(job(options=options), folder / "run")
    assert found.reason == "patience"
    assert found.steps == 14
    assert found.best == {"checkpoint": "step-00000014", "metric": "exact", "score": 0.3, "step": 14}  # the same again
    kept = [path.name for path in RunFolder(folder / "run").checkpoints()]
    assert kept == ["step-00000008", "step-00000012", "step-00000014"]  # of the last two, both and the best they name
    said = " ".join(capsys.readouterr().err.split())
    assert "stopped at step 14 of 300: exact has not become better in 3 validations" in said


def test_patience_begins_behind_the_warmup(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Exact, "score", lambda self, sums: 0.0)
    options = Training(**{**SHORT, "epochs": 50}, validate_every=2, patience=2, warmup=7)
    assert train(job(options=options), folder / "run", quiet=True).steps == 10
    short = Training(**{**SHORT, "epochs": 1}, warmup=1000)
    train(job(options=short), folder / "short")
    assert "updates lie within the learning rate's warmup of 1000" in " ".join(capsys.readouterr().err.split())


def test_steps_end_before_epochs_and_are_validated(folder: Path) -> None:
    found = train(job(options=Training(**{**SHORT, "epochs": None}, steps=3)), folder / "run", quiet=True)
    assert (found.steps, found.reason) == (3, "steps")
    assert [event["step"] for event in RunFolder(folder / "run").events("dev")] == [3]


def test_a_warm_start_begins_with_the_best_weights_of_another_run(folder: Path) -> None:
    first = job(options=Training(**{**SHORT, "epochs": 8}))
    train(first, folder / "first", quiet=True)
    options = Training(epochs=None, steps=1, learning_rate=1e-9, warm_start=str(folder / "first"))
    second = job(options=options, seed=5)
    train(second, folder / "second", quiet=True)
    for a, b in zip(first.model.state_dict().values(), second.model.state_dict().values()):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    with pytest.raises(
        InputError, match=r"first/checkpoints/step-.*: the weights don't fit the model: tokens\.weight is"
    ):
        train(job(options=options, width=8), folder / "third", quiet=True)
    nowhere = replace(options, warm_start=str(folder / "nowhere"))
    with pytest.raises(InputError, match="nowhere: is not a run folder"):
        train(job(options=nowhere), folder / "fourth", quiet=True)


@pytest.mark.parametrize("call", [12, 26])
def test_a_full_disk_ends_the_run_with_the_reason_and_it_can_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    options = Training(**SHORT, save_every=1, log_samples=True)
    whole = job(options=options, objective=Noisy())
    train(whole, folder / "whole", quiet=True)
    calls = 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="can't be written: No space left on device"):
        train(job(options=options, objective=Noisy()), folder / "full", quiet=True)
    monkeypatch.undo()
    assert not list((folder / "full").rglob(".part*"))
    train(job(options=options, objective=Noisy()), folder / "full", resume=True, quiet=True)
    assert content(folder / "full") == content(folder / "whole")


def test_logs_are_cut_back_to_the_checkpoint(folder: Path) -> None:
    options = Training(**SHORT, log_samples=True)
    train(job(options=options), folder / "whole", quiet=True)
    train(job(options=options), folder / "run", quiet=True)
    run = RunFolder(folder / "run")
    (folder / "run" / "finished.json").unlink()
    shutil.rmtree(run.checkpoints()[-1])
    with open(folder / "run" / "metrics.jsonl", "a") as file:
        file.write('{"kind": "tra')
    train(job(options=options), folder / "run", resume=True, quiet=True)
    assert content(folder / "run") == content(folder / "whole")


def test_the_mean_of_the_last_checkpoints_is_tried(folder: Path) -> None:
    options = Training(**{**SHORT, "epochs": 5}, average=3, keep=1)
    made = job(options=options, dropout=0.0)
    found = train(made, folder / "run", quiet=True)
    run = RunFolder(folder / "run")
    last = run.events("dev")[-1]
    assert last["average"] == 3
    assert len(run.checkpoints()) >= 3
    assert found.best is not None
    single = max(event["exact"] for event in run.events("dev")[:-1])
    assert (found.best["checkpoint"] == f"average-{found.steps:08d}") == (last["exact"] > single)


def test_a_better_mean_becomes_the_best(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.5, 0.5, 0.6, 0.6, 0.9, 0.1])
    monkeypatch.setattr(Exact, "score", lambda self, sums: next(scores))
    options = Training(**{**SHORT, "epochs": 2}, average=2)
    made = job(options=options, dropout=0.0)
    found = train(made, folder / "run", quiet=True)
    run = RunFolder(folder / "run")
    assert found.best is not None
    assert found.best["checkpoint"] == f"average-{found.steps:08d}"
    mean = checkpoints.average(run.checkpoints()[-2:])
    assert all(torch.equal(mean[name], tensor) for name, tensor in model_tensors(made.model).items())


def test_only_some_development_examples(folder: Path) -> None:
    seen = []
    made = job(options=Training(**{**SHORT, "epochs": 1}, dev_examples=5))

    def decoder(model: Any, batch: Any, *, rng: Any = None) -> Any:
        seen.extend(batch.ids.tolist())
        return made.decoder(model, batch, rng=rng)

    train(replace(made, decoder=decoder), folder / "run", quiet=True)
    assert sorted(seen) == [0, 1, 2, 3, 4]


def test_tensorboard_gets_the_numbers(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(job(options=Training(**SHORT, tensorboard=True)), folder / "run", quiet=True)
    events = EventAccumulator(str(folder / "run" / "tensorboard"))
    events.Reload()
    logged = [event["loss"] for event in RunFolder(folder / "run").events("train")]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(logged, rel=1e-6)


def test_tensorboard_that_is_not_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match="needs TensorBoard: pip install"):
        train(job(options=Training(**SHORT, tensorboard=True)), folder / "run", quiet=True)


def test_bf16_learns(folder: Path) -> None:
    found = train(job(options=Training(**{**SHORT, "epochs": 12}, precision="bf16")), folder / "run", quiet=True)
    assert found.best is not None
    assert found.best["score"] > 0.8


def test_signals_are_handled_in_the_main_thread_alone(folder: Path) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    done: list[Any] = []
    worker = threading.Thread(
        target=lambda: done.append(train(job(options=Training(**SHORT)), folder / "a", quiet=True))
    )
    worker.start()
    worker.join()
    assert done[0].reason == "epochs"
    train(job(options=Training(**SHORT)), folder / "b", quiet=True)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_refining_a_model_that_is_not_trained_is_noted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = job(options=Training(**SHORT))
    said = "MinimumRisk refines trained models: unless this one is, give a training.warm_start"
    train(replace(made, objective=MinimumRisk(samples=2)), folder / "risk")
    assert said in capsys.readouterr().err
    train(job(options=Training(**SHORT)), folder / "plain")
    again = Training(**SHORT, warm_start=str(folder / "plain"))
    train(replace(job(options=again), objective=MinimumRisk(samples=2)), folder / "warm")
    assert "refines" not in capsys.readouterr().err


def test_lines_for_those_without_a_terminal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train(job(options=Training(**SHORT)), folder / "a")
    text = capsys.readouterr().err
    assert "step 2 of" in text
    assert "tokens/s" in text
    assert "development: exact" in text
    train(job(options=Training(**SHORT)), folder / "b", quiet=True)
    printed = capsys.readouterr()
    assert printed.out + printed.err == ""


def test_bars_on_a_terminal(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "120")
    train(job(options=Training(**{**SHORT, "epochs": 6})), folder / "run")
    text = capsys.readouterr().err
    assert "training" in text
    assert "loss " in text
    assert "development: exact" in text
    assert "step 2 of" not in text  # the bar says that


@pytest.mark.parametrize(("field", "message"), [("train", "no training examples"), ("dev", "no development")])
def test_empty_splits(folder: Path, field: str, message: str) -> None:
    made = replace(job(options=Training(**SHORT)), **{field: []})
    with pytest.raises(InputError, match=message):
        train(made, folder / "run", quiet=True)
    assert not (folder / "run").exists()


def test_an_example_longer_than_a_batch_is_refused_before_anything_is_written(folder: Path) -> None:
    with pytest.raises(InputError, match="more than a batch may hold"):
        train(job(options=Training(batch_tokens=10)), folder / "run", quiet=True)
    assert not (folder / "run").exists()


def test_seconds_are_those_of_updates_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))  # every look at the clock takes a second
    found = train(job(options=Training(**SHORT)), folder / "run", quiet=True)
    assert found.seconds == found.steps
    assert next(ticks) > 2 * found.steps + 2  # validation looked at it as well
