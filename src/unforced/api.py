"""The library's words in Python: the same as on the command line, and a few more for a user's own models."""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from unforced import registry
from unforced.errors import InputError, nearest
from unforced.huggingface.decoder import WrappedModel
from unforced.protocols import Codec, FittedTask, ModelSpec, Objective, Split, Task
from unforced.protocols import fitted as tell
from unforced.recipes import earlier
from unforced.recipes import recipe as recipes
from unforced.recipes.fields import build
from unforced.recipes.recipe import Recipe
from unforced.training import evaluation as evaluating
from unforced.training.loading import Loaded, OwnModel, build_network, fastest_device, load, read_recipe
from unforced.training.options import Training
from unforced.training.run_folder import RunFolder
from unforced.training.trainer import Job
from unforced.training.trainer import train as run_job
from unforced.types import Batch, Encoded, Example, Hypotheses

__all__ = [
    "Loaded", "batch", "compare", "decode", "evaluate", "fit", "fitted", "job", "load", "model", "objective", "report",
    "run_folder", "sample", "score", "task", "train",
]  # fmt: skip

RUNS = Path("runs")


def objective(name: str, **fields: Any) -> Objective:
    """An objective of the catalogue; ``unforced list objectives --json`` shows the fields.

    >>> objective("label_smoothing", smoothing=0.2)
    LabelSmoothing(smoothing=0.2)
    """
    return _made("objectives", name, fields)


def task(name: str, **fields: Any) -> Task:
    """A task of the catalogue.

    >>> task("palindromes", length=5)
    Palindromes(...)
    """
    return _made("tasks", name, fields)


def model(name: str, **fields: Any) -> ModelSpec:
    """The specification of a model of the catalogue; ``.build(sizes)`` makes the network.

    >>> model("lstm", hidden=64)
    LSTM(hidden=64, ...)
    """
    return _made("models", name, fields)


def _made(kind: str, name: str, fields: Mapping[str, Any]) -> Any:
    return build(registry.resolve(kind, name), fields, name)


def train(
    recipe: str | Path | Recipe,
    *overrides: str,
    run: str | Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    variant: str | None = None,
    quiet: bool = False,
) -> Path:
    """Train by a recipe, with ``key=value`` changes, and return the run folder (``runs/RECIPE/VARIANT-SEED``)."""
    single = recipes.load(recipe, overrides, variant, seed).single()
    folder = run_folder(RUNS, single) if run is None else Path(run)
    earlier.check(single, folder.parent, single.seeds[0])
    run_job(job(earlier.placed(single, folder.parent, single.seeds[0])), folder, resume=resume, quiet=quiet)
    return folder


def run_folder(root: Path, single: Recipe) -> Path:
    """Where the run of one variant and one seed goes below ``root``."""
    return root / single.name / f"{single.baseline}-{single.seeds[0]}"


def job(single: Recipe) -> Job:
    """What the training loop is given for a recipe of one variant and one seed: data read, codec learnt, model built."""
    return _job(single, single.model, single.task, single.objective)


def _job(single: Recipe, own: OwnModel, task: Task, objective: Objective) -> Job:
    training, dev = task.read("train"), task.read("dev")
    codec = task.fit(training)
    seed = single.seeds[0]
    torch.manual_seed(seed)
    network = build_network(own, codec)
    return Job(
        model=network,
        objective=objective,
        fitted=FittedTask(task, codec),
        train=training,
        dev=dev,
        decoder=single.decoding[single.training.validate],
        options=single.training,
        seed=seed,
        recipe=single.to_toml(),
        about={"name": single.name, "variant": single.baseline},
    )


def fit(
    model: OwnModel,
    task: Task,
    objective: Objective | str,
    run: str | Path,
    *,
    decoding: Mapping[str, Any] | None = None,
    seed: int = 1,
    resume: bool = False,
    quiet: bool = False,
    **training: Any,
) -> Path:
    """Train a model of the user's own on any task, without a recipe; ``training`` are the fields of ``[training]``.

    ``model`` is a module, or a class or function that makes one for data of the given ``Sizes`` (drawn after
    ``torch.manual_seed(seed)``). ``load(run, model=model)`` gives it back with the weights it has learnt.
    """
    chosen = _made("objectives", objective, {}) if isinstance(objective, str) else objective
    options = build(Training, training, "training")
    decoders = dict(decoding or {"greedy": _made("decoders", "greedy", {})})
    if options.validate not in decoders:
        raise InputError(f'validate: "{options.validate}" is not in decoding; {nearest(options.validate, decoders)}')
    label = registry.name_of("objectives", chosen) or type(chosen).__name__
    label = label if recipes.SAFE.fullmatch(label) else "own"
    single = Recipe(
        name="own",
        description="",
        seeds=(seed,),
        baseline=label,
        task=task,
        model=model if registry.name_of("models", model) else None,
        objective=chosen,
        training=options,
        decoding=decoders,
        variants=(recipes.Variant(label),),
    )
    run_job(_job(single, model, task, chosen), Path(run), resume=resume, quiet=quiet)
    return Path(run)


def fitted(objective: Objective, known: Any, examples: Iterable[Any] | None = None) -> Objective:
    """The objective, told of the vocabulary and of the training data, for a training loop of one's own.

    ``known`` is a codec, or what has one (a fitted task, a loaded model); ``examples`` are then raw or encoded examples. Or it
    is a Hugging Face model as ``wrap`` gives it, with a ``tokenizer`` if it was given one, and ``examples`` are items with ``labels`` (or
    ``input_ids``), as a trainer takes them.
    """
    if isinstance(known, WrappedModel):
        from unforced.huggingface.codec import LabelledExamples

        items = () if examples is None else LabelledExamples(examples)
        return tell(objective, known.vocabulary, items)
    codec = known if isinstance(known, Codec) else getattr(known, "codec", None)
    if not isinstance(codec, Codec):
        raise InputError(
            f"{type(known).__name__} knows no vocabulary: give a codec, a fitted task, or a model that unforced.wrap has made"
        )
    every = () if examples is None else examples
    return tell(
        objective, codec, [each if isinstance(each, Encoded) else codec.encode(_example(each)) for each in every]
    )


def batch(model_or_task: Any, pairs: Iterable[Any]) -> Batch:
    """A ``Batch`` of raw examples: pairs (source, target), ``Example`` tuples, or sources alone.

    The first argument is a loaded model, a ``FittedTask``, or anything else with a ``codec``; a task that is not fitted
    yet learns its codec from its training data, once. A model's batch is on the model's device.
    """
    codec = model_or_task if isinstance(model_or_task, Codec) else getattr(model_or_task, "codec", None)
    if isinstance(model_or_task, Task):
        codec = _learnt_codec(model_or_task)  # type: ignore[arg-type]  # frozen dataclasses can be hashed
    if codec is None or not isinstance(codec, Codec):
        what = type(model_or_task).__name__
        raise InputError(f"{what} has no codec yet: give a loaded model, or a task fitted to training data")
    examples = [_example(pair) for pair in pairs]
    if not examples:
        raise InputError("a batch needs at least one example")
    made = FittedTask(model_or_task, codec).batch(examples)
    weights = next(model_or_task.parameters(), None) if isinstance(model_or_task, nn.Module) else None
    return made if weights is None else made.to(weights.device)


@lru_cache(maxsize=8)
def _learnt_codec(task: Task) -> Codec:
    return task.fit(task.read("train"))


def _example(pair: Any) -> Example:
    if isinstance(pair, Example):
        return pair
    if isinstance(pair, tuple) and len(pair) == 2:
        return Example(*pair)
    return Example(pair, None)


def decode(
    model: Any, batch: Batch, method: str = "beam", *, rng: torch.Generator | None = None, **fields: Any
) -> Hypotheses:
    """Decode a batch by a method of the catalogue; ``unforced list decoders --json`` shows the fields."""
    return _made("decoders", method, fields)(model, batch, rng=rng)


def evaluate(
    run: str | Path,
    split: Split = "test",
    decoder: str | None = None,
    *,
    checkpoint: str = "best",
    model: OwnModel | None = None,
    task: Task | None = None,
    quiet: bool = False,
) -> dict[str, dict[str, float]]:
    """Decode a split with one or all of the recipe's decoders, score it, and write both into the run folder.

    Returns the scores: decoder -> metric -> score.
    """
    folder = RunFolder(run)
    single = read_recipe(folder)
    if decoder is not None and decoder not in single.decoding:
        raise InputError(f'{folder.path}: has no decoder "{decoder}"; {nearest(decoder, single.decoding)}')
    network, fitted = load(run, checkpoint, model, task, fastest_device())
    examples = fitted.task.read(split)
    scores = {}
    for name in single.decoding if decoder is None else [decoder]:
        method = single.decoding[name]
        found = evaluating.evaluate(network, fitted, examples, method, seed=single.seeds[0], quiet=quiet)
        evaluating.write_evaluation(folder, split, name, method, found, examples, fitted.codec)
        scores[name] = found.scores
    return scores


def score(
    model: str | Path, sentences: Iterable[str], *, whole_words: bool = False, checkpoint: str = "best"
) -> list[Any]:
    """Energies and pseudo-log-likelihood of sentences by the masked model of a run, or of a folder of ``transformers``.

    For a model that reads sources a sentence is the source, a tab and the target. ``whole_words`` hides a piece together with
    all later pieces of its word (PLL-word-l2r of Kauf and Ivanova 2023). Returns an ``unforced.chains.sampling.Score`` for each.
    """
    from unforced.chains.readers import open_model
    from unforced.chains.sampling import score_lines

    masking: Any = "left_to_right" if whole_words else "single"
    lines = (sentence.encode() for sentence in sentences)
    return list(score_lines(open_model(model, checkpoint), lines, masking))


def sample(
    model: str | Path,
    output: str | Path,
    kernel: str = "metropolis_hastings",
    *,
    lines: str | Path | Iterable[str] | None = None,
    split: Split = "test",
    examples: int | None = None,
    length: int | None = None,
    chains: int = 4,
    sweeps: int = 100,
    burn_in: int | None = None,
    start: str = "greedy",
    seed: int = 1,
    keep_every: int = 1,
    save_every: int = 10,
    checkpoint: str = "best",
    resume: bool = False,
    quiet: bool = False,
    **options: Any,
) -> Any:
    """Run Markov chains on a masked model's energy and keep them in the folder ``output``.

    ``options`` are the fields of ``unforced.energy.MetropolisHastings`` or ``Gibbs``. ``lines`` are texts, or the file that has them
    (``-``: standard input). Returns an ``unforced.chains.results.Sampled``: traces, and what they say of the chains.
    """
    from unforced.chains import sampling
    from unforced.chains.readers import open_model

    plan: Any = {"chains": chains, "sweeps": sweeps, "burn_in": burn_in, "start": start, "seed": seed}
    chosen = sampling.Chains(**plan, keep_every=keep_every, save_every=save_every)
    moves = sampling.kernel_of(kernel, **options)
    with sampling.lines_of(lines) as read:
        return sampling.sample(
            open_model(model, checkpoint),
            moves,
            output,
            chosen,
            lines=read,
            split=split,
            examples=examples,
            length=length,
            resume=resume,
            quiet=quiet,
        )


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
