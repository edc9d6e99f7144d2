"""Recipes: read them from TOML, change them by ``key=value`` words and by variants, and build their objects.

A recipe names a task, a model and an objective, says how to train and decode, and lists variants: named sets of
changes. All changes are made to plain data (nested tables), which are built once at the end.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import tomli_w

from unforced.errors import InputError, closest, nearest
from unforced.options import Distinct, Natural, NotEmpty, show
from unforced.recipes.fields import build, check_keys, convert, fields_of, join, pick, to_mapping
from unforced.registry import REGISTRY, name_of, resolve
from unforced.training.options import Training

KINDS = {"task": "tasks", "model": "models", "objective": "objectives"}  # key -> kind in the registry
BODY = (*KINDS, "training", "decoding")  # keys that a variant may change
KEYS = ("name", "description", "seeds", "baseline", *BODY, "variants")
HUGGING_FACE = "hf:"  # model = "hf:PATH"
REFERENCE = "variant:"  # "variant:NAME" stands for the run of that variant with the same seed
SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")  # names that become file names
Seeds = Annotated[tuple[Natural, ...], NotEmpty(), Distinct()]
DEPTH = 20  # most parts of a dotted key
Data = dict[str, Any]

# Plain data


def merge(old: Mapping[str, Any], new: Mapping[str, Any]) -> Data:
    """Return ``old`` updated with ``new``, table by table; a table that names another class replaces the old one.

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
    """Return whether a change to the table ``old`` keeps the class that it names, if it names one."""
    return all(new.get(key, old[key]) == old[key] for key in ("name", "method") if key in old)


def difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> Data:
    """Return the changes with which `merge` turns ``old`` into ``new``.

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
    """Replace bare names, as in ``objective = "cross_entropy"``, by tables.

    >>> normalize({"model": "hf:models/mine"})
    {'model': {'name': 'huggingface', 'path': 'models/mine'}}
    """
    out = {key: {"name": value} if key in KINDS and isinstance(value, str) else value for key, value in data.items()}
    model, decoding = data.get("model"), data.get("decoding")
    if isinstance(model, str) and model.startswith(HUGGING_FACE):
        out["model"] = {"name": "huggingface", "path": model.removeprefix(HUGGING_FACE)}
    if isinstance(decoding, Mapping):
        out["decoding"] = {k: {"method": v} if isinstance(v, str) else v for k, v in decoding.items()}
    return out


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
    """Replace None by "none": TOML has no null."""
    if isinstance(data, Mapping):
        return {key: spell_none(value) for key, value in data.items()}
    if isinstance(data, list):
        return [spell_none(value) for value in data]
    return "none" if data is None else data


# Overrides


def parse_overrides(words: Iterable[str]) -> Data:
    """Parse ``key=value`` words with dotted keys; values are TOML, or else strings.

    >>> parse_overrides(["training.epochs=3", "objective=label_smoothing", "task.path=data/x.tsv"])
    {'training': {'epochs': 3}, 'objective': {'name': 'label_smoothing'}, 'task': {'path': 'data/x.tsv'}}
    """
    overrides: Data = {}
    for word in words:
        key, equals, text = word.partition("=")
        path = key.strip().split(".")
        if not equals or len(path) > DEPTH or not all(re.fullmatch(r"[A-Za-z0-9_+-]+", part) for part in path):
            raise InputError(f"{show(word)} is not of the form key=value")
        branch: Data = {}
        leaf: Data = branch
        for part in path[:-1]:
            leaf[part] = leaf = {}
        leaf[path[-1]] = parse_value(text.strip())
        overrides = merge(overrides, normalize(branch))
    return overrides


def parse_value(text: str) -> Any:
    """Parse a TOML value; other text is a string."""
    try:
        text.encode()
        found = tomllib.loads(f"value = {text}")
    except UnicodeEncodeError:
        raise InputError("a key=value argument is not valid UTF-8") from None
    except RecursionError:
        raise InputError("a key=value argument is nested too deeply") from None
    except (tomllib.TOMLDecodeError, ValueError):  # numbers of thousands of digits are a ValueError
        return float(text) if re.fullmatch(r"[+-]?\.[0-9]+", text) else text  # .5 is not TOML
    value = found["value"]
    plain = len(found) == 1 and isinstance(value, bool | int | float | str | list | dict)
    return value if plain else text  # dates are strings


# Recipes


@dataclass(frozen=True)
class Variant:
    """A named set of changes to a recipe."""

    name: str
    changes: Data = field(default_factory=dict)  # plain data, as in a recipe file


@dataclass(frozen=True)
class Recipe:
    """A resolved recipe: its parts are objects.

    Objects of unregistered classes (your own model, for example) are left out of a run's ``recipe.toml`` and read as
    None.

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
        """Return the recipe of one run: of one variant and one seed.

        Args:
            variant: By default the recipe without a variant's changes, named after its objective (or after its only
                variant if that has no changes).
            seed: By default the first seed.
        """
        seeds = convert(Seeds, [self.seeds[0] if seed is None else seed], "seeds")
        if variant is not None and find_variant(self.variants, variant).changes:
            return replace(build_variant(self.to_data(), variant), seeds=seeds)
        only = self.variants[0] if len(self.variants) == 1 else None
        own = only.name if only is not None and not only.changes else name_of("objectives", self.objective) or "own"
        label = variant or own
        return replace(self, seeds=seeds, baseline=label, variants=(Variant(label),))

    def only(self, names: Sequence[str]) -> "Recipe":
        """Return the recipe with only these variants."""
        if not names:
            raise InputError(f"{self.name}: choose at least one variant")
        variants = tuple(find_variant(self.variants, name) for name in dict.fromkeys(names))
        kept = self.baseline in {variant.name for variant in variants}
        return replace(self, variants=variants, baseline=self.baseline if kept else variants[0].name)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> "Recipe":
        """Build the recipe that plain data describe; raise `InputError` naming the key that is wrong."""
        from unforced.protocols import SupportsReading  # imports torch

        check_keys(data, KEYS)
        parts: Data = {}
        for key, kind in KINDS.items():
            parts[key] = pick(kind, data[key], key) if key in data else None
        if parts["task"] is not None and isinstance(parts["model"], SupportsReading):
            parts["task"] = parts["model"].reading(parts["task"])  # with the model's own tokenizer
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
        """Return plain data with every default filled in; `from_data` builds an equal recipe from it."""
        from unforced.protocols import WrapsTask  # imports torch

        data: Data = {"name": self.name, "description": self.description, "seeds": list(self.seeds)}
        data["baseline"] = self.baseline
        for key, kind in KINDS.items():
            value = getattr(self, key)
            value = value.inner if isinstance(value, WrapsTask) else value
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
        """Return the text of a recipe file that loads as this recipe."""
        text = tomli_w.dumps(spell_none(self.to_data()))
        # lists of numbers on one line
        return re.sub(r"\[\n((?:    [\w.+-]+,\n)+)\]", lambda match: f"[{' '.join(match[1].split())[:-1]}]", text)


def load(
    source: str | Path | Recipe | Mapping[str, Any],
    overrides: Iterable[str] = (),
    variant: str | None = None,
    seed: int | None = None,
) -> Recipe:
    """Load a recipe by its name, from a TOML file, from a run folder or from plain data.

    Apply ``overrides`` after the changes of ``variant``. The plain data are merged first and built once; other variants
    stay plain data until `Recipe.single` builds them.
    """
    where = source.name if isinstance(source, Recipe) else "recipe" if isinstance(source, Mapping) else str(source)
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
    """Return the data of a recipe with ``changes``, which also take precedence over the changes of its variants."""
    for path in flatten(changes):
        check_first_key(path, data)
    if "variants" in changes:
        raise InputError("variants can't be set by key=value; edit the recipe file")
    old, body = ({key: value for key, value in each.items() if key in BODY} for each in (data, changes))
    base = merge(data, changes)
    if body and "variants" in data:
        base["variants"] = [
            {"name": v.name, **difference(base, merge(merge(old, v.changes), body))}
            for v in read_variants(data["variants"])
        ]
    return base


def check_first_key(path: str, data: Data) -> None:
    """Raise `InputError` if a dotted key does not begin with a key of recipes; suggest a field with its last name."""
    first, last = path.split(".")[0], path.split(".")[-1]
    if first in KEYS:
        return
    named = [(key, kind, data.get(key, {}).get("name")) for key, kind in KINDS.items()]
    classes = [("training", Training), *((key, resolve(kind, name)) for key, kind, name in named if name)]
    fields = {field.name: f"{key}.{field.name}" for key, cls in reversed(classes) for field in fields_of(cls)}
    inside = closest(last, fields)
    if closest(first, KEYS) is None and inside is not None:
        raise InputError(f'{path}: no such key; did you mean "{fields[inside]}"?')
    check_keys({first: None}, KEYS)


def build_variant(data: Data, name: str) -> Recipe:
    """Build the recipe with the changes of a variant, which becomes its only one."""
    changes = find_variant(read_variants(data.get("variants", [])), name).changes
    try:
        return Recipe.from_data({**merge(data, changes), "variants": [{"name": name}], "baseline": name})
    except InputError as error:
        raise InputError(f"variant {name}: {error}") from None


def check_complete(recipe: Recipe) -> None:
    """Raise `InputError` if the task, the model, the objective or the decoder for validation is missing."""
    for key, kind in KINDS.items():
        if getattr(recipe, key) is None:
            raise InputError(f"{key}: a table with a name is missing; {nearest('', REGISTRY[kind])}")
    decoder, known = recipe.training.validate, recipe.decoding
    if decoder not in known:
        raise InputError(f"training.validate: there is no [decoding.{decoder}]; {nearest(decoder, known)}")


# Variants


def read_variants(tables: Any) -> list[Variant]:
    """Read the variants of a recipe from plain data."""
    if not isinstance(tables, Sequence) or isinstance(tables, str):
        raise InputError("variants must be a list of tables ([[variants]])")
    variants: list[Variant] = []
    for i, table in enumerate(tables):
        if not isinstance(table, Mapping) or "name" not in table:
            raise InputError(f"variants[{i}] must be a table with a name")
        name = check_name(table["name"], f"variants[{i}].name")
        changes = {key: value for key, value in table.items() if key != "name"}
        try:
            check_keys(changes, BODY)
        except InputError as error:
            raise InputError(f"variant {name}: {error}") from None
        variants.append(Variant(name, spell_none(normalize(changes))))
        if name in {v.name for v in variants[:-1]}:
            raise InputError(f'variants: two have the name "{name}"; rename one of them')
    return variants


def find_variant(variants: Iterable[Variant], name: str, where: str = "variant") -> Variant:
    """Return the variant of this name."""
    by_name = {variant.name: variant for variant in variants}
    if name not in by_name:
        raise InputError(f'{where}: "{name}" is not among the variants; {nearest(name, by_name)}')
    return by_name[name]


# Variants that start from the weights of another one (``training.warm_start = "variant:NAME"``) or learn from its model
# (a field of the objective, such as ``teacher = "variant:NAME"``)


def needed_variants(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of the variants that this one needs, the one that it starts from first."""
    values = [recipe.training.warm_start or "", *_text_fields(recipe.objective).values()]
    return tuple(dict.fromkeys(value.removeprefix(REFERENCE) for value in values if value.startswith(REFERENCE)))


def with_paths_resolved(recipe: Recipe, folder: Path, seed: int) -> Recipe:
    """Replace each "variant:NAME" by the path of its run with this seed in ``folder``."""

    def path(value: str) -> str:
        return str((folder / f"{value.removeprefix(REFERENCE)}-{seed}").absolute())

    start, training, objective = recipe.training.warm_start, recipe.training, recipe.objective
    if start is not None and start.startswith(REFERENCE):
        training = replace(training, warm_start=path(start))
    texts = _text_fields(objective).items()
    if changes := {key: path(value) for key, value in texts if value.startswith(REFERENCE)}:
        objective = replace(objective, **changes)
    return replace(recipe, training=training, objective=objective)


def check_needed_runs(recipe: Recipe, folder: Path, seed: int) -> None:
    """Raise `InputError` if ``folder`` lacks the run of a variant that this one needs."""
    for name in needed_variants(recipe):
        if not (folder / f"{name}-{seed}" / "run.json").is_file():
            raise InputError(
                f"{recipe.name}: variant {recipe.baseline} needs the run {name}-{seed}, which is not in {folder}; "
                "train that variant first, or use compare, which trains both"
            )


def _text_fields(objective: Any) -> dict[str, str]:
    """Return the fields of an objective that are text; none if it is not a dataclass."""
    if not is_dataclass(objective):
        return {}
    values = {field.name: getattr(objective, field.name) for field in fields(objective) if field.init}
    return {key: value for key, value in values.items() if isinstance(value, str)}


# Files


def check_name(name: Any, where: str) -> str:
    """Return a name that can be part of a file name, or raise `InputError`."""
    if not isinstance(name, str) or not SAFE.fullmatch(name):
        raise InputError(f"{where} must be a name of letters, digits and . _ + -, got {show(name)}")
    return name


def builtin() -> dict[str, Any]:
    """Return the files of the recipes in the package, by name."""
    folder = resources.files("unforced").joinpath("recipes", "builtin")
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".toml")), key=lambda f: f.name)
    return {file.name.removesuffix(".toml"): file for file in files}


def read(source: str | Path | Mapping[str, Any]) -> Data:
    """Read the plain data of a built-in recipe, of a TOML file or of a folder with ``recipe.toml``."""
    if isinstance(source, Mapping):
        return normalize({"name": "recipe", **source})
    known, path, content = builtin(), Path(source), b""
    own = known.get(source) if isinstance(source, str) else None
    try:
        if (path / "recipe.toml").is_file():
            path = path / "recipe.toml"
        if own is None and path.suffix != ".toml" and not path.is_file():
            raise InputError(f'there is no recipe "{source}"; {_advise(str(source), known)}')
        content = (own or path).read_bytes()
        data = tomllib.loads(content.decode("utf-8"))
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise InputError(f"{path}:{line}: this line is not valid UTF-8") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid TOML: {error}") from None
    return normalize({"name": path.stem, **data})  # a file without a name has that of the file


def _advise(name: str, known: dict[str, Any]) -> str:
    """Suggest recipes for a name that none has: those of a task, and those for users' own files."""
    if (near := closest(name, known)) is not None and not any(name in classes for classes in REGISTRY.values()):
        return f'did you mean "{near}"?'
    tasks = {recipe: read(recipe)["task"] for recipe in known}
    own = ", ".join(recipe for recipe, task in tasks.items() if task.get("train") == "")
    same = ", ".join(recipe for recipe, task in tasks.items() if task["name"] == name)
    ready = f"those of the task {name} are {same}; " if same else ""
    return f'{ready}for your own files there are {own}; "unforced list recipes" shows all'
