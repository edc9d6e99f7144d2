"""What a comparison trains, skips, continues and refuses, with a stand-in for training; and what it finds."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unforced.errors import InputError
from unforced.experiments.compare import compare
from unforced.experiments.comparison import read_comparison
from unforced.experiments.plan import Planned, plan
from unforced.experiments.statistics import length_bins
from unforced.metrics.significance import paired_test
from unforced.recipes.recipe import Recipe, load
from unforced.tasks.text import Pairs
from unforced.training.run_folder import FORMAT
from unforced.training.run_identity import expected_facts, training_data_fact

HEAD = """
name = "{name}"
description = "A toy"
seeds = [1, 2]
[task]
name = "pairs"
train = "{data}/train.tsv"
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


@pytest.fixture
def no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the report out where a test doesn't look at it: drawing takes time."""
    monkeypatch.setattr(import_module("unforced.experiments.compare"), "write_report", lambda runs, output: output)


class Stub:
    """Stands in for training and decoding: writes what they would write, and remembers what it was asked."""

    def __init__(self, errors: dict[str, float] | None = None, fail: Sequence[str] = ()) -> None:
        self.errors, self.fail = errors or {}, fail
        self.trained: list[str] = []
        self.resumed: list[str] = []
        self.scored: list[tuple[str, list[tuple[str, str]]]] = []
        self.starts: dict[str, str | None] = {}
        self.teachers: dict[str, str | None] = {}

    def train(self, recipe: Recipe, run: Path, *, resume: bool, quiet: bool) -> None:
        (self.resumed if resume else self.trained).append(run.name)
        self.starts[run.name] = recipe.training.warm_start
        self.teachers[run.name] = getattr(recipe.objective, "teacher", None)
        begin(recipe, run)
        if run.name in self.fail:
            raise RuntimeError("the loss is\nnot a number")
        seconds = 20.0 if "smoothing" in run.name else 10.0
        (run / "finished.json").write_text(
            json.dumps({"steps": 20, "epochs": 1, "seconds": seconds, "tokens": 100, "reason": "epochs"})
        )

    def score(self, run: Planned, missing: Sequence[tuple[str, str]], quiet: bool) -> None:
        self.scored.append((run.folder.name, list(missing)))
        for folder in ("predictions", "scores"):
            (run.folder / folder).mkdir(exist_ok=True)
        rng = np.random.default_rng(run.seed)
        error = self.errors.get(run.label.split("/")[-1], 0.3)
        for split, decoder in missing:
            examples = run.recipe.task.read(split)
            outputs = [f"{e.target} x" if rng.random() < error else e.target for e in examples]
            rows = [
                {"id": i, "source": e.source, "answers": list(e.answers), "output": o, "log_prob": 0.0}
                for i, (e, o) in enumerate(zip(examples, outputs))
            ]
            scores: dict[str, Any] = {}
            for metric in run.recipe.task.metrics():
                found = metric.statistics(outputs, [e.answers for e in examples])
                scores[metric.name] = {
                    "score": float(metric.score(found.sum(axis=0))), "higher_is_better": metric.higher_is_better,
                    "signature": metric.signature(), "statistics": found.tolist(),
                }  # fmt: skip
            name = f"{split}-{decoder}"
            text = "".join(json.dumps(row) + "\n" for row in rows)
            (run.folder / "predictions" / f"{name}.jsonl").write_text(text)
            table = {
                "split": split,
                "decoder": decoder,
                "options": {"name": "Decoder", **asdict(run.recipe.decoding[decoder])},
                "examples": len(rows),
                "metrics": scores,
            }
            (run.folder / "scores" / f"{name}.json").write_text(json.dumps(table))

    def compare(self, recipes: Sequence[Recipe], root: Path, **options: Any) -> Any:
        settings: dict[str, Any] = {"quiet": True, "table": False, "samples": 200, "permutations": 500}
        return compare(recipes, root, train=self.train, score=self.score, **settings | options)


def begin(recipe: Recipe, run: Path) -> None:
    """A run folder as training leaves it before its end."""
    run.mkdir(parents=True, exist_ok=True)
    (run / "recipe.toml").write_text(recipe.to_toml())
    remember(recipe, run)
    events = [{"kind": "train", "step": s, "loss": 1 / s, "nll": 1 / s} for s in (10, 20)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))


def test_every_variant_and_seed_is_trained_and_decoded(write: Write, tmp_path: Path) -> None:
    stub = Stub({"cross_entropy": 0.6, "label_smoothing": 0.1})
    result = stub.compare([write()], tmp_path / "runs", command="make demo")
    assert stub.trained == ["cross_entropy-1", "label_smoothing-1", "cross_entropy-2", "label_smoothing-2"]
    assert stub.resumed == []
    every = [(split, decoder) for split in ("dev", "test") for decoder in ("greedy", "beam")]
    assert stub.scored == [(name, every) for name in stub.trained]
    assert [(row.variant, row.decoder, row.cost) for row in result.rows] == [
        ("cross_entropy", "greedy", 1.0), ("cross_entropy", "beam", 1.0),
        ("label_smoothing", "greedy", 2.0), ("label_smoothing", "beam", 2.0),
    ]  # fmt: skip
    folder = tmp_path / "runs" / "toy"
    assert read_comparison(folder / "comparison.json") == result
    page = (folder / "report.html").read_text()
    assert "make demo" in page
    assert 'http-equiv="refresh"' not in page
    assert "Score by length" in page
    assert "length (words of the source)" in page
    assert result.length_unit == "words of the source"
    assert sum(each.examples for each in result.lengths) == 60
    assert load(folder) == write()


@pytest.mark.usefixtures("no_page")
def test_the_figures_are_those_of_the_scores(write: Write, tmp_path: Path) -> None:
    recipe = write()
    result = Stub({"cross_entropy": 0.6, "label_smoothing": 0.1}).compare([recipe], tmp_path)
    files = {
        (variant, seed, split): json.loads((tmp_path / f"toy/{variant}-{seed}/scores/{split}-beam.json").read_text())
        for variant in ("cross_entropy", "label_smoothing") for seed in (1, 2) for split in ("dev", "test")
    }  # fmt: skip

    def score(variant: str, seed: int, split: str, name: str = "exact_error") -> float:
        return files[variant, seed, split]["metrics"][name]["score"]

    row = next(row for row in result.rows if (row.variant, row.decoder) == ("label_smoothing", "beam"))
    cell = row.cells["exact_error"]
    ours = [score("label_smoothing", seed, "test") for seed in (1, 2)]
    theirs = [score("cross_entropy", seed, "test") for seed in (1, 2)]
    assert cell.mean == pytest.approx(np.mean(ours))
    assert cell.sd == pytest.approx(np.std(ours, ddof=1))
    assert cell.difference == pytest.approx(np.mean(ours) - np.mean(theirs))
    assert cell.low is not None
    assert cell.low <= cell.mean <= (cell.high or 0)
    dev = [score("label_smoothing", seed, "dev", "error_rate") for seed in (1, 2)]
    best = 1 + int(np.argmin(dev))
    assert (cell.best_seed, cell.best) == (best, score("label_smoothing", best, "test"))
    metric = next(metric for metric in recipe.task.metrics() if metric.name == "exact_error")
    sides = [
        [np.array(files[variant, seed, "test"]["metrics"]["exact_error"]["statistics"]) for seed in (1, 2)]
        for variant in ("label_smoothing", "cross_entropy")
    ]
    assert cell.p_value == paired_test(metric.score, *sides, samples=500).p_value
    assert cell.p_value < 0.05
    base = result.rows[0].cells["exact_error"]
    assert base.p_value is None
    assert base.low is not None


@pytest.mark.usefixtures("no_page")
def test_finished_runs_are_kept_and_interrupted_ones_continued(write: Write, tmp_path: Path) -> None:
    recipe = write()
    Stub().compare([recipe], tmp_path / "runs")
    again = Stub()
    result = again.compare([recipe], tmp_path / "runs")
    assert (again.trained, again.resumed, again.scored) == ([], [], [])
    assert all(run.state == "finished" for run in result.runs)
    folder = tmp_path / "runs" / "toy"
    (folder / "label_smoothing-1" / "finished.json").unlink()
    (folder / "cross_entropy-2" / "scores" / "test-beam.json").unlink()
    third = Stub()
    third.compare([recipe], tmp_path / "runs")
    assert (third.trained, third.resumed) == ([], ["label_smoothing-1"])
    assert third.scored == [("cross_entropy-2", [("test", "beam")])]


@pytest.mark.usefixtures("no_page")
def test_a_decoder_that_joins_later_needs_no_training(write: Write, tmp_path: Path) -> None:
    Stub().compare([write()], tmp_path / "runs")
    later = Stub()
    later.compare([write(overrides=["decoding.wide.method=beam", "decoding.wide.beam=9"])], tmp_path / "runs")
    assert later.trained == later.resumed == []
    assert {tuple(pairs) for _, pairs in later.scored} == {(("dev", "wide"), ("test", "wide"))}
    with pytest.raises(InputError, match=r"decoding\.wide\.beam is 9 in the run and 10 now"):
        later.compare([write(overrides=["decoding.wide.method=beam", "decoding.wide.beam=10"])], tmp_path / "runs")


@pytest.mark.usefixtures("no_page")
def test_runs_of_another_recipe_are_refused_and_left_alone(write: Write, tmp_path: Path) -> None:
    Stub().compare([write()], tmp_path / "runs")
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    other = Stub()
    changed = write(overrides=["model.hidden=32", "training.epochs=3"])
    with pytest.raises(
        InputError, match=r"different recipe: model.hidden is 256 in the run and 32 now; training.epochs is 10"
    ):
        other.compare([changed], tmp_path / "runs")  # fmt: skip
    assert other.trained == []
    assert before == {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    other.compare([write(overrides=["training.keep=5"])], tmp_path / "runs")  # changes nothing of the run
    assert other.trained == []


def test_a_run_that_fails_leaves_the_others_alone(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = write(SMOOTHED + WARM.format("label_smoothing"))
    stub = Stub(fail=["label_smoothing-1"])
    result = stub.compare([recipe], tmp_path / "runs")
    assert "warm-1" not in stub.trained
    assert "warm-2" in stub.trained
    assert {(run.variant, run.seed): run.reason for run in result.failures} == {
        ("label_smoothing", 1): "the loss is not a number",
        ("warm", 1): "it builds on label_smoothing, which failed",
    }
    assert "RuntimeError" in capsys.readouterr().err
    row = next(row for row in result.rows if row.variant == "label_smoothing")
    assert list(row.cells["exact_error"].scores) == ["2"]
    assert row.cells["exact_error"].p_value is not None
    assert "2 of 6 runs failed" in (tmp_path / "runs/toy/report.html").read_text()


@pytest.mark.usefixtures("no_page")
def test_all_runs_failing_is_an_error(write: Write, tmp_path: Path) -> None:
    names = [f"{variant}-{seed}" for variant in ("cross_entropy", "label_smoothing") for seed in (1, 2)]
    with pytest.raises(InputError, match="all runs failed; the first one: the loss is not a number"):
        Stub(fail=names).compare([write()], tmp_path / "runs")


def test_the_report_can_be_watched(write: Write, tmp_path: Path) -> None:
    seen = []

    class Watching(Stub):
        def train(self, recipe: Recipe, run: Path, *, resume: bool, quiet: bool) -> None:
            page = tmp_path / "runs/toy/report.html"
            seen.append(page.read_text() if page.exists() else "")
            super().train(recipe, run, resume=resume, quiet=quiet)

    Watching().compare([write()], tmp_path / "runs")
    assert seen[0] == ""
    assert ["3 of 4" in seen[1], "2 of 4" in seen[2], "1 of 4" in seen[3]] == [True] * 3
    assert all('http-equiv="refresh"' in page for page in seen[1:])


@pytest.mark.usefixtures("no_page")
def test_a_run_that_had_to_wait_does_not_change_the_cost(write: Write, tmp_path: Path) -> None:
    """One of three runs was suspended for an hour."""
    Stub().compare([write(overrides=["seeds=[1, 2, 3]"])], tmp_path)
    ended = tmp_path / "toy/label_smoothing-2/finished.json"
    ended.write_text(json.dumps({**json.loads(ended.read_text()), "seconds": 3600.0}))
    rows = Stub().compare([write(overrides=["seeds=[1, 2, 3]"])], tmp_path).rows
    assert {(row.variant, row.cost, row.minutes) for row in rows} == {
        ("cross_entropy", 1.0, 10 / 60),
        ("label_smoothing", 2.0, 20 / 60),
    }


@pytest.mark.usefixtures("no_page")
def test_warm_starts_come_behind_their_sources(write: Write, tmp_path: Path) -> None:
    recipe = write(WARM.format("label_smoothing") + SMOOTHED)
    stub = Stub()
    result = stub.compare([recipe], tmp_path / "runs")
    assert result.notes == ("cost of warm: without the training of label_smoothing, on which it builds.",)
    assert stub.trained[:3] == ["cross_entropy-1", "label_smoothing-1", "warm-1"]
    assert stub.starts["warm-2"] == "variant:label_smoothing"  # found next to the run
    assert stub.starts["label_smoothing-2"] is None
    moved = (tmp_path / "runs").rename(tmp_path / "moved")
    (moved / "toy/warm-2/finished.json").unlink()
    again = Stub()
    again.compare([recipe], moved)
    assert again.resumed == ["warm-2"]


@pytest.mark.usefixtures("no_page")
def test_what_a_task_says_of_scores_is_a_note(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pairs, "remarks", lambda self: ("no model is above 90",), raising=False)
    recipe = write(
        WARM.format("label_smoothing") + WARM.format("label_smoothing").replace("warm", "warmer", 1) + SMOOTHED
    )
    result = Stub().compare([recipe], tmp_path / "runs")
    assert result.notes == (
        "cost of warm, warmer: without the training of label_smoothing, on which they build.",
        "no model is above 90",
    )


@pytest.mark.usefixtures("no_page")
def test_an_objective_learns_from_the_run_of_a_variant(write: Write, tmp_path: Path) -> None:
    recipe = write(TAUGHT + SMOOTHED)
    stub = Stub()
    result = stub.compare([recipe], tmp_path / "runs")
    assert result.notes[0].startswith("cost of taught: without the training of label_smoothing and cross_entropy,")
    assert stub.trained[:3] == ["cross_entropy-1", "label_smoothing-1", "taught-1"]
    assert stub.teachers["taught-2"] == "variant:cross_entropy"
    assert stub.starts["taught-2"] == "variant:label_smoothing"
    moved = (tmp_path / "runs").rename(tmp_path / "moved")
    (moved / "toy/taught-2/finished.json").unlink()
    again = Stub()
    again.compare([recipe], moved)
    assert again.resumed == ["taught-2"]
    taught = 'name = "kl_projection", teacher = "variant:cross_entropy"'
    vectors = 'name = "token_smoothing", vectors = "{}/glove.npz"'
    places = [tmp_path / name for name in "ab"]
    for place in places:
        place.mkdir()
        (place / "glove.npz").write_text("numbers")
    first, moved_file = (write(TAUGHT.replace(taught, vectors.format(place)) + SMOOTHED) for place in places)
    Stub().compare([first], tmp_path / "smoothed")
    with pytest.raises(InputError, match=r"objective.vectors is \S+/a/glove.npz in the run and \S+/b/glove.npz now"):
        Stub().compare([moved_file], tmp_path / "smoothed")
    other = write(TAUGHT.replace("variant:cross", "variant:cros") + SMOOTHED)
    with pytest.raises(InputError, match='taught builds on "cros_entropy", which is not among those to compare'):
        Stub().compare([other], tmp_path / "other")
    with pytest.raises(InputError, match="circle: taught"):
        Stub().compare([write(TAUGHT.replace("variant:cross_entropy", "variant:taught") + SMOOTHED)], tmp_path / "o")


@pytest.mark.usefixtures("no_page")
@pytest.mark.parametrize(
    ("variants", "says"),
    [
        (WARM.format("warm"), "circle: warm"),
        (SMOOTHED.replace("objective =", 'training = { warm_start = "variant:warm" }\nobjective =') + WARM.format("label_smoothing"), "circle: label_smoothing -> warm"),
        (WARM.format("cross_entrpy"), 'did you mean "cross_entropy"'),
        ('[[variants]]\nname = "other"\ntask = { measures = ["bleu"] }\n', "different metrics"),
    ],
)  # fmt: skip
def test_plans_that_cannot_be_are_refused(write: Write, tmp_path: Path, variants: str, says: str) -> None:
    stub = Stub()
    with pytest.raises(InputError, match=says):
        stub.compare([write(variants)], tmp_path / "runs")
    assert stub.trained == []
    assert not (tmp_path / "runs").exists()


@pytest.mark.usefixtures("no_page")
def test_tasks_may_differ_where_references_do_not(write: Write, tmp_path: Path) -> None:
    (tmp_path / "more.tsv").write_text((tmp_path / "train.tsv").read_text() * 2)
    Stub().compare(
        [write(f'[[variants]]\nname = "more"\ntask = {{ train = "{tmp_path}/more.tsv" }}\n')], tmp_path / "a"
    )
    other = write(f'[[variants]]\nname = "other"\ntask = {{ test = "{tmp_path}/dev.tsv" }}\n')
    with pytest.raises(InputError, match="different test references"):
        Stub().compare([other], tmp_path / "b")
    (tmp_path / "a/toy/more-1/finished.json").unlink()
    for path in (tmp_path / "a/toy/more-1").glob("*/test-*"):
        path.unlink()
    (tmp_path / "test.tsv").write_text((tmp_path / "dev.tsv").read_text())
    recipe = write(f'[[variants]]\nname = "more"\ntask = {{ train = "{tmp_path}/more.tsv" }}\n')
    with pytest.raises(InputError, match="was tested on other references"):
        Stub().compare([recipe], tmp_path / "a")


def test_several_recipes_make_one_comparison(write: Write, tmp_path: Path) -> None:
    one, two = write(), write("", name="second", overrides=["model.hidden=32"])
    stub = Stub()
    result = stub.compare([one, two], tmp_path / "runs")
    assert result.baseline == "toy/cross_entropy"
    assert result.variants == ("toy/cross_entropy", "toy/label_smoothing", "second/cross_entropy")
    assert (tmp_path / "runs/second/cross_entropy-2/finished.json").is_file()
    folder = tmp_path / "runs/toy+second"
    assert "second/cross_entropy" in (folder / "report.html").read_text()
    assert {path.name for path in folder.iterdir()} == {"comparison.json", "report.html", "toy.toml", "second.toml"}
    with pytest.raises(InputError, match="have the name toy"):
        plan([one, one], tmp_path)
    with pytest.raises(InputError, match="no recipe"):
        plan([], tmp_path)


@pytest.mark.usefixtures("no_page")
def test_the_table_is_printed(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Stub().compare([write()], tmp_path / "runs", table=True, quiet=False)
    out, err = capsys.readouterr()
    assert "exact_error (lower is better)" in out
    assert "[4/4] label_smoothing, seed 2" in err
    assert "report.html" in err


def test_bins_of_lengths_hold_all_examples() -> None:
    answers = [" ".join("x" * (1 + i % 17)) for i in range(300)]
    bins, members, unit = length_bins(answers)
    assert unit == "words"
    assert sum(each.examples for each in bins) == 300
    assert sorted(np.concatenate(members).tolist()) == list(range(300))
    assert [each.low for each in bins[1:]] == [each.high + 1 for each in bins[:-1]]


@pytest.mark.parametrize("answers", [[], ["a b"] * 100, ["a", "bb"] * 5, ["[[1, 2], [3, 4]]"] * 100])
def test_some_answers_have_no_bins(answers: list[str]) -> None:
    assert length_bins(answers) == ((), [], "")


@pytest.mark.usefixtures("no_page")
def test_files_of_objectives_are_looked_at_before_anything_is_trained(write: Write, tmp_path: Path) -> None:
    """A missing one, and one that has changed since a run was made: its score and those of new runs would not belong together."""
    path = tmp_path / "vectors.txt"
    near = f'[[variants]]\nname = "near"\nobjective = {{ name = "token_smoothing", vectors = "{path}" }}\n'
    recipe, stub = write(near), Stub()
    with pytest.raises(InputError, match=r"near: \S+vectors.txt: "):
        stub.compare([recipe], tmp_path / "runs")
    assert stub.trained == []
    assert not (tmp_path / "runs").exists()
    path.write_text("a 1 0\n")
    stub.compare([recipe], tmp_path / "runs")
    assert len(stub.trained) == 4
    stub.compare([recipe], tmp_path / "runs")
    path.write_text("a 0 1\n")
    with pytest.raises(
        InputError, match=r"near-1: was made with a different recipe: file vectors\.txt is \w+ in the run and \w+ now"
    ):
        stub.compare([recipe], tmp_path / "runs")
    path.unlink()  # nothing is left to train
    stub.compare([recipe], tmp_path / "runs")
    assert len(stub.trained) == 4


def remember(recipe: Recipe, run: Path) -> None:
    """Write run.json and codec.json as training does."""
    train = recipe.task.read("train")
    codec = recipe.task.fit(train)
    facts = expected_facts(recipe) | {"training data": training_data_fact([codec.encode(each) for each in train])}
    info = {"format": FORMAT, "name": recipe.name, "variant": recipe.baseline, "seed": recipe.seeds[0], "facts": facts}
    (run / "run.json").write_text(json.dumps(info))
    (run / "codec.json").write_text(json.dumps(codec.to_json()))


@pytest.mark.usefixtures("no_page")
def test_runs_that_learnt_from_other_data_are_refused(write: Write, tmp_path: Path) -> None:
    """Those that are there already, and those that would be made beside them."""
    plain, stub, runs = write(""), Stub(), tmp_path / "runs"
    stub.compare([plain], runs)
    stub.compare([write()], runs)
    assert len(stub.trained) == 4
    with open(tmp_path / "train.tsv", "a") as file:
        file.write("word\ta b\n")
    stub.compare([write()], runs)  # nothing is left to train
    more = SMOOTHED + '[[variants]]\nname = "third"\n'
    with pytest.raises(InputError, match="cross_entropy-1: learnt from other training data than there is now"):
        stub.compare([write(more)], runs)
    assert len(stub.trained) == 4
    remember(plain.single(seed=2), runs / "toy" / "cross_entropy-2")
    with pytest.raises(InputError, match=r"cross_entropy-2: learnt from other training data than .*-1, so that"):
        stub.compare([write()], runs)


def test_data_that_is_missing_is_told_of_before_there_is_a_folder(write: Write, tmp_path: Path) -> None:
    recipe = write()
    (tmp_path / "test.tsv").unlink()
    with pytest.raises(InputError, match=r"test\.tsv") as told:
        compare([recipe], tmp_path / "runs", train=Stub().train, quiet=True)
    assert "all runs failed" not in str(told.value)
    assert not (tmp_path / "runs").exists()
