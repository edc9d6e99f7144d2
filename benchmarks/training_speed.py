"""Cross-entropy training, target tokens a second, against Hugging Face's trainer and JoeyNMT; data loading included."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import corpus
from harness import HERE, WORK, SideError, Sides, ratio, row, say
from race import BATCH, WARM_UP, details, race, wish

TARGET = 1.05
TITLES = {
    "transformer": "Transformer 3+3, 256 wide",
    "lstm": "LSTM 256, Bahdanau attention",
    "lstm_fed": "LSTM 256, Bahdanau attention, input feeding",
}
OTHERS = {"huggingface": "Hugging Face Trainer", "joeynmt": "JoeyNMT"}
JOEYNMT = HERE / ".venv-joeynmt" / "bin" / "python"


def run(*, quick: bool, threads: int) -> dict:
    """Hugging Face sorts each 50 batches by length, so a full window is 50 updates and a quick one half of that."""
    rounds, updates = (2, 25) if quick else (4, 50)
    data = corpus.prepare(WORK)
    say(f"  {data.name}: {data.train} pairs, {data.target_tokens} target tokens, {data.vocabulary} pieces")
    _joeynmt()
    rows, found = [], {}
    versions: dict[str, str] = {}
    for model, title in TITLES.items():
        with tempfile.TemporaryDirectory(prefix="unforced-bench-") as folder, Sides() as sides:
            for name in ("unforced", *OTHERS):
                asked = wish(model, data, Path(folder) / name, threads)
                python = {"python": JOEYNMT} if name == "joeynmt" else {}
                side = sides.start(f"{name}-{model}", f"{name}_side.py", asked, **python)
                versions |= side.facts["versions"]
            windows = race(sides.all, rounds, updates)
            found[model] = details(sides.all, windows)
        for name, label in OTHERS.items():
            ours, theirs = f"unforced-{model}", f"{name}-{model}"
            figure = ratio([w.speed for w in windows[ours]], [w.speed for w in windows[theirs]])
            speeds = [found[model][side]["tokens_per_second"] for side in (ours, theirs)]
            rows.append(
                row(
                    f"{title}: tokens/s",
                    label,
                    figure,
                    target=f">= {TARGET}",
                    passed=figure["median"] >= TARGET,
                    absolute=f"{speeds[0]:,.0f} and {speeds[1]:,.0f} tokens/s",
                )
            )
    return {"rows": rows, "versions": versions, "settings": _settings(data, rounds, updates), "sides": found}


def _joeynmt() -> None:
    """Make JoeyNMT's environment if it isn't there."""
    if not JOEYNMT.with_name("../.ready").exists():
        say("  making JoeyNMT's environment, which takes minutes")
    made = subprocess.run([str(HERE / "joeynmt_setup.sh")], capture_output=True, text=True)
    if made.returncode:
        raise SideError(f"benchmarks/joeynmt_setup.sh failed: {made.stderr.strip()[-600:]}")


def _settings(data: corpus.Corpus, rounds: int, updates: int) -> dict[str, object]:
    return {
        "data": f"{data.name}, {data.train} pairs, {data.vocabulary} joint pieces",
        "batch": f"{BATCH} pairs",
        "rounds": f"{rounds} of {updates} updates a side, after {WARM_UP} updates to warm up",
        "optimiser": "AdamW, clipping at 1, inverse square root schedule, float32",
        "unforced": "unforced.training.loop.train, batches of similar length, log lines on",
        "Hugging Face": "Seq2SeqTrainer, fused AdamW, batches grouped by length, no logging, evaluation, saving or workers",
        "JoeyNMT": "TrainManager.train_and_validate, sentence batches, no validation, no workers",
    }
