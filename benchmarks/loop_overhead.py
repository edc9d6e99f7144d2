"""What the library's training loop costs over a bare PyTorch loop on the same model and batches. For information."""

import tempfile
from pathlib import Path

import corpus
from harness import WORK, Sides, ratio, row
from race import details, race, wish

TITLES = {"transformer": "Transformer 3+3, 256 wide", "lstm": "LSTM 256, Bahdanau attention"}


def run(*, quick: bool, threads: int) -> dict:
    rounds, updates = (2, 10) if quick else (5, 25)
    data = corpus.prepare(WORK)
    rows, found = [], {}
    for model, title in TITLES.items():
        with tempfile.TemporaryDirectory(prefix="unforced-bench-") as folder, Sides() as sides:
            asked = wish(model, data, Path(folder) / "run", threads)
            loop = sides.start(f"loop-{model}", "unforced_side.py", asked)
            bare = sides.start(f"bare-{model}", "unforced_side.py", {**asked, "bare": True})
            windows = race(sides.all, rounds, {loop.name: updates, bare.name: updates})
            found[model] = details(sides.all, windows)
        speeds = {name: [window.speed for window in turns] for name, turns in windows.items()}
        figure = ratio(speeds[bare.name], speeds[loop.name])
        rows.append(
            row(f"{title}: bare loop's tokens/s over ours", "bare PyTorch loop", figure, target=None, passed=None)
        )
    return {
        "rows": rows,
        "settings": {
            "data": f"{data.name}, batches of {corpus.BATCH} pairs; the bare loop's are collated beforehand",
            "rounds": f"{rounds} of {updates} updates a side",
        },
        "sides": found,
    }
