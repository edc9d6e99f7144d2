"""Compare cross-entropy training, data loading included, with Hugging Face's trainer and JoeyNMT."""

import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import corpus
from harness import HERE, WARM_UP, WORK, SideError, Sides, details, race, ratio, row, say
from models import SHAPES

TARGET = 1.05
FULL, QUICK = (4, 50), (2, 25)  # rounds, and updates in each
LEFT_OUT = ("lstm_fed", "joeynmt-grouped")  # in a quick run
TITLES = {
    "transformer": "Transformer 3+3, 256 wide",
    "lstm": "LSTM 256, Bahdanau attention",
    "lstm_fed": "LSTM 256, Bahdanau attention, input feeding",
}
JOEYNMT = HERE / ".venv-joeynmt" / "bin" / "python"


class Program(NamedTuple):
    """A training program that is measured."""

    label: str
    script: str
    options: dict  # beyond those of ``side_options``
    share: float  # length of its turns, as a share of ours
    has_target: bool


# Hugging Face sorts each 50 batches by length, so only a turn of 50 updates has all lengths.
PROGRAMS = {
    "unforced": Program("", "unforced_side.py", {}, 1.0, False),
    "huggingface": Program("Hugging Face Trainer", "huggingface_side.py", {}, 1.0, True),
    "joeynmt": Program("JoeyNMT", "joeynmt_side.py", {"grouped": False}, 0.5, True),
    "joeynmt-grouped": Program(
        "JoeyNMT, text ordered by length for it", "joeynmt_side.py", {"grouped": True}, 0.5, False
    ),
}


def run(*, quick: bool, threads: int) -> dict:
    rounds, updates = QUICK if quick else FULL
    left_out = LEFT_OUT if quick else ()
    data = corpus.prepare(WORK)
    say(f"  {data.name}: {data.train} pairs, {data.target_tokens} target tokens, {data.vocabulary} pieces")
    make_joeynmt()
    rows, found = [], {}
    versions: dict[str, str] = {}
    for model, title in TITLES.items():
        if model in left_out:
            continue
        say(f"  {title}")
        with tempfile.TemporaryDirectory(prefix="unforced-bench-") as folder, Sides() as sides:
            turns = {}
            for name, program in PROGRAMS.items():
                if name in left_out:
                    continue
                options = {**side_options(model, data, Path(folder) / name, threads), **program.options}
                python = {"python": JOEYNMT} if "joeynmt" in name else {}
                side = sides.start(f"{name}-{model}", program.script, options, **python)
                turns[side.name] = round(program.share * updates)
                versions |= side.facts["versions"]
            windows = race(sides.all, rounds, turns)
            found[model] = details(sides.all, windows)
        rows += [
            _row(title, PROGRAMS[name], found[model], f"unforced-{model}", f"{name}-{model}")
            for name in PROGRAMS
            if name != "unforced" and f"{name}-{model}" in windows
        ]
    settings = _settings(data, rounds, updates)
    return {"rows": rows, "versions": versions, "settings": settings, "sides": found}


def _row(title: str, program: Program, found: dict[str, dict], ours: str, theirs: str) -> dict:
    speeds = [[w["tokens"] / w["seconds"] for w in found[name]["windows"]] for name in (ours, theirs)]
    figure = ratio(*speeds)
    means = [found[name]["tokens_per_second"] for name in (ours, theirs)]
    return row(
        f"{title}: tokens/s",
        program.label,
        figure,
        target=f">= {TARGET}" if program.has_target else None,
        passed=figure["median"] >= TARGET if program.has_target else None,
        absolute=f"{means[0]:,.0f} and {means[1]:,.0f} tokens/s",
    )


def side_options(model: str, data: corpus.Corpus, folder: Path, threads: int) -> dict:
    """Return the options of every training side."""
    return {
        "model": model,
        "shape": SHAPES[model],
        "corpus": asdict(data),
        "folder": str(folder),
        "batch": corpus.BATCH,
        "learning_rate": 5e-4,
        "threads": threads,
    }


def make_joeynmt() -> None:
    """Create JoeyNMT's environment if it does not exist."""
    if not JOEYNMT.exists():
        say("  creating JoeyNMT's environment, which takes minutes")
    done = subprocess.run([str(HERE / "joeynmt_setup.sh")], capture_output=True, text=True)
    if done.returncode:
        raise SideError(f"benchmarks/joeynmt_setup.sh failed: {done.stderr.strip()[-600:]}")


def _settings(data: corpus.Corpus, rounds: int, updates: int) -> dict[str, object]:
    return {
        "data": f"{data.name}, {data.train} pairs, {data.vocabulary} joint pieces",
        "batch": f"{corpus.BATCH} pairs",
        "rounds": f"{rounds} of {updates} updates (JoeyNMT half as many), after {WARM_UP} to warm up",
        "optimiser": "AdamW, clipping at 1, inverse square root schedule, float32",
        "unforced": "unforced.training.trainer.train, batches of similar length, log lines on",
        "Hugging Face": "Seq2SeqTrainer, fused AdamW, group_by_length, no logging, evaluation, saving or workers",
        "JoeyNMT": "TrainManager.train_and_validate, sentence batches, no validation, no workers",
    }
