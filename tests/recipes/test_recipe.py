"""Recipes: loading, merging, overrides, variants, the way back to TOML, and every fault with its nearest key."""

import tomllib
from collections.abc import Iterator
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from unforced.cli import main
from unforced.decoding.beam import Beam
from unforced.errors import InputError
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.label_smoothing import LabelSmoothing
from unforced.recipes.recipe import BODY, Recipe, builtin, difference, load, merge, parse_overrides, read

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

# Recipes for a user's own files say which on the command line.
OWN_DATA = {name: ["task.train=train.tsv"] for name in ("pairs", "tagging", "language")}


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def test_a_recipe_is_resolved(tiny: Path) -> None:
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


def test_single_runs(tiny: Path) -> None:
    recipe = load(tiny)
    plain = recipe.single("plain", 9)
    assert (plain.objective, plain.seeds, plain.baseline) == (CrossEntropy(), (9,), "plain")
    long = recipe.single("long")
    assert (long.training.epochs, long.decoding["wide"].beam, long.seeds) == (5, 9, (3,))
    assert recipe.single().baseline == "label_smoothing"
    assert plain.single() == plain
    with pytest.raises(InputError, match='variant: "plian" is not among the variants; did you mean "plain"'):
        recipe.single("plian")


def test_the_chosen_variant_becomes_the_recipe(tiny: Path) -> None:
    recipe = load(tiny, [], "plain", 9)
    assert (recipe.objective, recipe.baseline, recipe.seeds) == (CrossEntropy(), "plain", (9,))
    assert recipe.single() == recipe == load(tiny).single("plain", 9)
    some = load(tiny).only(["plain", "long"])
    assert some.baseline == "plain"
    assert some.single("long") == load(tiny).single("long")
    assert load(tiny).only(["long", "smooth"]).baseline == "smooth"


def test_overrides_win_over_variants(tiny: Path) -> None:
    recipe = load(tiny, ["training.epochs=2", "seeds=[1]", "description=other"])
    assert recipe.single("long").training.epochs == 2
    assert (recipe.seeds, recipe.description) == ((1,), "other")


def test_overrides_of_a_variant_need_not_fit_the_recipe(tiny: Path) -> None:
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
def test_overriding_an_objective(tiny: Path, words: list[str], smoothing: float) -> None:
    assert load(tiny, words, "smooth").objective == LabelSmoothing(smoothing)


def test_switching_the_class_drops_the_old_fields(tiny: Path) -> None:
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
        ("a=1e-3", 1e-3),
        ("a=.05", 0.05),
        ("a=-.5", -0.5),
        ("a=.", "."),
        ("a=true", True),
        ("a=True", "True"),
        ("a=none", "none"),
        ("a=[1, 2]", [1, 2]),
        ("a=data/x.tsv", "data/x.tsv"),
        ('a="3"', "3"),
        ("a=x=y", "x=y"),
        ("a=", ""),
        ("a= 3 ", 3),
        ("a=2024-01-01", "2024-01-01"),
        ("a=3\nb = 4", "3\nb = 4"),  # nothing else can be slipped in
        ("a=!!python/object/apply:os.system [ls]", "!!python/object/apply:os.system [ls]"),
    ],
)
def test_values_of_overrides(word: str, value: Any) -> None:
    found = parse_overrides([word])
    assert found == {"a": value}
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize("word", ["training.epochs", "=3", "a..b=3", ".a=3", "a b=3", "a/b=3", "", "a=\udcff"])
def test_overrides_that_are_none(tiny: Path, word: str) -> None:
    with pytest.raises(InputError):
        load(tiny, [word])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seeds = [3, 4]", "seeds = []", "seeds"),
        ("seeds = [3, 4]", "seeds = [3, 3]", "seeds"),
        ("seeds = [3, 4]", "seeds = [-1]", "seeds"),
        ("seeds = [3, 4]", "seeds = 3", "seeds must be a list (each a whole number of at least 0)"),
        ("seeds = [3, 4]", 'baseline = "smoth"', 'baseline: "smoth" is not among the variants; did you mean "smooth"?'),
        ("seeds = [3, 4]", 'name = "../evil"', "name must be a name of letters"),
        ("seeds = [3, 4]", "name = 3", "name must be a name of letters"),
        ("seeds = [3, 4]", '_target_ = "os.system"', "_target_: no such key"),
        ('name = "lstm"', 'name = "lstn"', "got 'lstn'; did you mean \"lstm\"?"),
        ('name = "lstm"', 'name = ["lstm"]', "model.name must be one of lstm, transformer"),
        ('name = "lstm"', '_target_ = "os.system"', "model.name is missing; there are: lstm"),
        ("hidden = 8", '_target_ = "os.system"', "model._target_: no such key"),
        ("hidden = 8", "hidden = 8.5", "model.hidden must be a whole number"),
        ("hidden = 8", "hidden = -8", "model.hidden must be at least 1, got -8"),
        ("smoothing = 0.3", "smoothing = 3", "objective.smoothing must be at least 0 and below 1, got 3.0"),
        ('validate = "quick"', 'validate = "qiuck"', 'training.validate: there is no [decoding.qiuck]; did you mean "quick"?'),
        ('method = "greedy"', 'method = "greddy"', "decoding.quick.method must be one of greedy"),
        ('method = "greedy"', 'name = "greedy"', "decoding.quick.method is missing; there are: greedy"),
        ("[decoding.wide]", '[decoding."a/b"]', "decoding must be a name of letters"),
        ('name = "plain"', 'name = "smooth"', 'variants: there are two of the name "smooth"'),
        ('name = "plain"', 'name = "a/b"', "variants[1].name must be a name of letters"),
        ('name = "plain"\n', "", "variants[1] must be a table with a name"),
        ("objective = {", "objectiv = {", 'variant plain.objectiv: no such key; did you mean "objective"?'),
        ('"cross_entropy" }', '"cross_entropie" }', "variant plain: objective.name must be one of cross_entropy"),
        ("epochs = 5", "epohcs = 5", 'variant long: training.epohcs: no such key; did you mean "epochs"?'),
        ("[[variants]]", "[variants]", "this isn't TOML"),
        ("[model]", "[modle]", 'modle: no such key; did you mean "model"?'),
        ("[model]\nname", "[model.x]\nname", "model.name is missing"),
        ('[task]\nname = "pairs"\ntrain = "train.tsv"', "", "task: a table with a name is missing; there are: g2p, "),
        ('train = "train.tsv"', "", "task.train is missing; it must be a string"),
        ("epochs = 1", "epochs = 1 2", "this isn't TOML"),
    ],
)  # fmt: skip
def test_faults(tiny: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str) -> None:
    assert old in TINY
    tiny.write_text(TINY.replace(old, new, 1))
    assert main(["show", str(tiny)]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.startswith(f"unforced: {tiny}: ")
    assert err.count("\n") == 1
    assert out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"name = \xff", ":1: the line isn't UTF-8"),
        (b'name = "x"\n\nx = \xff', ":3: the line isn't UTF-8"),
        (b"\x80\x04\x95\x1c\x00\x00\x00\x8c\x05posix\x94\x8c\x06system\x94\x93.", "isn't UTF-8"),
        (b"cos\nsystem\n(S'echo'\ntR.", "this isn't TOML"),
        (b"!!python/object/apply:os.system ['echo']", "this isn't TOML"),
        (b"name: !!python/name:os.system", "this isn't TOML"),
        (b"\xef\xbb\xbfname = 1", "this isn't TOML"),
        (b"a = 1\na = 2", "this isn't TOML"),
        (b"x = " + b"[" * 5000, "this isn't TOML"),
        (b"", "task: a table with a name is missing"),
    ],
)
def test_files_that_are_no_recipes(tmp_path: Path, content: bytes, message: str) -> None:
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


def test_a_run_folder_is_a_recipe(tmp_path: Path, tiny: Path) -> None:
    single = load(tiny).single("plain", 4)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.toml").write_text(single.to_toml())
    assert load(tmp_path / "run") == single
    assert load(tmp_path / "run").single() == single


def test_round_trip(tiny: Path, tmp_path: Path) -> None:
    check_round_trip(load(tiny), tmp_path)
    check_round_trip(load(tiny).single("long", 7), tmp_path)


def check_round_trip(recipe: Recipe, folder: Path) -> None:
    text = recipe.to_toml()
    path = folder / "again.toml"
    path.write_text(text)
    assert load(path) == recipe == load(recipe) == Recipe.from_data(tomllib.loads(text))
    assert load(path).to_toml() == text


@pytest.mark.parametrize("name", builtin())
def test_each_builtin_recipe(name: str, tmp_path: Path) -> None:
    recipe = load(name, OWN_DATA.get(name, []))
    assert recipe.name == name
    assert recipe.description
    assert all(part is not None for part in (recipe.task, recipe.model, recipe.objective))
    check_round_trip(recipe, tmp_path)
    for variant in recipe.variants:
        check_round_trip(recipe.single(variant.name), tmp_path)


def paths(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all keys in nested tables and lists of tables."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in items:
        if isinstance(key, str):
            yield (*at, key)
        yield from paths(value, (*at, key))


def misspell(data: Any, path: tuple[Any, ...]) -> Any:
    """The same tables with two neighbouring letters of one key exchanged (or one letter doubled)."""
    key, *rest = path
    if rest:
        changed = misspell(data[key], tuple(rest))
        if isinstance(data, list):
            return [changed if i == key else item for i, item in enumerate(data)]
        return {k: changed if k == key else v for k, v in data.items()}
    swapped = key[:1] + key[2:3] + key[1:2] + key[3:]
    wrong = swapped if swapped != key else key + key[-1]
    return {wrong if k == key else k: v for k, v in data.items()}


def check_misspelling(data: Any, place: tuple[Any, ...], path: Path, words: list[str]) -> str:
    path.write_text(tomli_w.dumps(misspell(data, place)))
    with redirect_stderr(StringIO()) as err:
        assert main(["show", str(path), *words]) == 2, place
    said = err.getvalue()
    assert "no such key" in said or "is missing" in said or "with a name" in said, (place, said)
    assert str(place[-1]) in said.split("no such key")[-1], (place, said)
    return said


@pytest.mark.parametrize("name", builtin())
def test_every_misspelt_key_names_the_nearest(name: str, tmp_path: Path) -> None:
    data = read(name)
    for place in paths(data):
        if place[-2:-1] != ("decoding",):  # below it are names of the user's choosing
            check_misspelling(data, place, tmp_path / f"{name}.toml", OWN_DATA.get(name, []))


def test_every_misspelt_field_names_the_nearest(tmp_path: Path) -> None:
    """The same with all defaults written out, once for each class of the recipes."""
    seen = set()
    for name in builtin():
        words = OWN_DATA.get(name, [])
        data = tomllib.loads(load(name, words).to_toml())
        for place in paths(data):
            table = data[place[0]]
            label = table.get("name") if isinstance(table, dict) else None
            if place[0] == "decoding" and len(place) > 2:
                label = table[place[1]]["method"]
            known = (place[0], label, *place[2 if place[0] == "decoding" else 1 :])
            if known not in seen and place[0] != "variants" and place[-2:-1] != ("decoding",):
                seen.add(known)
                check_misspelling(data, place, tmp_path / f"{name}.toml", words)
    assert len(seen) > 60
