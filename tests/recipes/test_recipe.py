"""Recipes: loading, merging, overrides, variants, writing TOML, and error messages."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

import unforced
from unforced.decoding.beam import Beam
from unforced.errors import InputError
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.kl_projection import KLProjection
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.recipes.fields import build
from unforced.recipes.recipe import (
    BODY,
    Recipe,
    builtin,
    check_needed_runs,
    difference,
    load,
    merge,
    needed_variants,
    parse_overrides,
    with_paths_resolved,
)
from unforced.training.options import Training

TINY = """
description = "a small one"
seeds = [3, 4]

[task]
name = "pairs"
train = "train.tsv"

[model]
name = "lstm"
hidden = 8

[objective]
name = "label_smoothing"
smoothing = 0.3

[training]
epochs = 1
clip = "none"
validate = "quick"

[decoding.quick]
method = "greedy"

[decoding.wide]
method = "beam"
beam = 7

[[variants]]
name = "smooth"

[[variants]]
name = "plain"
objective = { name = "cross_entropy" }

[[variants]]
name = "long"
training = { epochs = 5 }
decoding = { wide = { beam = 9 } }
"""

# overrides of recipes that need data files
OWN_DATA = {name: ["task.train=train.tsv"] for name in ("pairs", "tagging", "language")}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def test_load_builds_the_parts_of_a_recipe(tiny: Path) -> None:
    recipe = load(tiny)
    assert recipe.name == "tiny"
    assert recipe.seeds == (3, 4)
    assert recipe.baseline == "smooth"
    assert recipe.model.hidden == 8
    assert recipe.objective == LabelSmoothing(0.3)
    assert recipe.training.clip is None
    assert recipe.decoding["wide"] == Beam(beam=7)
    assert [variant.name for variant in recipe.variants] == ["smooth", "plain", "long"]
    assert [variant.changes for variant in recipe.variants] == [
        {},
        {"objective": {"name": "cross_entropy"}},
        {"training": {"epochs": 5}, "decoding": {"wide": {"beam": 9}}},
    ]


def test_single_returns_the_recipe_of_one_run(tiny: Path) -> None:
    recipe = load(tiny)
    plain = recipe.single("plain", 9)
    assert (plain.objective, plain.seeds, plain.baseline) == (CrossEntropy(), (9,), "plain")
    long = recipe.single("long")
    assert (long.training.epochs, long.decoding["wide"].beam, long.seeds) == (5, 9, (3,))
    assert recipe.single().baseline == "label_smoothing"
    assert plain.single() == plain
    with pytest.raises(InputError, match='variant: "plian" is not among the variants; did you mean "plain"'):
        recipe.single("plian")


def test_load_with_a_variant_equals_single(tiny: Path) -> None:
    recipe = load(tiny, [], "plain", 9)
    assert (recipe.objective, recipe.baseline, recipe.seeds) == (CrossEntropy(), "plain", (9,))
    assert recipe.single() == recipe == load(tiny).single("plain", 9)
    some = load(tiny).only(["plain", "long"])
    assert some.baseline == "plain"
    assert some.single("long") == load(tiny).single("long")
    assert load(tiny).only(["long", "smooth"]).baseline == "smooth"


def test_overrides_take_precedence_over_variants(tiny: Path) -> None:
    recipe = load(tiny, ["training.epochs=2", "seeds=[1]", "description=other"])
    assert recipe.single("long").training.epochs == 2
    assert (recipe.seeds, recipe.description) == ((1,), "other")


def test_overrides_of_a_variant_need_not_fit_other_variants(tiny: Path) -> None:
    recipe = load(tiny, ["objective=cross_entropy"])
    with pytest.raises(InputError, match=r"objective\.smoothing: no such key"):
        load(recipe, ["objective.smoothing=0.1"])
    with pytest.raises(InputError, match=r"variant plain: objective\.smoothing: no such key"):
        load(tiny, ["objective.smoothing=0.1"], "plain")
    assert load(tiny, ["objective.smoothing=0.1"], "smooth").objective == LabelSmoothing(0.1)


@pytest.mark.parametrize(
    ("words", "smoothing"),
    [
        (["objective.smoothing=0.2"], 0.2),
        (["objective=label_smoothing"], 0.3),  # the same class: its fields stay
        (["objective.name=label_smoothing", "objective.smoothing=0.2"], 0.2),
        (["objective.smoothing=0.2", "objective.name=label_smoothing"], 0.2),
        (["objective.smoothing=0.2", "objective=label_smoothing"], 0.2),
        (['objective={name = "label_smoothing", smoothing = 0.2}'], 0.2),
        (["objective.smoothing=0.2", "objective.smoothing=0.4"], 0.4),
    ],
)
def test_overrides_of_an_objective(tiny: Path, words: list[str], smoothing: float) -> None:
    assert load(tiny, words, "smooth").objective == LabelSmoothing(smoothing)


def test_changing_the_class_drops_the_old_fields(tiny: Path) -> None:
    model = load(tiny, ["model=transformer"]).model
    assert type(model).__name__ == "Transformer"
    assert load(tiny, ["model.name=transformer", "model.width=16"]).model.width == 16
    assert load(tiny, ["decoding.wide=greedy"], "plain").decoding["wide"] == load(tiny).decoding["quick"]
    assert load(tiny, ["decoding.third=beam"]).decoding["third"] == Beam()


def test_merge_and_difference_are_inverse(tiny: Path) -> None:
    recipe = load(tiny)
    old = recipe.to_data()
    for variant in recipe.variants:
        new = recipe.single(variant.name).to_data()
        body = {key: new[key] for key in BODY}
        changes = difference(old, body)
        assert {key: merge(old, changes)[key] for key in BODY} == body
    assert difference(old, old) == {}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a=3", 3),
        ("a=.05", 0.05),
        ("a=true", True),
        ("a=none", "none"),
        ("a=[1, 2]", [1, 2]),
        ("a=data/x.tsv", "data/x.tsv"),
        ('a="3"', "3"),
        ("a=x=y", "x=y"),
        ("a=", ""),
        ("a=2024-01-01", "2024-01-01"),
        ("a=3\nb = 4", "3\nb = 4"),  # cannot set a second key
        ("a=!!python/object/apply:os.system [ls]", "!!python/object/apply:os.system [ls]"),
    ],
)
def test_values_of_overrides(word: str, value: Any) -> None:
    found = parse_overrides([word])
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize("word", ["training.epochs", "=3", "a..b=3", ".a=3", "a b=3", "a/b=3", "", "a=\udcff"])
def test_malformed_overrides_are_rejected(tiny: Path, word: str) -> None:
    with pytest.raises(InputError):
        load(tiny, [word])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = [3, 4]", "seeds = [3, 3]", "seeds"),
        ("seeds = [3, 4]", 'baseline = "smoth"', 'baseline: "smoth" is not among the variants; did you mean "smooth"?'),
        ("seeds = [3, 4]", 'name = "../evil"', "name must be a name of letters"),
        ('name = "lstm"', 'name = "lstn"', "got 'lstn'; did you mean \"lstm\"?"),
        ("hidden = 8", '_target_ = "os.system"', "model._target_: no such key"),
        ("hidden = 8", "hidden = -8", "model.hidden must be at least 1, got -8"),
        (
            'validate = "quick"',
            'validate = "qiuck"',
            'training.validate: there is no [decoding.qiuck]; did you mean "quick"?',
        ),
        ('method = "greedy"', 'name = "greedy"', "decoding.quick.method is missing; there are: greedy"),
        ("[decoding.wide]", '[decoding."a/b"]', "decoding must be a name of letters"),
        ('name = "plain"', 'name = "smooth"', 'variants: two have the name "smooth"'),
        ('name = "plain"\n', "", "variants[1] must be a table with a name"),
        ('"cross_entropy" }', '"cross_entropie" }', "variant plain: objective.name must be one of cross_entropy"),
        ("epochs = 5", "epohcs = 5", 'variant long: training.epohcs: no such key; did you mean "training.epochs"?'),
        ('[task]\nname = "pairs"\ntrain = "train.tsv"', "", "task: a table with a name is missing; there are: g2p, "),
        ('train = "train.tsv"', "", "task.train is missing; it must be a string"),
    ],
)  # fmt: skip
def test_errors_name_the_key(tiny: Path, old: str, new: str, message: str) -> None:
    assert old in TINY
    tiny.write_text(TINY.replace(old, new, 1))
    with pytest.raises(InputError) as error:
        load(tiny).single("plain" if "plain" in old + message or "cross" in old else "long")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name = \xff", ":1: this line is not valid UTF-8"),
        (b'name = "x"\n\nx = \xff', ":3: this line is not valid UTF-8"),
        (b"\x80\x04\x95\x1c\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93.", "not valid UTF-8"),
        (b"x = " + b"[" * 5000, "not valid TOML"),
        (b"", "task: a table with a name is missing"),
    ],
)
def test_malformed_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        load(path)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(path))


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        load(tmp_path / "absent.toml")
    with pytest.raises(InputError, match='there is no recipe "g2pp"; did you mean "g2p"'):
        load("g2pp")
    with pytest.raises(InputError, match="there is no recipe"):
        load(tmp_path)


def test_load_reads_run_folders(tmp_path: Path, tiny: Path) -> None:
    single = load(tiny).single("plain", 4)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text(single.to_toml())
    assert load(tmp_path / "run") == single
    assert load(tmp_path / "run").single() == single


def test_toml_round_trip(tiny: Path, tmp_path: Path) -> None:
    check_round_trip(load(tiny), tmp_path)
    check_round_trip(load(tiny).single("long", 7), tmp_path)


def check_round_trip(recipe: Recipe, folder: Path) -> None:
    text = recipe.to_toml()
    path = folder / "again.toml"
    path.write_text(text)
    assert load(path) == recipe == load(recipe) == Recipe.from_data(tomllib.loads(text))
    assert load(path).to_toml() == text


@pytest.mark.parametrize("name", builtin())
def test_builtin_recipes_resolve(name: str, tmp_path: Path) -> None:
    recipe = load(name, OWN_DATA.get(name, []))
    assert recipe.name == name
    assert recipe.description
    assert all(part is not None for part in (recipe.task, recipe.model, recipe.objective))
    again = Recipe.from_data(tomllib.loads(recipe.to_toml()))
    assert again == recipe
    for variant in recipe.variants:
        single = recipe.single(variant.name)
        assert set(needed_variants(single)) <= {other.name for other in recipe.variants}
        assert again.single(variant.name) == single


CONTINUED = """
[[variants]]
name = "plain"

[[variants]]
name = "projected"
training = { warm_start = "variant:plain" }
objective = { name = "kl_projection", teacher = "variant:plain" }
"""


def test_variants_that_need_other_variants(tiny: Path, tmp_path: Path) -> None:
    tiny.write_text(TINY.split("[[variants]]")[0] + CONTINUED)
    recipe = load(tiny).single("projected")
    assert needed_variants(load(tiny).single("plain")) == ()
    assert needed_variants(recipe) == ("plain",)
    with pytest.raises(InputError, match=r"variant projected needs the run plain-3, which is not in .*; train that"):
        check_needed_runs(recipe, tmp_path, 3)
    (tmp_path / "plain-3").mkdir()
    (tmp_path / "plain-3" / "run.json").touch()
    check_needed_runs(recipe, tmp_path, 3)
    resolved = with_paths_resolved(recipe, tmp_path, 3)
    assert resolved.training.warm_start == str(tmp_path / "plain-3")
    assert isinstance(resolved.objective, KLProjection)
    assert resolved.objective.teacher == str(tmp_path / "plain-3")


SMALL = """
seeds = [1, 2]

[task]
name = "palindromes"
size = 50
held_out = 4

[model]
name = "field"
hidden = 4
embedding = 4

[objective]
name = "masked_lm"

[training]
steps = 1
validate = "mask_predict"

[decoding.mask_predict]
method = "mask_predict"
iterations = 1

[[variants]]
name = "plain"

[[variants]]
name = "one"
objective = { hidden = "one" }
"""


def test_a_comparison_resolves_a_recipe_at_most_once_per_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolved = []

    def count(cls: type, table: Any, where: str = "") -> Any:
        resolved.append(cls)
        return build(cls, table, where)

    monkeypatch.setattr("unforced.recipes.recipe.build", count)
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    unforced.compare(path, root=tmp_path / "runs", quiet=True, table=False)
    assert len(list(tmp_path.glob("runs/small/*-[12]"))) == 4
    assert 0 < resolved.count(Training) <= 4 + 1
