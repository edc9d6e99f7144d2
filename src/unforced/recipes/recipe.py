"""Trees of plain data, as TOML files give them: merging, differences, and ``key=value`` words.

Only the shape of a recipe is known here, not its classes: tables with a ``name`` (a decoder's: ``method``) stand for a
class of the catalogue, and the fields of one class mean nothing to another.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import tomli_w

from unforced.errors import InputError, nearest
from unforced.options import Distinct, Natural, NotEmpty, show
from unforced.recipes.fields import build, check_keys, convert, join, pick, to_mapping
from unforced.registry import REGISTRY, name_of
from unforced.training.options import Training

NAMED = ("task", "model", "objective")  # tables that a bare name may stand for

HF = "hf:"

Data = dict[str, Any]


def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> Data:
    """``old`` with the keys of ``new``, table by table; a table that names another class replaces the old one.

    >>> merge({"model": {"name": "lstm", "hidden": 256}}, {"model": {"hidden": 64}})
    {'model': {'name': 'lstm', 'hidden': 64}}
    >>> merge({"model": {"name": "lstm", "hidden": 256}}, {"model": {"name": "transformer"}})
    {'model': {'name': 'transformer'}}
    """
    out = dict(old)
    for key, value in new.items():
        before = out.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping) and same_class(before, value):
            value = merge(before, value)
        out[key] = value
    return out


def same_class(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    return all(new.get(label, old.get(label)) == old.get(label) for label in ("name", "method"))


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Data:
    """The changes that ``merge`` needs to make ``new`` of ``old``.

    >>> difference({"a": 1, "b": {"c": 2, "d": 3}}, {"a": 1, "b": {"c": 2, "d": 4}})
    {'b': {'d': 4}}
    """
    out: Data = {}
    for key, value in new.items():
        before = old.get(key)
        if isinstance(value, Mapping) and isinstance(before, Mapping) and same_class(before, value):
            if inner := difference(before, value):
                out[key] = inner
        elif key not in old or value != before:
            out[key] = value
    return out


def normalize(data: Mapping[str, Any]) -> Data:
    """Write a class that is given by its bare name, ``objective = "cross_entropy"``, as the table it stands for.

    >>> normalize({"model": "hf:models/mine"})
    {'model': {'name': 'huggingface', 'path': 'models/mine'}}
    """
    out = {key: table(key, v) if key in NAMED and isinstance(v, str) else v for key, v in data.items()}
    decoding = out.get("decoding")
    if isinstance(decoding, Mapping):
        out["decoding"] = {k: {"method": v} if isinstance(v, str) else v for k, v in decoding.items()}
    return out


def table(key: str, word: str) -> Data:
    """The table that a word stands for: a name, or for a model also the path of a Hugging Face model behind "hf:"."""
    if key == "model" and word.startswith(HF):
        return {"name": "huggingface", "path": word.removeprefix(HF)}
    return {"name": word}


def parse_overrides(words: Iterable[str]) -> Data:
    """``key=value`` words as one tree: dotted keys, values as TOML spells them, else strings.

    >>> parse_overrides(["training.epochs=3", "objective=label_smoothing", "task.path=data/x.tsv"])
    {'training': {'epochs': 3}, 'objective': {'name': 'label_smoothing'}, 'task': {'path': 'data/x.tsv'}}
    """
    tree: Data = {}
    for word in words:
        key, equals, text = word.partition("=")
        path = key.strip().split(".")
        if not equals or not all(re.fullmatch(r"[A-Za-z0-9_+-]+", part) for part in path):
            raise InputError(f'"{word}" is not of the form key=value')
        branch: Data = {}
        leaf: Data = branch
        for part in path[:-1]:
            leaf[part] = leaf = {}
        leaf[path[-1]] = parse_value(text.strip())
        tree = join_trees(tree, normalize(branch))
    return tree


def join_trees(old: Data, new: Data) -> Data:
    out = dict(old)
    for key, value in new.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = join_trees(out[key], value) if both else value
    return out


def parse_value(text: str) -> Any:
    try:
        text.encode()
        found = tomllib.loads(f"value = {text}")
    except UnicodeEncodeError:
        raise InputError("a key=value word isn't UTF-8") from None
    except tomllib.TOMLDecodeError:
        return float(text) if re.fullmatch(r"[+-]?\.[0-9]+", text) else text  # TOML has no .5
    value = found["value"]
    plain = len(found) == 1 and isinstance(value, bool | int | float | str | list | dict)
    return value if plain else text  # a date, say, is but a string here


def flatten(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Write nested tables as one table with dotted keys.

    >>> flatten({"model": {"name": "lstm", "hidden": 256}})
    {'model.name': 'lstm', 'model.hidden': 256}
    """
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def spell_none(data: Any) -> Any:
    if isinstance(data, Mapping):
        return {key: spell_none(value) for key, value in data.items()}
    if isinstance(data, list):
        return [spell_none(value) for value in data]
    return "none" if data is None else data


# Recipes: a TOML file that names a task, a model, an objective and how to train and decode, and its variants.

KINDS = {"task": "tasks", "model": "models", "objective": "objectives"}
BODY = (*KINDS, "training", "decoding")  # what a variant may change
KEYS = ("name", "description", "seeds", "baseline", *BODY, "variants")
Seeds = Annotated[tuple[Natural, ...], NotEmpty(), Distinct()]
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")  # names that become names of files


@dataclass(frozen=True)
class Variant:
    """A named set of changes to a recipe, as a file spells them."""

    name: str
    changes: Data = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe. In the record of a run, a part of the user's own (a model, say) is not written and reads None.

    >>> recipe = load("g2p", ["training.keep=1"])
    >>> recipe.training.keep, recipe.baseline
    (1, 'cross_entropy')
    >>> Recipe.from_data(tomllib.loads(recipe.to_toml())) == recipe
    True
    """

    name: str
    description: str
    seeds: tuple[int, ...]
    baseline: str
    task: Any
    model: Any
    objective: Any
    training: Training
    decoding: dict[str, Any]
    variants: tuple[Variant, ...]

    def single(self, variant: str | None = None, seed: int | None = None) -> "Recipe":
        """Return the recipe of one run: of one variant, with one seed.

        Without ``variant`` the recipe stays as it is, and the run is named after its objective (or after its only variant
        if that changes nothing). Without ``seed`` the first one is used.
        """
        seeds = convert(Seeds, [self.seeds[0] if seed is None else seed], "seeds")
        if variant is not None and find_variant(self.variants, variant).changes:
            return replace(build_variant(self.to_data(), variant), seeds=seeds)
        only = [v.name for v in self.variants if not v.changes and len(self.variants) == 1]
        label = variant or (only[0] if only else name_of("objectives", self.objective) or "own")
        return replace(self, seeds=seeds, baseline=label, variants=(Variant(label),))

    def only(self, names: Sequence[str]) -> "Recipe":
        """Return the recipe with these variants alone."""
        if not names:
            raise InputError(f"{self.name}: variants: at least one must be chosen")
        variants = tuple(find_variant(self.variants, name) for name in dict.fromkeys(names))
        kept = self.baseline in {variant.name for variant in variants}
        return replace(self, variants=variants, baseline=self.baseline if kept else variants[0].name)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Recipe":
        """Build the recipe that plain data describe; raise `InputError` with the key that is wrong."""
        check_keys(data, KEYS)
        parts: Data = {}
        for key, kind in KINDS.items():
            parts[key] = pick(kind, data[key], key) if key in data else None
        if parts["task"] is not None and (reading := getattr(parts["model"], "reading", None)):
            parts["task"] = reading(parts["task"])  # by the model's own tokenizer
        training = build(Training, data.get("training", {}), "training")
        tables = data.get("decoding", {"greedy": {"method": "greedy"}})
        if not isinstance(tables, Mapping):
            raise InputError(f"decoding must be a table of decoders, got {show(tables)}")
        decoding = {
            check_name(name, "decoding"): pick("decoders", table, join("decoding", name), "method")
            for name, table in tables.items()
        }
        variants = read_variants(data.get("variants", []))
        variants = variants or [Variant(name_of("objectives", parts["objective"]) or "own")]
        baseline = convert(str, data.get("baseline", ""), "baseline") or variants[0].name
        find_variant(variants, baseline, "baseline")
        return cls(
            name=check_name(data.get("name", "recipe"), "name"),
            description=convert(str, data.get("description", ""), "description"),
            seeds=convert(Seeds, data.get("seeds", [1]), "seeds"),
            baseline=baseline,
            training=training,
            decoding=decoding,
            variants=tuple(variants),
            **parts,
        )

    def to_data(self) -> Data:
        """The recipe as plain data with every default filled in; `from_data` builds an equal recipe from it."""
        data: Data = {"name": self.name, "description": self.description, "seeds": list(self.seeds)}
        data["baseline"] = self.baseline
        for key, kind in KINDS.items():
            value = getattr(self, key)
            value = getattr(value, "inner", value)  # a task that is read through the model's tokenizer
            if (name := name_of(kind, value)) is not None:
                data[key] = {"name": name, **to_mapping(value)}
        data["training"] = to_mapping(self.training)
        data["decoding"] = {
            name: {"method": method, **to_mapping(decoder)}
            for name, decoder in self.decoding.items()
            if (method := name_of("decoders", decoder)) is not None
        }
        data["variants"] = [{"name": v.name, **v.changes} for v in self.variants]
        return data

    def to_toml(self) -> str:
        """The text of a recipe file that loads as this recipe; None is written as "none"."""
        text = tomli_w.dumps(spell_none(self.to_data()))
        return re.sub(r"\[\n((?:    [\w.+-]+,\n)+)\]", lambda list: f"[{' '.join(list[1].split())[:-1]}]", text)


def load(
    source: str | Path | Recipe, overrides: Iterable[str] = (), variant: str | None = None, seed: int | None = None
) -> Recipe:
    """Load a recipe by its name, from a TOML file or from a run folder: file, then ``variant``, then ``overrides``.

    The data are merged first and built once. Other variants are kept as data; `Recipe.single` builds them.
    """
    where = source.name if isinstance(source, Recipe) else str(source)
    try:
        changes = parse_overrides(overrides)
        if isinstance(source, Recipe) and not changes and variant is None:
            recipe = source
        else:
            data = override(source.to_data() if isinstance(source, Recipe) else read(source), changes)
            recipe = Recipe.from_data(data) if variant is None else build_variant(data, variant)
        check_complete(recipe)
        return recipe if seed is None else replace(recipe, seeds=convert(Seeds, [seed], "seeds"))
    except InputError as error:
        raise InputError(f"{where}: {error}" if not str(error).startswith(where) else str(error)) from None


def override(data: Data, changes: Data) -> Data:
    """Return the data of a recipe with ``changes``, which also win over what its variants change."""
    check_keys(changes, KEYS)
    if "variants" in changes:
        raise InputError("variants: a list of variants can't be given as key=value")
    old, body = ({key: value for key, value in tree.items() if key in BODY} for tree in (data, changes))
    base = merge(data, changes)
    if body and "variants" in data:
        base["variants"] = [
            {"name": v.name, **difference(base, merge(merge(old, v.changes), body))}
            for v in read_variants(data["variants"])
        ]
    return base


def build_variant(data: Data, name: str) -> Recipe:
    """Build the recipe with the changes of one variant, which is then the only one."""
    changes = find_variant(read_variants(data.get("variants", [])), name).changes
    try:
        return Recipe.from_data({**merge(data, changes), "variants": [{"name": name}], "baseline": name})
    except InputError as error:
        raise InputError(f"variant {name}: {error}") from None


def check_complete(recipe: Recipe) -> None:
    """Raise `InputError` if parts are missing, as in the recipe of a run with objects of the user's own."""
    for key, kind in KINDS.items():
        if getattr(recipe, key) is None:
            raise InputError(f"{key}: a table with a name is missing; {nearest('', REGISTRY[kind])}")
    judge, decoders = recipe.training.validate, recipe.decoding
    if judge not in decoders:
        raise InputError(f"training.validate: there is no [decoding.{judge}]; {nearest(judge, decoders)}")


def read_variants(tables: Any) -> list[Variant]:
    if not isinstance(tables, Sequence) or isinstance(tables, str):
        raise InputError("variants must be a list of tables ([[variants]])")
    variants: list[Variant] = []
    for i, table in enumerate(tables):
        if not isinstance(table, Mapping) or "name" not in table:
            raise InputError(f"variants[{i}] must be a table with a name")
        name = check_name(table["name"], f"variants[{i}].name")
        changes = {key: value for key, value in table.items() if key != "name"}
        check_keys(changes, BODY, f"variant {name}")
        variants.append(Variant(name, spell_none(normalize(changes))))
        if name in {v.name for v in variants[:-1]}:
            raise InputError(f'variants: there are two of the name "{name}"')
    return variants


def find_variant(variants: Iterable[Variant], name: str, where: str = "variant") -> Variant:
    by_name = {variant.name: variant for variant in variants}
    if not by_name:
        raise InputError(f'{where}: the recipe has no variants, so there is no "{name}" among them')
    if name not in by_name:
        raise InputError(f'{where}: "{name}" is not among the variants; {nearest(name, by_name)}')
    return by_name[name]


def check_name(name: Any, where: str) -> str:
    if not isinstance(name, str) or not SAFE.fullmatch(name):
        raise InputError(f"{where} must be a name of letters, digits and . _ + -, got {show(name)}")
    return name


def builtin() -> dict[str, Any]:
    """The recipes that come with the package, by name."""
    folder = resources.files("unforced").joinpath("recipes", "builtin")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {file.name.removesuffix(".toml"): file for file in files}


def read(source: str | Path) -> Data:
    """The plain data of a recipe: a built-in one by name, else a TOML file or a folder that holds ``recipe.toml``."""
    known = builtin()
    if isinstance(source, str) and source in known:
        return parse(known[source].read_bytes(), source, source)
    path = Path(source)
    if path.is_dir() and (path / "recipe.toml").is_file():
        path = path / "recipe.toml"
    if path.suffix != ".toml" and not path.is_file():
        raise InputError(f'there is no recipe "{source}"; {nearest(str(source), known)}')
    try:
        return parse(path.read_bytes(), str(path), path.stem)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def parse(content: bytes, where: str, stem: str) -> Data:
    try:
        data = tomllib.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"{where}:{line}: the line isn't UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{where}: this isn't TOML: {error}") from None
    return normalize({"name": stem, **data})
