"""Comparisons with a stub in place of training: order of runs, checks of existing runs, and scores."""

import json
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unforced.errors import InputError
from unforced.experiments.compare import compare
from unforced.experiments.comparison import read_comparison
from unforced.experiments.plan import Planned, plan
from unforced.experiments.runs import Run
from unforced.experiments.statistics import WIDE, WIDE_PERMUTATIONS, add_statistics, length_bins, summarize
from unforced.metrics.significance import paired_test
from unforced.recipes.recipe import Recipe, load
from unforced.reports.page import write_comparison_page
from unforced.tasks.codecs import BaseCodec
from unforced.tasks.pairs import Pairs
from unforced.training import run_folder
from unforced.training.evaluation import Evaluation, Scored, write_evaluation
from unforced.training.run_folder import RunFolder, digest
from unforced.training.run_identity import expected_facts, training_data_fact

HEAD = """
name = "{name}"
description = "A toy"
seeds = [1, 2]
[task]
name = "pairs"
train = "{data}/train.tsv"
source_tokens = "words"
target_tokens = "words"
dev = "{data}/dev.tsv"
test = "{data}/test.tsv"
measures = ["error_rate", "exact"]
[model]
name = "lstm"
[objective]
name = "cross_entropy"
[decoding.greedy]
method = "greedy"
[decoding.beam]
method = "beam"
[[variants]]
name = "cross_entropy"
"""
SMOOTHED = '[[variants]]\nname = "label_smoothing"\nobjective = "label_smoothing"\n'
TAUGHT = """
[[variants]]
name = "taught"
training = { warm_start = "variant:label_smoothing" }
objective = { name = "kl_projection", teacher = "variant:cross_entropy" }
"""
WARM = '[[variants]]\nname = "warm"\ntraining = {{ warm_start = "variant:{0}" }}\n'

Write = Callable[..., Recipe]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """A function that writes a recipe over small files and loads it."""
    for split in ("train", "dev", "test"):
        rows = [f"word{i}{' x' * (i % 4)}\t{' '.join('abcdefgh'[: 2 + i % 6])} {split[0]}" for i in range(60)]
        (tmp_path / f"{split}.tsv").write_text("\n".join(rows) + "\n")

    def make(variants: str = SMOOTHED, name: str = "toy", overrides: Sequence[str] = ()) -> Recipe:
        path = tmp_path / f"{name}.toml"
        path.write_text(HEAD.format(name=name, data=tmp_path) + variants)
        return load(path, overrides)

    return make


class Stub:
    """Writes the files of training and scoring, and logs the runs."""

    def __init__(self, errors: dict[str, float] | None = None, fail: Sequence[str] = ()) -> None:
        self.errors, self.fail = errors or {}, fail
        self.trained: list[str] = []
        self.scored: list[tuple[str, list[tuple[str, str]]]] = []

    def make(self, run: Planned, quiet: bool) -> None:
        name, folder = run.folder.name, run.folder
        if not (folder / "finished.json").is_file():
            self.trained.append(name)
            begin(run)
            if name in self.fail:
                raise RuntimeError("the loss is\nnot a number")
            seconds = 20.0 if "smoothing" in name else 10.0
            end = {"steps": 20, "epochs": 1, "seconds": seconds, "tokens": 100, "reason": "epochs"}
            (folder / "finished.json").write_text(json.dumps(end))
        if missing := run.unscored():
            self.scored.append((name, list(missing)))
        rng = np.random.default_rng(run.seed)
        error = self.errors.get(run.label.split("/")[-1], 0.3)
        for split, decoder in missing:
            examples = run.recipe.task.read(split)
            outputs = [f"{e.target} x" if rng.random() < error else e.target for e in examples]
            metrics = []
            for metric in run.recipe.task.metrics():
                rows = metric.statistics(outputs, [e.answers for e in examples])
                score = float(metric.score(rows.sum(axis=0)))
                metrics.append(Scored(metric.name, score, metric.higher_is_better, metric.signature(), rows))
            found = Evaluation(outputs, [0.0] * len(outputs), metrics, 1.0)
            method = run.recipe.decoding[decoder]
            write_evaluation(RunFolder(folder), split, decoder, method, found, examples, BaseCodec())

    def compare(self, recipes: Sequence[Recipe], root: Path, **options: Any) -> Any:
        settings: dict[str, Any] = {"quiet": True, "samples": 100, "permutations": 200}
        return compare(recipes, root, make=self.make, **settings | options)


def begin(run: Planned) -> None:
    """Write a run folder as training leaves it before its end."""
    train = run.recipe.task.read("train")
    codec = run.recipe.task.fit(train)
    facts = expected_facts(run.recipe) | {
        "training data": training_data_fact([codec.encode(example) for example in train]),
        "vocabulary": digest(codec.to_json()),
    }
    info = {"name": run.recipe.name, "variant": run.recipe.baseline, "seed": run.seed, "facts": facts}
    RunFolder(run.folder).create(recipe=run.recipe.to_toml(), info=info, codec=codec.to_json())
    events = [{"kind": "train", "step": s, "epoch": s / 20, "loss": 1 / s, "nll": 1 / s} for s in (10, 20)]
    (run.folder / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_every_variant_and_seed_is_trained_scored_and_tested(write: Write, tmp_path: Path) -> None:
    recipe, stub = write(), Stub({"cross_entropy": 0.6, "label_smoothing": 0.1})
    result = stub.compare([recipe], tmp_path / "runs", command="make demo", publish=write_comparison_page)
    assert stub.trained == ["cross_entropy-1", "label_smoothing-1", "cross_entropy-2", "label_smoothing-2"]
    every = [(split, decoder) for split in ("dev", "test") for decoder in ("greedy", "beam")]
    assert stub.scored == [(name, every) for name in stub.trained]
    assert [(row.variant, row.decoder, row.cost) for row in result.rows] == [
        ("cross_entropy", "greedy", 1.0), ("cross_entropy", "beam", 1.0),
        ("label_smoothing", "greedy", 2.0), ("label_smoothing", "beam", 2.0),
    ]  # fmt: skip
    folder = tmp_path / "runs" / "toy"
    assert read_comparison(folder / "comparison.json") == result
    assert load(folder) == recipe
    page = (folder / "report.html").read_text()
    for words in ("make demo", "Score by length", "length (words of the source)"):
        assert words in page
    assert sum(each.examples for each in result.lengths) == 60

    def score(variant: str, seed: int, split: str, name: str = "exact_error", key: str = "score") -> Any:
        file = folder / f"{variant}-{seed}" / "scores" / f"{split}-beam.json"
        return json.loads(file.read_text())["metrics"][name][key]

    cell = result.rows[3].cells["exact_error"]
    ours, theirs = ([score(v, seed, "test") for seed in (1, 2)] for v in ("label_smoothing", "cross_entropy"))
    assert (cell.mean, cell.sd) == (pytest.approx(np.mean(ours)), pytest.approx(np.std(ours, ddof=1)))
    assert cell.difference == pytest.approx(np.mean(ours) - np.mean(theirs))
    assert cell.low <= cell.mean <= cell.high
    best = 1 + int(np.argmin([score("label_smoothing", seed, "dev", "error_rate") for seed in (1, 2)]))
    assert (cell.best_seed, cell.best) == (best, score("label_smoothing", best, "test"))
    metric = next(metric for metric in recipe.task.metrics() if metric.name == "exact_error")
    sides = [
        [np.array(score(variant, seed, "test", key="statistics")) for seed in (1, 2)]
        for variant in ("label_smoothing", "cross_entropy")
    ]
    assert cell.p_value == paired_test(metric.score, *sides, samples=200).p_value < 0.05
    assert result.rows[0].cells["exact_error"].p_value is None


def test_each_file_of_a_run_is_read_once(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a comparison grows with the number of runs, not with its square."""
    read = Counter[str]()
    original = run_folder.read_text
    monkeypatch.setattr(run_folder, "read_text", lambda path: read.update([str(path)]) or original(path))
    monkeypatch.setattr(import_module("unforced.experiments.compare"), "PUBLISH_EVERY", 0.0)
    rendered = []

    def publish(folder: Path, comparison: Any, runs: Any, running: bool) -> Path:
        rendered.append(len(runs))
        page = write_comparison_page(folder, comparison, runs, running)
        assert ('http-equiv="refresh"' in page.read_text()) == running == (not comparison.complete)
        return page

    seeds = write(overrides=["seeds=[1, 2, 3]"])
    Stub().compare([seeds], tmp_path / "runs", publish=publish)
    assert rendered == [1, 2, 3, 4, 5, 6]
    names = ("run.json", "recipe.toml", "metrics.jsonl", "finished.json", "scores/test-beam.json")
    assert {
        str(tmp_path / f"runs/toy/label_smoothing-{seed}/{name}") for seed in (1, 2, 3) for name in names
    } <= read.keys()
    assert max(read.values()) <= 2  # a recipe is read as text and as data
    read.clear()
    Stub().compare([seeds], tmp_path / "runs", publish=publish)  # all runs exist
    assert max(read.values()) <= 2


def test_finished_runs_are_kept(write: Write, tmp_path: Path) -> None:
    recipe = write()
    Stub().compare([recipe], tmp_path / "runs")
    again = Stub()
    result = again.compare([recipe], tmp_path / "runs")
    assert (again.trained, again.scored) == ([], [])
    assert all(run.state == "finished" for run in result.runs)
    folder = tmp_path / "runs" / "toy"
    (folder / "label_smoothing-1" / "finished.json").unlink()
    (folder / "cross_entropy-2" / "scores" / "test-beam.json").unlink()
    third = Stub()
    third.compare([recipe], tmp_path / "runs")
    assert (third.trained, third.scored) == (["label_smoothing-1"], [("cross_entropy-2", [("test", "beam")])])


def test_a_new_decoder_needs_no_training(write: Write, tmp_path: Path) -> None:
    Stub().compare([write()], tmp_path / "runs")
    later = Stub()
    later.compare([write(overrides=["decoding.wide.method=beam", "decoding.wide.beam=9"])], tmp_path / "runs")
    assert later.trained == []
    assert {tuple(pairs) for _, pairs in later.scored} == {(("dev", "wide"), ("test", "wide"))}
    with pytest.raises(InputError, match=r"decoding\.wide\.beam is 9 in the run and 10 now"):
        later.compare([write(overrides=["decoding.wide.method=beam", "decoding.wide.beam=10"])], tmp_path / "runs")


def test_runs_of_a_different_recipe_raise_and_stay_unchanged(write: Write, tmp_path: Path) -> None:
    Stub().compare([write()], tmp_path / "runs")
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    other = Stub()
    changed = write(overrides=["model.hidden=32", "training.epochs=3"])
    with pytest.raises(InputError, match=r"different recipe: model.hidden is 256 in the run and 32 now; training.epo"):
        other.compare([changed], tmp_path / "runs")
    assert before == {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    other.compare([write(overrides=["training.keep=5"])], tmp_path / "runs")  # does not affect the run
    assert other.trained == []


def test_other_runs_continue_after_a_failure(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = write(SMOOTHED + WARM.format("label_smoothing"))
    stub = Stub(fail=["label_smoothing-1"])
    result = stub.compare([recipe], tmp_path / "runs", publish=write_comparison_page, quiet=False)
    assert "warm-1" not in stub.trained
    assert "warm-2" in stub.trained
    assert {(run.variant, run.seed): run.reason for run in result.failures} == {
        ("label_smoothing", 1): "the loss is not a number",
        ("warm", 1): "it needs label_smoothing, which failed",
    }
    err = capsys.readouterr().err
    for words in ("RuntimeError", "[2/6] label_smoothing, seed 1: failed: the loss", "[6/6] warm, seed 2: finished"):
        assert words in err
    row = next(row for row in result.rows if row.variant == "label_smoothing")
    assert list(row.cells["exact_error"].scores) == ["2"]
    assert row.cells["exact_error"].p_value is not None
    assert "2 of 6 runs failed" in (tmp_path / "runs/toy/report.html").read_text()
    names = [f"{variant}-{seed}" for variant in ("cross_entropy", "label_smoothing") for seed in (1, 2)]
    with pytest.raises(InputError, match="all runs failed; the first one: the loss is not a number"):
        Stub(fail=names).compare([write()], tmp_path / "none")


def test_interruption_writes_the_report(write: Write, tmp_path: Path) -> None:
    class Interrupted(Stub):
        def make(self, run: Planned, quiet: bool) -> None:
            if len(self.trained) == 3:
                raise SystemExit(143)
            super().make(run, quiet)

    with pytest.raises(SystemExit):
        Interrupted().compare([write()], tmp_path / "runs", publish=write_comparison_page)
    page = (tmp_path / "runs/toy/report.html").read_text()
    assert "1 of 4 runs are missing" in page
    assert 'http-equiv="refresh"' not in page


def test_the_cost_is_a_median(write: Write, tmp_path: Path) -> None:
    """One of three runs was suspended for an hour."""
    recipe = write(overrides=["seeds=[1, 2, 3]"])
    Stub().compare([recipe], tmp_path)
    ended = tmp_path / "toy/label_smoothing-2/finished.json"
    ended.write_text(json.dumps({**json.loads(ended.read_text()), "seconds": 3600.0}))
    rows = Stub().compare([recipe], tmp_path).rows
    costs = {(row.variant, row.cost, row.minutes) for row in rows}
    assert costs == {("cross_entropy", 1.0, 10 / 60), ("label_smoothing", 2.0, 20 / 60)}


def test_runs_are_ordered_by_their_needs(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pairs, "remarks", lambda self: ("no model is above 90",), raising=False)
    recipe = write(TAUGHT + SMOOTHED)
    stub = Stub()
    result = stub.compare([recipe], tmp_path / "runs")
    assert result.notes == (
        "training cost of taught: without the training of label_smoothing and cross_entropy, which it needs.",
        "no model is above 90",
    )
    assert stub.trained[:3] == ["cross_entropy-1", "label_smoothing-1", "taught-1"]
    moved = (tmp_path / "runs").rename(tmp_path / "moved")
    again = Stub()
    again.compare([recipe], moved)
    assert again.trained == []


@pytest.mark.parametrize(
    ("variants", "says"),
    [
        (WARM.format("warm"), "circle: warm"),
        (
            f'{SMOOTHED}training = {{ warm_start = "variant:warm" }}\n{WARM.format("label_smoothing")}',
            "circle: label_smoothing -> warm",
        ),
        (TAUGHT.replace("variant:cross_entropy", "variant:taught") + SMOOTHED, "circle: taught"),
        (WARM.format("cross_entrpy"), 'needs variant "cross_entrpy", which is not compared; did you mean'),
        ('[[variants]]\nname = "other"\ntask = { measures = ["bleu"] }\n', "different metrics"),
    ],
)
def test_invalid_plans_raise(write: Write, tmp_path: Path, variants: str, says: str) -> None:
    stub = Stub()
    with pytest.raises(InputError, match=says):
        stub.compare([write(variants)], tmp_path / "runs")
    assert stub.trained == []
    assert not (tmp_path / "runs").exists()


def test_tasks_may_differ_if_references_do_not(write: Write, tmp_path: Path) -> None:
    (tmp_path / "more.tsv").write_text((tmp_path / "train.tsv").read_text() * 2)
    more = f'[[variants]]\nname = "more"\ntask = {{ train = "{tmp_path}/more.tsv" }}\n'
    Stub().compare([write(more)], tmp_path / "a")
    other = write(f'[[variants]]\nname = "other"\ntask = {{ test = "{tmp_path}/dev.tsv" }}\n')
    with pytest.raises(InputError, match="different test references"):
        Stub().compare([other], tmp_path / "b")
    (tmp_path / "a/toy/more-1/finished.json").unlink()
    for path in (tmp_path / "a/toy/more-1").glob("*/test-*"):
        path.unlink()
    (tmp_path / "test.tsv").write_text((tmp_path / "dev.tsv").read_text())
    with pytest.raises(InputError, match="were tested on different references"):
        Stub().compare([write(more)], tmp_path / "a")
    (tmp_path / "test.tsv").unlink()
    with pytest.raises(InputError, match=r"test\.tsv"):
        Stub().compare([write()], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_several_recipes_make_one_comparison(write: Write, tmp_path: Path) -> None:
    one, two = write(), write("", name="second", overrides=["model.hidden=32"])
    result = Stub().compare([one, two], tmp_path / "runs")
    assert result.baseline == "toy/cross_entropy"
    assert result.variants == ("toy/cross_entropy", "toy/label_smoothing", "second/cross_entropy")
    assert (tmp_path / "runs/second/cross_entropy-2/finished.json").is_file()
    names = {path.name for path in (tmp_path / "runs/toy+second").iterdir()}
    assert names == {"comparison.json", "toy.toml", "second.toml"}
    for recipes, says in (([one, one], "two recipes are called toy"), ([], "no recipe")):
        with pytest.raises(InputError, match=says):
            plan(recipes, tmp_path)


def test_files_of_objectives_are_checked_before_training(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    near = f'[[variants]]\nname = "near"\nobjective = {{ name = "token_smoothing", vectors = "{path}" }}\n'
    recipe, stub = write(near), Stub()
    with pytest.raises(InputError, match=r"near: \S+vectors.txt: no such file"):
        stub.compare([recipe], tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    path.write_text("a 1 0\n")
    for _ in range(2):
        stub.compare([recipe], tmp_path / "runs")
    path.write_text("a 0 1\n")
    with pytest.raises(InputError, match=r"near-1 was trained with a different recipe: file vectors\.txt is"):
        stub.compare([recipe], tmp_path / "runs")
    path.unlink()  # the runs have finished
    stub.compare([recipe], tmp_path / "runs")
    assert len(stub.trained) == 4


def test_runs_on_different_data_raise(write: Write, tmp_path: Path) -> None:
    stub, runs = Stub(), tmp_path / "runs"
    stub.compare([write()], runs)
    with open(tmp_path / "train.tsv", "a") as file:
        file.write("word\ta b\n")
    stub.compare([write()], runs)  # all runs have finished
    more = SMOOTHED + '[[variants]]\nname = "third"\n'
    with pytest.raises(InputError, match="cross_entropy-1 was trained on different data than there are now"):
        stub.compare([write(more)], runs)
    shutil.rmtree(runs / "toy" / "cross_entropy-2")
    for run in plan([write()], runs):
        if run.folder.name == "cross_entropy-2":
            stub.make(run, True)
    with pytest.raises(InputError, match=r"cross_entropy-2 was trained on different data than \S+cross_entropy-1"):
        stub.compare([write()], runs)
    assert len(stub.trained) == 5


def test_metrics_with_many_statistics_get_fewer_permutations(write: Write, tmp_path: Path) -> None:
    recipe, folder = write(), tmp_path / "toy"
    Stub().compare([recipe], tmp_path)
    runs = [Run(path) for path in sorted(folder.glob("*-?"))]
    summary = summarize(runs, name="toy")
    for run in runs:
        table = run.scores["dev", "greedy"]["metrics"]["error_rate"]
        table["statistics"] = np.zeros((60, WIDE + 1))
    assert add_statistics(summary, runs, recipe.task.metrics(), samples=10).permutations == WIDE_PERMUTATIONS


def test_length_bins_hold_all_examples() -> None:
    bins, members, unit = length_bins([" ".join("x" * (1 + i % 17)) for i in range(300)])
    assert unit == "words"
    assert sum(each.examples for each in bins) == 300
    assert sorted(np.concatenate(members).tolist()) == list(range(300))
    assert [each.low for each in bins[1:]] == [each.high + 1 for each in bins[:-1]]
    for texts in ([], ["a b"] * 100, ["a", "bb"] * 5, ["[[1, 2], [3, 4]]"] * 100):
        assert length_bins(texts) == ((), [], "")
