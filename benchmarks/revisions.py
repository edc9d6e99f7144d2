"""Compare this checkout with an earlier commit and with other libraries: training and beam search. No target."""

import subprocess
import tempfile
from pathlib import Path

import corpus
from harness import HERE, WORK, Side, SideError, Sides, details, race, ratio, row, say
from training_speed import JOEYNMT, TITLES, make_joeynmt, side_options

BEFORE = "ee70e6d"  # the last commit before the rebuild into rooms
FULL, QUICK = (12, 15), (3, 8)  # rounds, and updates in each


def run(*, quick: bool, threads: int) -> dict:
    rounds, updates = QUICK if quick else FULL
    data = corpus.prepare(WORK)
    before = checkout(BEFORE)
    make_joeynmt()
    rows, found = [], {}
    for model in ("transformer", "lstm"):
        with tempfile.TemporaryDirectory(prefix="unforced-bench-") as folder, Sides() as sides:
            options = {
                name: side_options(model, data, Path(folder) / name, threads) for name in ("before", "now", "others")
            }
            sides.start("before", "unforced_side.py", options["before"], checkout=before)
            sides.start("now", "unforced_side.py", options["now"])
            sides.start("Hugging Face Trainer", "huggingface_side.py", options["others"])
            sides.start("JoeyNMT", "joeynmt_side.py", {**options["others"], "grouped": False}, python=JOEYNMT)
            rows += measure(f"training, {TITLES[model]}", sides.all, rounds, updates, found)
    for size in (1, 16):
        with Sides() as sides:
            common = {**side_options("transformer", data, WORK, threads), "batch": size}
            for name, folder in (("before", before), ("now", HERE.parent), ("generate", HERE.parent)):
                options = {**common, "generate": name == "generate"}
                sides.start(name, str(HERE / "sides" / "beam_side.py"), options, checkout=folder)
            rows += measure(
                f"beam 5, batch {size}, 20 tokens forced", sides.all, rounds, max(4, updates // size), found
            )
    settings = {
        "before": BEFORE,
        "data": f"{data.name}, {data.vocabulary} joint pieces; training in batches of {corpus.BATCH} pairs",
        "rounds": f"{rounds} of {updates} updates (JoeyNMT as many)",
    }
    return {"rows": rows, "settings": settings, "sides": found}


def measure(title: str, sides: list[Side], rounds: int, updates: int, found: dict) -> list[dict]:
    """Let the sides take turns; return a row for the present code against each of the others."""
    say(f"  {title}")
    windows = race(sides, rounds, {side.name: updates for side in sides})
    found[title] = details(sides, windows)
    speeds = {name: [window.speed for window in turns] for name, turns in windows.items()}
    return [
        row(f"{title}: tokens/s", name, ratio(speeds["now"], speeds[name]), target=None, passed=None)
        for name in speeds
        if name != "now"
    ]


def checkout(revision: str) -> Path:
    """Return a folder with the files of a commit, written once."""
    folder = WORK / f"checkout-{revision}"
    if not folder.exists():
        folder.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", revision], cwd=HERE.parent, capture_output=True)
        if archive.returncode:
            raise SideError(f"git has no commit {revision}: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", str(folder)], input=archive.stdout, check=True)
    return folder
