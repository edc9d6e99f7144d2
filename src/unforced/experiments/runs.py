"""One run of a comparison: train it or go on with it, and decode what has no scores yet."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from unforced.errors import InputError
from unforced.experiments.plan import Planned
from unforced.protocols import Split
from unforced.training.loading import load
from unforced.training.run_folder import RunFolder

Train = Callable[..., Any]  # (recipe, folder, resume=…, quiet=…), as unforced.training.trainer.train
Score = Callable[[Planned, Sequence[tuple[Split, str]], bool], Any]  # (run, pairs of split and decoder, quiet)

SPLITS: tuple[Split, ...] = ("dev", "test")


class Outcome(NamedTuple):
    """How a run ended: by a ``failure`` if there are words for one, and with ``news`` unless all was there before."""

    run: Planned
    news: bool = True
    failure: str = ""


def undecoded(run: Planned) -> list[tuple[Split, str]]:
    """The splits and decoders that the run has no scores of."""
    wanted = [(split, decoder) for split in SPLITS for decoder in run.recipe.decoding]
    return [pair for pair in wanted if not (run.folder / "scores" / f"{pair[0]}-{pair[1]}.json").is_file()]


def made(run: Planned) -> bool:
    """Whether nothing is left to do: it is trained, and decoded by all decoders."""
    try:
        return RunFolder(run.folder).finished() is not None and not undecoded(run)
    except InputError:  # a broken file, which whoever makes the run will tell of
        return False


def make(run: Planned, train: Train, score: Score, quiet: bool) -> None:
    """Bring a run to its end."""
    folder = RunFolder(run.folder)
    if folder.finished() is None:
        resume = run.folder.is_dir() and any(run.folder.iterdir())
        train(run.recipe, run.folder, resume=resume, quiet=quiet)
    if missing := undecoded(run):
        score(run, missing, quiet)


def reason(error: BaseException) -> str:
    """What an error says, in one line."""
    return " ".join(str(error).split()) or type(error).__name__


def score_run(run: Planned, missing: Sequence[tuple[Split, str]], quiet: bool) -> None:
    """Decode splits with the recipe's decoders, with one loading of the model."""
    from unforced.training.evaluation import evaluate, write_evaluation

    model, fitted = load(run.folder)
    for split in dict.fromkeys(split for split, _ in missing):
        examples = fitted.task.read(split)
        for decoder in [name for each, name in missing if each == split]:
            method = run.recipe.decoding[decoder]
            final = split == "test"  # what is dear is not needed to choose by
            found = evaluate(model, fitted, examples, method, seed=run.seed, quiet=quiet, final=final)
            write_evaluation(RunFolder(run.folder), split, decoder, method, found, examples, fitted.codec)
