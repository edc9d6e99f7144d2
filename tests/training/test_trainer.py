"""Training in this process: what a run writes, when it validates and stops, and what is refused."""

import errno
import io
import itertools
import os
import signal
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from toy_training import CopyCodec, CopyTask, Exact, Noisy, Poisoned, content, copies, recipe

from unforced.decoding.greedy import Greedy
from unforced.errors import InputError
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.objectives.sequence_smoothing import SequenceSmoothing
from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.training import checkpoints
from unforced.training.checkpoints import model_tensors
from unforced.training.distributed import Interrupted, catch_signals
from unforced.training.options import Training
from unforced.training.progress import Display
from unforced.training.run_folder import RunFolder
from unforced.training.trainer import train
from unforced.types import Example, Examples

SHORT: dict[str, Any] = {"epochs": 2, "batch_tokens": 150, "log_every": 2, "learning_rate": 0.01}


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_run_learns_and_writes_the_documented_files(folder: Path) -> None:
    made = recipe(options=Training(**{**SHORT, "epochs": 12}, log_samples=True))
    run = train(made, folder / "run", quiet=True)
    ended, found = run.finished(), run.best()
    assert (ended["reason"], ended["epochs"]) == ("epochs", 12)
    assert (found["metric"], found["score"]) == ("exact", 1.0)
    assert ended["tokens"] == 12 * sum(len(example.target) + 1 for example in made.task.read("train"))
    assert {"recipe.toml", "run.json", "codec.json", "metrics.jsonl", "samples.jsonl", "checkpoints", "best.json"} < {
        path.name for path in run.path.iterdir()
    }
    info = run.info()
    assert {"name", "variant", "seed", "created", "versions", "threads", "world", "parameters", "facts"} < set(info)
    assert info["examples"]["train"] == {"read": 60, "kept": 60, "dropped": {}}
    assert run.recipe_text() == made.to_toml()
    assert run.codec() == {"letters": "abcdefgh"}
    lines = run.events("train")
    assert lines[-1]["step"] == ended["steps"]
    assert {"step", "epoch", "loss", "nll", "learning_rate", "grad_norm", "tokens", "seconds"} < set(lines[0])
    assert lines[-1]["loss"] < 0.3 * lines[0]["loss"]
    dev = run.events("dev")
    assert [event["epoch"] for event in dev] == list(range(1, 13))
    assert all(event["wrong"] == pytest.approx(1 - event["exact"]) for event in dev)
    assert len(run.samples()) == ended["steps"]
    kept = {path.name for path in run.checkpoints()}
    assert found["checkpoint"] in kept
    assert len(kept) <= 3
    best = checkpoints.read_model(run.best_checkpoint())
    assert all(torch.equal(best[name], tensor) for name, tensor in model_tensors(made.model).items())
    assert not made.model.training


def test_the_window_of_a_log_line_is_the_mean_over_its_tokens(folder: Path) -> None:
    each = recipe(options=Training(**{**SHORT, "log_every": 1}), dropout=0.0)
    train(each, folder / "each", quiet=True)
    pairs = recipe(options=Training(**{**SHORT, "log_every": 2}), dropout=0.0)
    train(pairs, folder / "pairs", quiet=True)
    one, two = RunFolder(folder / "each").events("train"), RunFolder(folder / "pairs").events("train")
    tokens = one[0]["tokens"], one[1]["tokens"] - one[0]["tokens"]
    mean = (one[0]["loss"] * tokens[0] + one[1]["loss"] * tokens[1]) / sum(tokens)
    assert two[0]["loss"] == pytest.approx(mean, rel=1e-6)
    assert two[0]["grad_norm"] == pytest.approx((one[0]["grad_norm"] + one[1]["grad_norm"]) / 2, rel=1e-6)


@pytest.mark.parametrize("gradient", [False, True])
def test_a_loss_that_is_no_number_stops_at_its_step(folder: Path, gradient: bool) -> None:
    options = Training(**{**SHORT, "log_every": 100}, save_every=2, validate_every=100, log_samples=True)
    what = "gradient norm is" if gradient else "loss is nan"
    with pytest.raises(InputError, match=f"{what}.* at step 7, epoch 1, examples ") as error:
        train(recipe(options=options, objective=Poisoned(7, gradient)), folder / "run", quiet=True)
    run = RunFolder(folder / "run")
    named = str(error.value).split("examples ")[1].split(";")[0]
    train(recipe(options=options), folder / "sound", quiet=True)
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
    run = train(recipe(options=options), folder / "run")
    assert (run.finished()["reason"], run.finished()["steps"]) == ("patience", 14)
    assert run.best() == {"checkpoint": "step-00000014", "metric": "exact", "score": 0.3, "step": 14}  # the same again
    kept = [path.name for path in RunFolder(folder / "run").checkpoints()]
    assert kept == ["step-00000008", "step-00000012", "step-00000014"]  # of the last two, both and the best they name
    said = " ".join(capsys.readouterr().err.split())
    assert "stopped at step 14 of 300: exact has not improved in 3 validations" in said


def test_an_early_failure_leaves_no_folder(folder: Path) -> None:
    """The corrected command must not find the remains of the wrong one."""
    for objective, error in ((Poisoned(3), "loss is nan at step 3, .*; nothing was saved"), (print, "keyword")):
        with pytest.raises((InputError, TypeError), match=error):
            train(recipe(options=Training(**SHORT), objective=objective), folder / "run", quiet=True)
        assert not (folder / "run").exists()
    with pytest.raises(InputError, match="run: there is no run to resume; leave out resume to start one"):
        train(recipe(options=Training(**SHORT)), folder / "run", resume=True, quiet=True)
    assert not (folder / "run").exists()


@pytest.mark.parametrize("fault", [BrokenPipeError(), OSError(errno.EIO, "lost")])
def test_a_lost_terminal_does_not_end_a_run(folder: Path, monkeypatch: pytest.MonkeyPatch, fault: OSError) -> None:
    class Lost(io.StringIO):
        def write(self, text: str) -> int:
            raise fault

    monkeypatch.setattr("sys.stderr", Lost())
    assert train(recipe(options=Training(**SHORT)), folder / "run").finished() is not None
    monkeypatch.setattr("sys.stderr", None)
    assert train(recipe(options=Training(**SHORT)), folder / "closed").finished() is not None


def test_a_checkpoint_is_written_before_its_scores_are_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved: list[tuple[str, int]] = []
    monkeypatch.setattr(Display, "say", lambda self, text: saved.append((text, len(RunFolder(folder).checkpoints()))))
    train(recipe(options=Training(**SHORT, keep=9)), folder)
    assert [number for text, number in saved if "development" in text] == [1, 2]


@pytest.mark.parametrize("name", ["train", "dev"])
def test_the_same_limit_holds_for_all_splits(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    read = CopyTask.read
    long = Examples([Example("a" * 500, "a")])
    monkeypatch.setattr(CopyTask, "read", lambda self, split: long if split == name else read(self, split))
    with pytest.raises(InputError, match=f"{name} example 0 has 502 source and target tokens"):
        train(recipe(options=Training(**SHORT)), folder / "run", quiet=True)
    assert not (folder / "run").exists()


@pytest.mark.parametrize(
    "objective",
    [
        Noisy(),
        TokenSmoothing(tau=0.1, vectors="co-occurrence", nearest=4),
        SequenceSmoothing(reward="cider", tau=0.1, proposal_tau=0.5, samples=3),
    ],
    ids=lambda objective: type(objective).__name__,
)
def test_a_signal_stops_a_search_and_the_validation_is_repeated(folder: Path, objective: Any) -> None:
    """Also with objectives that are fitted to the training data."""
    waiting: list[int] = []

    def decoder(model: Any, batch: Any, *, rng: Any = None) -> Any:
        if waiting:
            signal.raise_signal(waiting.pop())
            raise AssertionError("the search continues")
        return Greedy(max_length=12)(model, batch, rng=rng)

    def run(name: str, resume: bool = False) -> dict[str, Any]:
        made = recipe(options=Training(**SHORT, log_samples=True), decoder=decoder, objective=objective)
        train(made, folder / name, resume=resume, quiet=True)
        return content(folder / name)

    whole = run("whole")
    waiting.append(signal.SIGTERM)
    with pytest.raises(SystemExit, match="143"):
        run("stopped")
    assert RunFolder(folder / "stopped").events("dev") == []
    assert run("stopped", resume=True) == whole


def test_a_run_that_is_resumed_with_other_threads_has_no_number_of_them(folder: Path) -> None:
    options = Training(**SHORT, save_every=1)
    with pytest.raises(InputError):
        train(recipe(options=options, objective=Poisoned(3)), folder / "run", quiet=True)
    assert RunFolder(folder / "run").info()["threads"] == 1
    torch.set_num_threads(2)
    with pytest.raises(InputError):
        train(recipe(options=options, objective=Poisoned(3)), folder / "run", resume=True, quiet=True)
    assert RunFolder(folder / "run").info()["threads"] is None


def test_steps_end_before_epochs_and_are_validated(folder: Path) -> None:
    found = train(recipe(options=Training(**{**SHORT, "epochs": None}, steps=3)), folder / "run", quiet=True).finished()
    assert (found["steps"], found["reason"]) == (3, "steps")
    assert [event["step"] for event in RunFolder(folder / "run").events("dev")] == [3]


def test_a_warm_start_begins_with_the_best_weights_of_another_run(folder: Path) -> None:
    first = recipe(options=Training(**{**SHORT, "epochs": 8}))
    train(first, folder / "first", quiet=True)
    options = Training(epochs=None, steps=1, learning_rate=1e-9, warm_start=str(folder / "first"))
    second = recipe(options=options, seed=5)
    train(second, folder / "second", quiet=True)
    for a, b in zip(first.model.state_dict().values(), second.model.state_dict().values()):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
    with pytest.raises(
        InputError, match=r"first/checkpoints/step-.*: the weights don't fit the model: tokens\.weight is"
    ):
        train(recipe(options=options, width=8), folder / "third", quiet=True)
    nowhere = replace(options, warm_start=str(folder / "nowhere"))
    with pytest.raises(InputError, match="nowhere: is not a run folder"):
        train(recipe(options=nowhere), folder / "fourth", quiet=True)


@pytest.mark.parametrize("call", [12, 26])
def test_a_full_disk_ends_the_run_with_the_reason_and_it_can_go_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    options = Training(**SHORT, save_every=1, log_samples=True)
    whole = recipe(options=options, objective=Noisy())
    train(whole, folder / "whole", quiet=True)
    calls = 0

    def full(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(InputError, match="can't be written: No space left on device"):
        train(recipe(options=options, objective=Noisy()), folder / "full", quiet=True)
    monkeypatch.undo()
    assert not list((folder / "full").rglob(".part*"))
    saved = (folder / "full").exists()  # a run without a checkpoint is removed
    train(recipe(options=options, objective=Noisy()), folder / "full", resume=saved, quiet=True)
    assert saved == (call > 12)
    assert content(folder / "full") == content(folder / "whole")


def test_the_mean_of_the_last_checkpoints_becomes_the_best(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([0.5, 0.5, 0.6, 0.6, 0.9, 0.1])
    monkeypatch.setattr(Exact, "score", lambda self, sums: next(scores))
    options = Training(**{**SHORT, "epochs": 2}, average=2)
    made = recipe(options=options, dropout=0.0)
    run = train(made, folder / "run", quiet=True)
    assert [event.get("average") for event in run.events("dev")] == [None, None, 2]
    assert run.best()["checkpoint"] == f"average-{run.finished()['steps']:08d}"
    mean = checkpoints.average(run.checkpoints()[-2:])
    assert all(torch.equal(mean[name], tensor) for name, tensor in model_tensors(made.model).items())


def test_tensorboard_gets_the_numbers(folder: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(recipe(options=Training(**SHORT, tensorboard=True)), folder / "run", quiet=True)
    events = EventAccumulator(str(folder / "run" / "tensorboard"))
    events.Reload()
    logged = [event["loss"] for event in RunFolder(folder / "run").events("train")]
    assert [event.value for event in events.Scalars("train/loss")] == pytest.approx(logged, rel=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"options": Training(**{**SHORT, "batch_tokens": 140})},
            "training.batch_tokens is 150 in the run and 140 now",
        ),
        ({"objective": LabelSmoothing(0.1)}, "objective.name is cross_entropy in the run and label_smoothing now"),
        ({"seed": 2}, "seed is 1 in the run and 2 now"),
        ({"letters": "abcdefghi"}, r"vocabulary is 11 symbols \w+ in the run and 12 symbols \w+ now; parameters is"),
        ({"width": 8}, "parameters is"),
        ({"examples": 50}, "training data is 60 examples"),
        ({"decoder": Greedy(max_length=3)}, "decoding.greedy.max_length is 12 in the run and 3 now"),
    ],
)  # fmt: skip
def test_a_run_is_not_resumed_with_other_settings(folder: Path, change: Any, message: str) -> None:
    train(recipe(options=Training(**SHORT)), folder / "run", quiet=True)
    before = snapshot(folder)
    with pytest.raises(InputError, match=message):
        train(recipe(**{"options": Training(**SHORT), **change}), folder / "run", resume=True, quiet=True)
    assert snapshot(folder) == before


def test_a_finished_run_is_only_read(folder: Path) -> None:
    first, again = recipe(options=Training(**SHORT)), recipe(options=Training(**SHORT, keep=5))
    train(first, folder / "run", quiet=True)
    before = snapshot(folder)
    train(again, folder / "run", resume=True, quiet=True)
    for a, b in zip(first.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(a, b)
    with pytest.raises(InputError, match="is not empty"):
        train(recipe(options=Training(**SHORT)), folder / "run", quiet=True)
    assert snapshot(folder) == before


@dataclass(frozen=True)
class Named(CopyTask):
    """A task whose letters have names, for word vectors."""

    def fit(self, train: Any) -> CopyCodec:
        codec = CopyCodec(self.letters)
        codec.token_names = lambda: ("<pad>", "<bos>", "<eos>", *self.letters)  # type: ignore[attr-defined]
        return codec


def test_files_of_an_objective(folder: Path) -> None:
    """A file that is missing or does not fit leaves no folder; a run is not resumed if it has changed."""
    path, run = folder / "vectors.txt", folder / "run"
    token = TokenSmoothing(vectors=str(path), tau=0.1)
    made = recipe(options=Training(**SHORT), objective=token)
    with pytest.raises(InputError, match=r"vectors\.txt"):
        train(made, run, quiet=True)
    path.write_text("".join(f"{letter} {n} 1\n" for n, letter in enumerate("abcdefgh")))
    with pytest.raises(InputError, match="word vectors"):  # the letters of this task have no names
        train(made, run, quiet=True)
    assert not run.exists()
    made = replace(made, task=Named(), objective=TokenSequenceSmoothing(token=token))
    train(made, run, quiet=True)
    path.write_text(path.read_text().replace(" 1\n", " 2\n"))
    with pytest.raises(InputError, match=r"file vectors\.txt is \w+ in the run and \w+ now"):
        train(made, run, resume=True, quiet=True)


def test_patience_begins_after_the_warmup(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Exact, "score", lambda self, sums: 0.0)
    options = Training(**{**SHORT, "epochs": 50}, validate_every=2, patience=2, warmup=7)
    assert train(recipe(options=options), folder / "run", quiet=True).finished()["steps"] == 10


@pytest.mark.parametrize(("split", "name"), [("train", "training"), ("dev", "development")])
def test_empty_splits(folder: Path, monkeypatch: pytest.MonkeyPatch, split: str, name: str) -> None:
    monkeypatch.setattr(CopyTask, "read", lambda self, which: [] if which == split else copies(5, 1))
    with pytest.raises(InputError, match=f"there are no {name} examples"):
        train(recipe(options=Training(**SHORT)), folder / "run", quiet=True)
    assert not (folder / "run").exists()


def test_only_some_development_examples(folder: Path) -> None:
    seen = []

    def decoder(model: Any, batch: Any, *, rng: Any = None) -> Any:
        seen.extend(batch.ids.tolist())
        return Greedy(max_length=12)(model, batch, rng=rng)

    train(recipe(options=Training(**{**SHORT, "epochs": 1}, dev_examples=5), decoder=decoder), folder, quiet=True)
    assert sorted(seen) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("terminal", [False, True])
def test_progress(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: bool
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(terminal)))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("unforced.training.progress.EVERY", 0.0)
    train(recipe(options=Training(**SHORT)), folder / "a")
    text = capsys.readouterr().err
    assert (
        "training 891 parameters on cpu: 60 examples, vocabulary of 11 source and 11 target tokens, 12 updates" in text
    )
    assert "development: exact" in text
    assert "finished after 0 s; best exact" in text
    for line in ("step 1 of 12: ", "step 2 of 12: ", " s left\n", "decoded 20 of 20 examples"):
        assert (line in text) != terminal  # lines only where there is no bar
    assert text.count("tokens/s") >= 1
    train(recipe(options=Training(**SHORT)), folder / "b", quiet=True)
    printed = capsys.readouterr()
    assert printed.out + printed.err == ""


def test_seconds_are_those_of_updates_only(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: next(ticks))  # the clock advances with every look
    found = train(recipe(options=Training(**SHORT)), folder / "run", quiet=True).finished()
    assert found["seconds"] == found["steps"]
    assert next(ticks) > 2 * found["steps"] + 2  # validation looked at it too


def test_signals() -> None:
    """A second SIGTERM changes nothing, since some send it to all processes of a run; Ctrl-C acts after any signal."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    inherited = signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs of a shell
    inherited_hangup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
    before = [signal.getsignal(number) for number in numbers]
    with catch_signals() as signals:
        for _ in range(3):
            signal.raise_signal(signal.SIGTERM)
        assert (signals.received, signals.exit_code) == (signal.SIGTERM, 143)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert [signal.getsignal(number) for number in numbers] == before
    with catch_signals() as signals, pytest.raises(Interrupted), signals.raised_at_once():
        signal.raise_signal(signal.SIGTERM)  # between two steps of a search
    with pytest.raises(Interrupted), signals.raised_at_once():
        raise AssertionError("a signal has come before")
    worker = threading.Thread(target=lambda: catch_signals().__enter__())  # only the main thread can handle signals
    worker.start()
    worker.join()
    assert [signal.getsignal(number) for number in numbers] == before
    inherited_hup = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored under nohup
    with catch_signals() as signals:
        signal.raise_signal(signal.SIGHUP)  # the terminal is lost
        assert signals.exit_code == 129
    signal.signal(signal.SIGHUP, inherited_hup)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with catch_signals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert (signals.received, signal.getsignal(signal.SIGINT)) == (None, signal.SIG_IGN)
    signal.signal(signal.SIGINT, inherited)
    signal.signal(signal.SIGHUP, inherited_hangup)
