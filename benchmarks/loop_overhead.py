"""Compare the library's training loop with a bare PyTorch loop on the same model and batches. No target."""

import tempfile
from pathlib import Path

import corpus
from harness import WORK, Sides, details, race, ratio, row
from training_speed import TITLES, side_options


def run(*, quick: bool, threads: int) -> dict:
    rounds, updates = (2, 10) if quick else (5, 25)
    data = corpus.prepare(WORK)
    rows, found = [], {}
    for model in ("transformer", "lstm"):
        with tempfile.TemporaryDirectory(prefix="unforced-bench-") as folder, Sides() as sides:
            options = side_options(model, data, Path(folder) / "run", threads)
            loop = sides.start(f"loop-{model}", "unforced_side.py", options)
            bare = sides.start(f"bare-{model}", "unforced_side.py", {**options, "bare": True})
            windows = race(sides.all, rounds, {loop.name: updates, bare.name: updates})
            found[model] = details(sides.all, windows)
        speeds = {name: [window.speed for window in turns] for name, turns in windows.items()}
        figure = ratio(speeds[bare.name], speeds[loop.name])
        rows.append(
            row(
                f"{TITLES[model]}: bare loop's tokens/s over ours",
                "bare PyTorch loop",
                figure,
                target=None,
                passed=None,
            )
        )
    return {
        "rows": rows,
        "settings": {
            "data": f"{data.name}, batches of {corpus.BATCH} pairs; those of the bare loop are collated beforehand",
            "rounds": f"{rounds} of {updates} updates a side",
        },
        "sides": found,
    }
