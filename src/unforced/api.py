"""The Python API: the commands of the command line, and functions for a user's own models and training loops."""

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import nn

from unforced import registry
from unforced.errors import InputError, nearest
from unforced.huggingface.decoder import WrappedModel
from unforced.options import check_value
from unforced.protocols import Codec, Decoder, FittedTask, HasCodec, ModelSpec, Objective, Sampler, Split, Task
from unforced.protocols import fitted as fit_objective
from unforced.recipes import recipe as recipes
from unforced.recipes.fields import build
from unforced.recipes.recipe import Recipe
from unforced.training import evaluation, trainer
from unforced.training.loading import Loaded, OwnModel, fastest_device, load, read_recipe
from unforced.training.options import Training
from unforced.training.run_folder import RunFolder
from unforced.types import Batch, Encoded, Example, Hypotheses

if TYPE_CHECKING:
    from unforced.chains.results import ChainSummary
    from unforced.chains.scoring import Score
    from unforced.diagnosis.diagnose import Diagnosis

__all__ = [
    "Loaded", "batch", "compare", "decode", "diagnose", "evaluate", "fit", "fitted", "load", "model", "objective", "report", "sample",
    "score", "task", "train",
]  # fmt: skip

RUNS = Path("runs")


# Objects by name


def objective(name: str, **fields: Any) -> Objective:
    """Return a registered objective; ``unforced list objectives --json`` shows the fields.

    >>> objective("label_smoothing", smoothing=0.2)
    LabelSmoothing(smoothing=0.2)
    """
    found: Objective = _build("objectives", name, fields)
    return found


def task(name: str, **fields: Any) -> Task:
    """Return a registered task."""
    found: Task = _build("tasks", name, fields)
    return found


def model(name: str, **fields: Any) -> ModelSpec:
    """Return the specification of a registered model; ``.build(sizes)`` returns the network."""
    found: ModelSpec = _build("models", name, fields)
    return found


def _build(kind: str, name: str, fields: Mapping[str, Any]) -> Any:
    return build(registry.resolve(kind, name), fields, name)


# Training and evaluation


def train(
    recipe: str | Path | Recipe,
    *overrides: str,
    run: str | Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    variant: str | None = None,
    quiet: bool = False,
) -> Path:
    """Train by a recipe, with ``key=value`` overrides, and return the run folder (``runs/RECIPE/VARIANT-SEED``)."""
    single = recipes.load(recipe, overrides, variant, seed).single()
    folder = RUNS / single.name / f"{single.baseline}-{single.seeds[0]}" if run is None else Path(run)
    trainer.train(single, folder, resume=resume, quiet=quiet)
    return folder


def fit(
    model: OwnModel,
    task: Task,
    objective: Objective | str,
    run: str | Path,
    *,
    decoding: Mapping[str, Decoder] | None = None,
    seed: int = 1,
    resume: bool = False,
    quiet: bool = False,
    **training: Any,
) -> Path:
    """Train any model on any task without a recipe; ``training`` are fields of `Training`.

    ``model`` is a module, a specification, or a function or class that is called with the ``Sizes`` of the data after
    ``torch.manual_seed(seed)``. ``load(run, model=model)`` returns it with its trained weights.
    """
    chosen = _build("objectives", objective, {}) if isinstance(objective, str) else objective
    options = build(Training, training, "training")
    decoders = dict(decoding or {"greedy": _build("decoders", "greedy", {})})
    if options.validate not in decoders:
        raise InputError(f'validate: "{options.validate}" is not in decoding; {nearest(options.validate, decoders)}')
    label = registry.name_of("objectives", chosen) or type(chosen).__name__
    label = label if recipes.SAFE.fullmatch(label) else "own"
    single = Recipe("own", "", (seed,), label, task, model, chosen, options, decoders, (recipes.Variant(label),))
    trainer.train(single, run, resume=resume, quiet=quiet)
    return Path(run)


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
    check_value("split", Split, split)
    folder, recipe = RunFolder(run), read_recipe(run)
    network, fitted_task = load(run, checkpoint, model, task, fastest_device(), recipe)
    if decoder is not None and decoder not in recipe.decoding:
        raise InputError(f'{folder.path}: has no decoder "{decoder}"; {nearest(decoder, recipe.decoding)}')
    examples = fitted_task.task.read(split)
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
    chosen = None if examples is None else [_example(pair) for pair in examples]
    return diagnosis.diagnose(trained, chosen, split=split, most=most, quiet=quiet)


# Parts of a custom training loop


def fitted(objective: Objective, known: Any, examples: Iterable[Any] | None = None) -> Objective:
    """Fit an objective to the vocabulary and the training data, for a training loop of your own.

    ``known`` is a codec or has one (a fitted task, a loaded model); ``examples`` are then raw or encoded examples. Or
    ``known`` is a Hugging Face model that `wrap` returned; ``examples`` are then items with ``labels`` or
    ``input_ids``.
    """
    if isinstance(known, WrappedModel):
        from unforced.huggingface.codec import LabelledExamples

        items = () if examples is None else LabelledExamples(examples)
        return fit_objective(objective, known.vocabulary, items)
    codec = _codec_of(known)
    if codec is None:
        raise InputError(
            f"{type(known).__name__} has no vocabulary: pass a codec, a fitted task, or a model that "
            "unforced.wrap returned"
        )
    encoded = (each if isinstance(each, Encoded) else codec.encode(_example(each)) for each in examples or ())
    return fit_objective(objective, codec, list(encoded))


def batch(model_or_task: Any, pairs: Iterable[Any]) -> Batch:
    """Return a `Batch` of raw examples: pairs (source, target), ``Example`` tuples, or sources alone.

    The first argument is a loaded model, a ``FittedTask``, or anything else with a codec. A task that is not fitted yet
    learns its codec from its training data, once. The batch is on the model's device.
    """
    codec = _fit_codec(cast(Hashable, model_or_task)) if isinstance(model_or_task, Task) else _codec_of(model_or_task)
    if codec is None:
        what = type(model_or_task).__name__
        raise InputError(f"{what} has no codec: pass a loaded model, or a task fitted to training data")
    if isinstance(pairs, str):
        raise InputError("pass a list of examples, not a string")
    examples = [_example(pair) for pair in pairs]
    if not examples:
        raise InputError("a batch needs at least one example")
    weights = next(model_or_task.parameters(), None) if isinstance(model_or_task, nn.Module) else None
    device = torch.device("cpu") if weights is None else weights.device
    return FittedTask(model_or_task, codec).batch(examples, device=device)


def _codec_of(known: Any) -> Codec | None:
    if isinstance(known, Codec):
        return known
    return known.codec if isinstance(known, HasCodec) and isinstance(known.codec, Codec) else None


@lru_cache(maxsize=8)
def _fit_codec(task: Any) -> Codec:
    codec: Codec = task.fit(task.read("train"))
    return codec


def _example(pair: Any) -> Example:
    if isinstance(pair, Example):
        return pair
    if isinstance(pair, tuple) and len(pair) == 2:
        return Example(*pair)
    return Example(pair, None)


def decode(
    model: Any, batch: Batch, method: Decoder | str = "beam", *, rng: torch.Generator | None = None, **fields: Any
) -> Hypotheses:
    """Decode a batch with a decoder, such as ``unforced.decoding.Beam(beam=5)``, or with a registered one and its
    fields.
    """
    if not isinstance(method, str):
        if fields:
            raise InputError(f"{', '.join(fields)}: fields go with the name of a decoder, not with an object")
        return method(model, batch, rng=rng)
    decoder: Decoder = _build("decoders", method, fields)
    return decoder(model, batch, rng=rng)


# Masked models: energies and Markov chains


def score(
    model: str | Path, sentences: Iterable[str], *, whole_words: bool = False, checkpoint: str = "best"
) -> "list[Score]":
    """Compute energies and pseudo-log-likelihoods of sentences under a masked model.

    ``model`` is a run folder or a folder saved by ``transformers``. For a model with sources, a sentence is the
    source, a tab and the target. ``whole_words`` masks a token together with all later tokens of its word
    (PLL-word-l2r of Kauf and Ivanova 2023).
    """
    from unforced.chains.readers import open_model
    from unforced.chains.scoring import score_lines

    lines = (sentence.encode() for sentence in sentences)
    return list(score_lines(open_model(model, checkpoint), lines, whole_words=whole_words))


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


def compare(
    *sources: str | Path | Recipe,
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


def report(*runs: str | Path, output: str | Path = "report.html") -> Path:
    """Write one offline page about run folders, or only its tables if ``output`` ends in ``.md``; return its path."""
    from unforced.reports.page import write_report

    return write_report([Path(run) for run in runs], Path(output))
