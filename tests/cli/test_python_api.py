"""The Python API: classes, batches, decoding, and a user's own model, task and objective."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import unforced
from unforced.protocols import FittedTask
from unforced.recipes.recipe import load
from unforced.registry import REGISTRY, resolve
from unforced.types import Batch, DecoderState, Loss, Progress, Sizes


class Own(nn.Module):
    """The user's model: a recurrent network that starts from the mean of the source's embeddings."""

    def __init__(self, sizes: Sizes, width: int = 8) -> None:
        super().__init__()
        self.source = nn.Embedding(sizes.source or 1, width)
        self.target = nn.Embedding(sizes.target, width)
        self.cell = nn.GRU(width, width, batch_first=True)
        self.project = nn.Linear(width, sizes.target)

    def start(self, batch: Batch) -> DecoderState:
        mask = batch.source_mask.unsqueeze(-1)
        return DecoderState((self.source(batch.source) * mask).sum(1) / mask.sum(1), None)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.target(ids)

    def embed_mix(self, weights: torch.Tensor) -> torch.Tensor:
        return weights @ self.target.weight

    def advance(self, state: DecoderState, inputs: torch.Tensor) -> tuple[torch.Tensor, DecoderState]:
        features, last = self.cell(inputs, state.carry.unsqueeze(0).contiguous())
        return features, DecoderState(last[0], None)

    def score(self, features: torch.Tensor) -> torch.Tensor:
        return self.project(features)


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> unforced.Task:
    path = tmp_path_factory.mktemp("data") / "train.tsv"
    path.write_text("".join(f"{a} {b}\t{b} {a}\n" for a in "abcdef" for b in "abcdef"))
    words = {"source_tokens": "words", "target_tokens": "words"}
    return unforced.task("pairs", train=str(path), hold_out=0.1, measures=["exact"], **words)


@pytest.fixture(scope="module")
def run(task: unforced.Task, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "own"
    return unforced.fit(Own, task, unforced.objectives.CrossEntropy(), folder, epochs=None, steps=3, quiet=True)


def test_a_custom_model_is_trained_and_loaded(run: Path, task: unforced.Task) -> None:
    model, fitted = unforced.load(run, model=Own)
    assert isinstance(model, Own)
    assert not model.training
    assert fitted.task == task
    batch = unforced.batch(model, [("a b", "b a"), ("c d", "d c")])
    found = unforced.decode(model, batch, unforced.decoding.Beam(beam=2, max_length=4))
    assert found.tokens.shape[:2] == (2, 1)
    named = unforced.decode(model, batch, "beam", beam=2, max_length=4)
    assert torch.equal(named.tokens, found.tokens)
    with pytest.raises(unforced.InputError, match="fields go with the name of a decoder"):
        unforced.decode(model, batch, unforced.decoding.Beam(), beam=2)
    assert unforced.evaluate(run, "dev", model=Own, quiet=True).keys() == {"greedy"}
    loss = unforced.objective("cross_entropy")(model, batch, progress=Progress(), rng=torch.Generator())
    assert torch.isfinite(loss.mean)


def test_load_again_is_equal_and_draws_nothing(run: Path) -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first, second = unforced.load(run, model=Own).model, unforced.load(run, model=Own).model
    assert torch.equal(torch.get_rng_state(), before)
    for a, b in zip(first.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_module_has_the_trained_weights_after_fit(task: unforced.Task, tmp_path: Path, run: Path) -> None:
    torch.manual_seed(1)  # what fit does with a class, done by hand
    model = Own(task.fit(task.read("train")).sizes)
    unforced.fit(model, task, unforced.objective("cross_entropy"), tmp_path / "run", epochs=None, steps=3, quiet=True)
    for a, b in zip(model.parameters(), unforced.load(run, model=Own).model.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_run_of_a_custom_model_needs_the_model(run: Path) -> None:
    with pytest.raises(unforced.InputError, match=r"was trained with a model of your own; load\(run, model=…\)"):
        unforced.load(run)
    with pytest.raises(unforced.InputError, match="the weights don't fit the model"):
        unforced.load(run, model=lambda sizes: Own(sizes, width=4))


def test_missing_methods_are_named(task: unforced.Task, tmp_path: Path) -> None:
    class Half(nn.Module):
        def __init__(self, sizes: Sizes) -> None:
            super().__init__()

        start = embed = score = Own.start

    with pytest.raises(unforced.InputError, match=r"^Half has no advance: a StepDecoder needs start, "):
        unforced.fit(Half, task, "cross_entropy", tmp_path / "run")
    with pytest.raises(unforced.InputError, match=r"must be a torch\.nn\.Module, not int"):
        unforced.fit(lambda sizes: 3, task, "cross_entropy", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_wrong_options_of_fit(task: unforced.Task, tmp_path: Path) -> None:
    with pytest.raises(unforced.InputError, match=r'training\.epohcs: no such key; did you mean "training.epochs"'):
        unforced.fit(Own, task, "cross_entropy", tmp_path, epohcs=3)
    with pytest.raises(unforced.InputError, match='validate: "beam" is not in decoding'):
        unforced.fit(Own, task, "cross_entropy", tmp_path, validate="beam")
    with pytest.raises(unforced.InputError, match='did you mean "cross_entropy"'):
        unforced.fit(Own, task, "crossentropy", tmp_path)


def test_custom_objectives_and_tasks(task: unforced.Task, tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Half:
        """Half the cross-entropy."""

        def __call__(self, model: Own, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
            loss = unforced.objective("cross_entropy")(model, batch, progress=progress, rng=rng)
            return loss._replace(total=loss.total / 2)

    class Wrapped:
        """A task that is not registered."""

        read, fit, codec, metrics = task.read, task.fit, task.codec, task.metrics

    run = unforced.fit(Own, Wrapped(), Half(), tmp_path / "run", epochs=None, steps=2, quiet=True)
    with pytest.raises(unforced.InputError, match="was trained with a task of your own"):
        unforced.load(run, model=Own)
    assert unforced.load(run, model=Own, task=Wrapped()).task.codec.sizes == task.fit(task.read("train")).sizes


def test_a_registered_model_needs_no_recipe(task: unforced.Task, tmp_path: Path) -> None:
    spec = unforced.model("lstm", hidden=4, embedding=4)
    run = unforced.fit(spec, task, "label_smoothing", tmp_path / "run", epochs=None, steps=2, quiet=True)
    model, _ = unforced.load(run)
    assert type(model) is type(spec.build(model.codec.sizes))


def test_batches_of_anything(run: Path, task: unforced.Task) -> None:
    model, fitted = unforced.load(run, model=Own)
    pairs = [("a b", "b a"), ("c", "c")]
    first = unforced.batch(model, pairs)
    for thing, raw in [(fitted, pairs), (fitted.codec, [unforced.Example(*pair) for pair in pairs])]:
        other = unforced.batch(thing, raw)
        assert torch.equal(first.gold, other.gold)
        assert torch.equal(first.source, other.source)
    alone = unforced.batch(model, ["a b", "c"])
    assert torch.equal(alone.source, first.source)
    assert alone.tokens == 0
    with pytest.raises(unforced.InputError, match="Linear has no codec"):
        unforced.batch(nn.Linear(1, 1), pairs)
    with pytest.raises(unforced.InputError, match="at least one example"):
        unforced.batch(model, [])
    assert isinstance(fitted, FittedTask)


def test_objectives_are_fitted(run: Path, task: unforced.Task) -> None:
    """By a codec, or by what has one; examples may be raw."""
    near = unforced.objective("token_smoothing", vectors="co-occurrence", tau=0.2)
    examples = task.read("train")
    codec = task.fit(examples)
    encoded = [codec.encode(example) for example in examples]
    wanted = near.fitted(codec, encoded).table.near[:2]
    for known, some in ((codec, encoded), (codec, examples), (FittedTask(task, codec), examples)):
        found = unforced.fitted(near, known, some).table.near[:2]
        assert all(torch.equal(a, b) for a, b in zip(found, wanted))
    plain = unforced.objective("cross_entropy")
    assert unforced.fitted(plain, codec) is plain
    with pytest.raises(unforced.InputError, match="Own has no vocabulary"):
        unforced.fitted(near, Own(codec.sizes), examples)


def test_builders() -> None:
    assert unforced.objective("label_smoothing", smoothing=0.2).smoothing == 0.2
    with pytest.raises(
        unforced.InputError, match=r'^label_smoothing\.smoothign: no such key; did you mean "label_smoothing.smoothing"'
    ):
        unforced.objective("label_smoothing", smoothign=0.2)
    with pytest.raises(unforced.InputError, match=r"^lstm\.hidden must be a whole number"):
        unforced.model("lstm", hidden=2.5)
    with pytest.raises(unforced.InputError, match='there is no "pears" in tasks; did you mean "pairs"'):
        unforced.task("pears")


@pytest.mark.parametrize(
    "package",
    ["", "objectives", "models", "tasks", "decoding", "energy", "metrics"],
    ids=lambda name: name or "unforced",
)
def test_public_names(package: str) -> None:
    module = getattr(unforced, package) if package else unforced
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        module.trian  # noqa: B018


def test_registered_classes_are_public() -> None:
    """Each class of the registry is an attribute of a package, and of ``unforced`` by way of that package."""
    packages = (unforced.objectives, unforced.models, unforced.tasks, unforced.decoding, unforced.energy)
    public = {id(getattr(package, name)) for package in packages for name in package.__all__}
    for kind, names in REGISTRY.items():
        assert [name for name in names if id(resolve(kind, name)) not in public] == []


SNIPPET = """
import unforced
from unforced.decoding import Beam

reveal_type(unforced.objectives.ScheduledSampling(feed="sample").feed)
reveal_type(unforced.models.LSTM(hidden=64).hidden)
reveal_type(unforced.tasks.Pairs(train="x").train)
reveal_type(Beam(beam=3).beam)
unforced.objectives.ScheduledSampling(fed="sample")
unforced.models.LTSM()
"""


@pytest.mark.slow
def test_a_type_checker_knows_the_classes(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    (tmp_path / "snippet.py").write_text(SNIPPET)
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "snippet.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    notes = [line.split('"')[1] for line in done.stdout.splitlines() if "Revealed type" in line]
    assert [note.replace("builtins.", "") for note in notes[1:]] == ["int", "str", "int"]
    assert "Literal['argmax']" in notes[0]
    errors = [line.split("error: ")[1] for line in done.stdout.splitlines() if "error: " in line]
    assert [error.split(" for ")[0].split(" has ")[0] for error in errors] == [
        'Unexpected keyword argument "fed"', "Module",
    ]  # fmt: skip


def test_wrong_values_are_one_sentence() -> None:
    task, loss = unforced.tasks.Palindromes(length=4), unforced.objectives.CrossEntropy
    calls: list[tuple[Any, str]] = [
        (lambda: unforced.evaluate("runs/none", split="val"), "split must be one of train, dev, test, got 'val'"),
        (lambda: unforced.batch(task, "ab"), "pairs must be a list, got 'ab'"),
        (lambda: unforced.batch(task, [3]), "not examples for StringCodec"),
        (lambda: unforced.score("runs/none", "ab"), "sentences must be a list, got 'ab'"),
        (lambda: unforced.decode(nn.Linear(1, 1), ["ab"]), "Linear has no codec"),
        (lambda: unforced.load(3), "run must be a string or a path, got 3"),
        (lambda: unforced.compare(["g2p"]), "sources must be a string or a path or"),
        (lambda: unforced.fit(unforced.models.LSTM, task, "cross_entropy", "x"), r"pass an object, LSTM\("),
        (lambda: unforced.fit(Own, type(task), "cross_entropy", "x"), r"pass an object, Palindromes\("),
        (
            lambda: unforced.fit(Own, task, loss, "x"),
            r"objective must be an Objective .* pass an object, CrossEntropy\(",
        ),
        (lambda: unforced.fit(Own, 3, "cross_entropy", "x"), "task must be a Task or a string or a table, got 3"),
        (lambda: unforced.fit("lsmt", task, "cross_entropy", "x"), 'did you mean "lstm"'),
    ]  # fmt: skip
    for call, message in calls:
        with pytest.raises(unforced.InputError, match=message):
            call()


def test_names_and_tables_are_taken_for_objects(tmp_path: Path) -> None:
    run = unforced.fit(
        {"name": "lstm", "hidden": 4, "embedding": 4},
        {"name": "palindromes", "size": 20, "held_out": 4},
        "cross_entropy",
        tmp_path / "run",
        decoding={"greedy": "greedy", "two": {"method": "beam", "beam": 2}},
        epochs=None,
        steps=1,
        quiet=True,
    )
    loaded = unforced.load(run)
    assert type(loaded.model).__name__ == "LSTMModel"
    assert load(run).decoding["two"] == unforced.decoding.Beam(beam=2)
    assert unforced.batch(loaded, ["abcba"]).tokens == 5  # without sources, a text is a target
    recipe = {"task": "palindromes", "model": "lstm", "objective": "label_smoothing", "training": {"steps": 3}}
    assert load(recipe).objective == unforced.objectives.LabelSmoothing()
    assert unforced.fitted("cross_entropy", loaded.model) == unforced.objectives.CrossEntropy()


def test_texts_are_decoded_to_texts(run: Path, task: unforced.Task, tmp_path: Path) -> None:
    loaded = unforced.load(run, model=Own)
    batch = unforced.batch(loaded.model, ["a b", "c d"])
    found = unforced.decode(loaded.model, batch, "greedy")
    texts = [loaded.task.codec.decode(ids) for ids in found.ids(batch.symbols)]
    assert unforced.decode(loaded.model, ["a b", "c d"], "greedy") == texts
    assert unforced.decode(loaded, ("a b", "c d"), unforced.decoding.Greedy()) == texts
    other = unforced.fit("lstm", task, "cross_entropy", tmp_path / "run", epochs=None, steps=1, quiet=True)
    assert len(unforced.decode(other, ["a b"])) == 1


def test_a_model_is_checked_on_examples_first(task: unforced.Task, tmp_path: Path) -> None:
    class Wide(Own):
        def score(self, features: torch.Tensor) -> torch.Tensor:
            return torch.cat([super().score(features)] * 2, dim=-1)

    class Stateless(Own):
        def advance(self, state: DecoderState, inputs: torch.Tensor) -> Any:
            return self.cell(inputs)

    class Broken(Own):
        def start(self, batch: Batch) -> Any:
            return batch.nothing  # type: ignore[attr-defined]

    for kind, message in [
        (Wide, r"Wide must score all \d+ tokens .* must have the shape \[2, 3, \d+\], got \[2, 3, \d+\]"),
        (Stateless, r"Stateless\.advance must return features and a DecoderState"),
        (Broken, "Broken fails on training examples: AttributeError"),
    ]:
        with pytest.raises(unforced.InputError, match=message):
            unforced.fit(kind, task, "cross_entropy", tmp_path / "run")
    assert not (tmp_path / "run").exists()
