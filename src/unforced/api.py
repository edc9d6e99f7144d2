"""The Python API: the commands of the command line, and functions for a user's own models and training loops."""

import dataclasses
import os
import shlex
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

import torch
from torch import nn

from unforced import registry
from unforced.errors import InputError, nearest
from unforced.huggingface.decoder import WrappedModel
from unforced.options import Options, check_value, checked
from unforced.protocols import (
    Codec,
    Decoder,
    FittedTask,
    HasCodec,
    ModelSpec,
    Objective,
    Sampler,
    Split,
    SupportsReading,
    Task,
    WrapsTask,
)
from unforced.protocols import fitted as fit_objective
from unforced.recipes import recipe as recipes
from unforced.recipes.fields import build, pick
from unforced.recipes.recipe import Recipe
from unforced.training import evaluation, trainer
from unforced.training.loading import Loaded, OwnModel, fastest_device, load, read_recipe
from unforced.training.options import Training
from unforced.training.progress import Display
from unforced.training.run_folder import RunFolder
from unforced.types import Batch, Encoded, Example, Hypotheses

if TYPE_CHECKING:
    from unforced.chains.results import ChainSummary
    from unforced.chains.scoring import Score
    from unforced.diagnosis.diagnose import Diagnosis

RUNS = Path("runs")
Table = Mapping[str, Any]  # a name and fields, as in a recipe


# Objects by name


@checked
def objective(name: str, **fields: Any) -> Objective:
    """Return a registered objective; ``unforced list objectives --json`` shows the fields.

    >>> objective("label_smoothing", smoothing=0.2)
    LabelSmoothing(smoothing=0.2)
    """
    found: Objective = _build("objectives", name, fields)
    return found


@checked
def task(name: str, **fields: Any) -> Task:
    """Return a registered task. A list of examples can take the place of a file.

    >>> task("pairs", train=[("a b", "b a"), ("c d", "d c"), ("e f", "f e")]).read("test")
    [Example(source='e f', target='f e', references=())]
    """
    found: Task = _build("tasks", name, fields)
    return found


@checked
def model(name: str, **fields: Any) -> ModelSpec:
    """Return the specification of a registered model; ``.build(sizes)`` returns the network."""
    found: ModelSpec = _build("models", name, fields)
    return found


def _build(kind: str, name: str, fields: Mapping[str, Any]) -> Any:
    return build(registry.resolve(kind, name), fields, name)


def _object(kind: str, hint: Any, value: Any) -> Any:
    """Return an object of a kind, or the object that a name or a table with a name stands for."""
    key = kind.removesuffix("s")
    if isinstance(value, str | Mapping):
        return pick(kind, recipes.normalize({key: value})[key], key, "method" if kind == "decoders" else "name")
    is_spec = kind == "models" and isinstance(value, type) and issubclass(value, Options)
    check_value(key, ModelSpec if is_spec else hint, value)  # a specification's class is callable, but not with sizes
    return value


# Training and evaluation


@checked
def train(
    recipe: str | Path | Recipe | Table,
    *overrides: str,
    run: str | Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    variant: str | None = None,
    quiet: bool = False,
) -> Path:
    """Train by a recipe, with ``key=value`` overrides, and return the run folder (``runs/RECIPE/VARIANT-SEED``).

    With ``resume`` the recipe may be the folder of the run to continue.
    """
    single = recipes.load(recipe, overrides, variant, seed).single()
    if run is not None:
        folder = Path(run)
    elif resume and isinstance(recipe, str | Path) and RunFolder(recipe).exists():
        folder = Path(recipe)
    else:
        folder = RUNS / single.name / f"{single.baseline}-{single.seeds[0]}"
    display, path = Display(quiet or os.environ.get("RANK", "0") != "0"), shlex.quote(str(folder))
    try:
        trainer.train(single, folder, resume=resume, quiet=quiet)
    except SystemExit:
        display.say(f"continue with: unforced train {path} --resume")
        raise
    display.say(f"next: unforced evaluate {path}")
    return folder


@checked
def fit(
    model: OwnModel | str | Table,
    task: Task | str | Table,
    objective: Objective | str | Table,
    run: str | Path,
    *,
    decoding: Mapping[str, Decoder | str | Table] | None = None,
    seed: int = 1,
    resume: bool = False,
    quiet: bool = False,
    **training: Any,
) -> Path:
    """Train any model on any task without a recipe; ``training`` are fields of `Training`.

    ``model`` is a module, a specification, or a function or class that is called with the ``Sizes`` of the data after
    ``torch.manual_seed(seed)``. ``load(run, model=model)`` returns it with its trained weights. Registered models,
    tasks, objectives and decoders can be given by their names, or by tables with a name and fields.
    """
    spec, data = _object("models", OwnModel, model), _object("tasks", Task, task)
    if isinstance(spec, SupportsReading) and not isinstance(data, WrapsTask):
        data = spec.reading(data)  # with the model's own tokenizer
    chosen = _object("objectives", Objective, objective)
    options = build(Training, training, "training")
    decoders = {name: _object("decoders", Decoder, each) for name, each in (decoding or {"greedy": "greedy"}).items()}
    if options.validate not in decoders:
        raise InputError(f'validate: "{options.validate}" is not in decoding; {nearest(options.validate, decoders)}')
    label = registry.name_of("objectives", chosen) or type(chosen).__name__
    label = label if recipes.SAFE.fullmatch(label) else "own"
    single = Recipe("own", "", (seed,), label, data, spec, chosen, options, decoders, (recipes.Variant(label),))
    trainer.train(single, run, resume=resume, quiet=quiet)
    return Path(run)


@checked
def evaluate(
    run: str | Path,
    split: Split = "test",
    decoder: str | None = None,
    *,
    checkpoint: str = "best",
    model: OwnModel | None = None,
    task: Task | None = None,
    quiet: bool = False,
    table: bool = False,
) -> dict[str, dict[str, float]]:
    """Decode a split with one or all of the recipe's decoders, and write predictions and scores into the run folder.

    Return the scores: decoder -> metric -> score. ``table`` prints them with their intervals.
    """
    folder, recipe = RunFolder(run), read_recipe(run)
    network, fitted_task = load(run, checkpoint, model, task, fastest_device(), recipe)
    if decoder is not None and decoder not in recipe.decoding:
        raise InputError(f'{folder.path}: has no decoder "{decoder}"; {nearest(decoder, recipe.decoding)}')
    examples = evaluation.read_split(fitted_task, split, recipe.training.batch_tokens)
    scores = {}
    for name in recipe.decoding if decoder is None else [decoder]:
        method = recipe.decoding[name]
        found = evaluation.evaluate(network, fitted_task, examples, method, seed=recipe.seeds[0], quiet=quiet)
        evaluation.write_evaluation(folder, split, name, method, found, examples, fitted_task.codec)
        scores[name] = found.scores
    if table:
        from unforced.experiments.runs import Run
        from unforced.experiments.statistics import add_statistics, summarize
        from unforced.reports.tables import print_evaluation

        runs = [Run(folder.path)]
        summary = summarize(runs, name=str(run), split=split)
        summary = dataclasses.replace(summary, rows=tuple(row for row in summary.rows if row.decoder in scores))
        print_evaluation(add_statistics(summary, runs, fitted_task.task.metrics()))
    return scores


@checked
def diagnose(
    model: str | Path | nn.Module,
    examples: Iterable[Any] | None = None,
    *,
    task: FittedTask | None = None,
    split: Split = "dev",
    most: int | None = 1000,
    quiet: bool = False,
) -> "Diagnosis":
    """Measure what each kind of remedy could win on a trained model, without training it.

    Args:
        model: A run folder, into which diagnosis.json is written, or a network with its fitted ``task`` (see `load`).
        examples: Examples with targets that the model was not trained on; by default those of the ``split``.
        most: Number of examples to use, evenly spread; all if None.
    """
    from unforced.diagnosis import diagnose as diagnosis

    if isinstance(model, nn.Module):
        if task is None:
            raise InputError("pass task=, the fitted task of the network, as unforced.load returns it")
        trained = diagnosis.Trained(model, task)
    else:
        trained = diagnosis.open_trained(model)
    chosen = None if examples is None else [_example(pair, trained.task.codec) for pair in examples]
    return diagnosis.diagnose(trained, chosen, split=split, most=most, quiet=quiet)


# Parts of a custom training loop


@checked
def fitted(objective: Objective | str | Table, known: Any, examples: Iterable[Any] | None = None) -> Objective:
    """Fit an objective to the vocabulary and the training data, for a training loop of your own.

    ``known`` is a codec or has one (a fitted task, a loaded model); ``examples`` are then raw or encoded examples. Or
    ``known`` is a Hugging Face model that `wrap` returned; ``examples`` are then items with ``labels`` or
    ``input_ids``.
    """
    chosen: Objective = _object("objectives", Objective, objective)
    if isinstance(known, WrappedModel):
        from unforced.huggingface.codec import LabelledExamples

        items = () if examples is None else LabelledExamples(examples)
        return fit_objective(chosen, known.vocabulary, items)
    codec = _codec_of(known)
    if codec is None:
        raise InputError(
            f"{type(known).__name__} has no vocabulary: pass a codec, a fitted task, or a model that "
            "unforced.wrap returned"
        )
    encoded = (each if isinstance(each, Encoded) else codec.encode(_example(each, codec)) for each in examples or ())
    return fit_objective(chosen, codec, list(encoded))


@checked
def batch(model_or_task: Any, pairs: Iterable[Any]) -> Batch:
    """Return a `Batch` of raw examples: pairs (source, target), ``Example`` tuples, or sources alone.

    The first argument is a run folder, a loaded model, a ``FittedTask``, or anything else with a codec. A task that is
    not fitted yet learns its codec from its training data, once. Sources may be texts, as on the command line; for a
    model without sources, a text alone is a target. The batch is on the model's device.
    """
    model_or_task = _network(model_or_task)
    codec = _fit_codec(cast(Hashable, model_or_task)) if isinstance(model_or_task, Task) else _codec_of(model_or_task)
    if codec is None:
        what = type(model_or_task).__name__
        raise InputError(f"{what} has no codec: pass a loaded model, or a task fitted to training data")
    examples = [_example(pair, codec) for pair in pairs]
    if not examples:
        raise InputError("a batch needs at least one example")
    return _collate(model_or_task, codec, examples)


def _collate(model_or_task: Any, codec: Codec, examples: list[Example]) -> Batch:
    weights = next(model_or_task.parameters(), None) if isinstance(model_or_task, nn.Module) else None
    device = torch.device("cpu") if weights is None else weights.device
    try:
        return FittedTask(model_or_task, codec).batch(examples, device=device)
    except (AttributeError, TypeError, ValueError, IndexError) as error:
        raise InputError(f"these are not examples for {type(codec).__name__}: {error}") from error


def _network(model: Any) -> Any:
    """Return the network of a run folder or of what `load` returned; anything else as it is."""
    if isinstance(model, str | Path):
        return load(model, device=fastest_device()).model
    return model.model if isinstance(model, Loaded) else model


def _codec_of(known: Any) -> Codec | None:
    if isinstance(known, Codec):
        return known
    return known.codec if isinstance(known, HasCodec) and isinstance(known.codec, Codec) else None


@lru_cache(maxsize=8)
def _fit_codec(task: Any) -> Codec:
    codec: Codec = task.fit(task.read("train"))
    return codec


def _example(pair: Any, codec: Codec) -> Example:
    if isinstance(pair, Example):
        return pair
    source, target = pair if isinstance(pair, tuple) and len(pair) == 2 else (pair, None)
    if target is None and codec.sizes[1:] == (None, None, None):  # no kind of source
        return Example(None, source)
    return Example(codec.parse(source) if type(source) is str else source, target)


@overload
def decode(
    model: Any, batch: Batch, method: Decoder | str = ..., *, rng: torch.Generator | None = ..., **fields: Any
) -> Hypotheses: ...


@overload
def decode(
    model: Any, batch: Iterable[Any], method: Decoder | str = ..., *, rng: torch.Generator | None = ..., **fields: Any
) -> list[str]: ...


@checked
def decode(
    model: Any,
    batch: Batch | Iterable[Any],
    method: Decoder | str = "beam",
    *,
    rng: torch.Generator | None = None,
    **fields: Any,
) -> Hypotheses | list[str]:
    """Decode a batch, or sources such as texts: then return the best output of each as text.

    ``model`` is a model, what `load` returned, or a run folder. ``method`` is a decoder, such as
    ``unforced.decoding.Beam(beam=5)``, or the name of a registered one with its fields.
    """
    if not isinstance(method, str) and fields:
        raise InputError(f"{', '.join(fields)}: fields go with the name of a decoder, not with an object")
    decoder: Decoder = _build("decoders", method, fields) if isinstance(method, str) else method
    network = _network(model)
    if isinstance(batch, Batch):
        return decoder(network, batch, rng=rng)
    codec = _codec_of(network)
    if codec is None:
        raise InputError(f"{type(network).__name__} has no codec: pass a loaded model, or a Batch")
    sources = [Example(codec.parse(source) if type(source) is str else source, None) for source in batch]
    found = decoder(network, _collate(network, codec, sources), rng=rng)
    return [codec.show(codec.decode(ids)) for ids in found.ids(codec.symbols)]


# Masked models: energies and Markov chains


@checked
def score(
    model: str | Path, sentences: Iterable[str], *, whole_words: bool = False, checkpoint: str = "best"
) -> "list[Score]":
    """Compute energies and pseudo-log-likelihoods of sentences under a masked model.

    ``model`` is a run folder or a folder saved by ``transformers``. For a model with sources, a sentence is the
    source, a tab and the target. ``whole_words`` masks a token together with all later tokens of its word
    (PLL-word-l2r of Kauf and Ivanova 2023).
    """
    from unforced.chains.readers import open_model
    from unforced.chains.scoring import Score, score_lines

    lines = (sentence.encode() for sentence in sentences)
    found = score_lines(open_model(model, checkpoint), lines, whole_words=whole_words)
    return [score for score in found if isinstance(score, Score)]


@checked
def sample(
    model: str | Path,
    output: str | Path,
    kernel: str | Sampler = "metropolis_hastings",
    *,
    lines: str | Path | Iterable[str] | None = None,
    checkpoint: str = "best",
    resume: bool = False,
    quiet: bool = False,
    **options: Any,
) -> "ChainSummary":
    """Run Markov chains on the energy of a masked model in the folder ``output``, plot them and return a summary.

    ``kernel`` is a sampler of ``unforced.energy`` or its name. ``options`` are fields of
    ``unforced.chains.options.ChainOptions`` and, if the kernel is a name, of the sampler. ``lines`` are texts, a
    file, or "-" for standard input; see ``unforced.chains.sampling.sample``.
    """
    from unforced.chains import sampling
    from unforced.chains.options import ChainOptions
    from unforced.chains.readers import open_model
    from unforced.reports.traces import plot_folder

    names = {field.name for field in dataclasses.fields(ChainOptions)}
    chains = build(ChainOptions, {name: value for name, value in options.items() if name in names}, "chains")
    rest = {name: value for name, value in options.items() if name not in names}
    if not isinstance(kernel, str) and rest:
        raise InputError(f"{', '.join(rest)}: pass the options of a sampler to the sampler itself")
    summary = sampling.sample(
        open_model(model, checkpoint),
        _build("kernels", kernel, rest) if isinstance(kernel, str) else kernel,
        output,
        chains,
        lines=sampling.read_source(lines),
        resume=resume,
        quiet=quiet,
    )
    plot_folder(summary.folder)
    return summary


# Comparisons and reports


@checked
def compare(
    *sources: str | Path | Recipe | Table,
    overrides: Iterable[str] = (),
    variants: Sequence[str] | None = None,
    root: str | Path = RUNS,
    jobs: int = 1,
    quiet: bool = False,
    table: bool = True,
    **options: Any,
) -> Any:
    """Train every variant of the recipes with every seed below ``root``, compare them and write a report.

    With several ``jobs``, call this under ``if __name__ == "__main__":`` in scripts, as `multiprocessing` requires.
    Other options are those of `unforced.experiments.compare.compare`; ``table`` prints the tables.
    """
    from unforced.experiments.compare import compare as run_comparison
    from unforced.reports.page import write_comparison_page
    from unforced.reports.tables import print_comparison

    words = list(overrides)
    loaded = [recipes.load(source, words) for source in sources]
    if variants is not None:
        loaded = [recipe.only(variants) for recipe in loaded]
    result = run_comparison(loaded, Path(root), jobs=jobs, quiet=quiet, publish=write_comparison_page, **options)
    if table:
        print_comparison(result)
    return result


@checked
def report(*runs: str | Path, output: str | Path = "report.html") -> Path:
    """Write one offline page about run folders, or only its tables if ``output`` ends in ``.md``; return its path."""
    from unforced.reports.page import write_report

    return write_report([Path(run) for run in runs], Path(output))
