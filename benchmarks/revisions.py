"""This checkout against an earlier commit of itself, other libraries beside them: training and beam search in turn."""

import subprocess
import tempfile
from pathlib import Path

import corpus
from harness import HERE, WORK, Side, SideError, Sides, ratio, row, say
from race import details, race, wish
from training_speed import JOEYNMT, TITLES, make_joeynmt

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
            asked = {name: wish(model, data, Path(folder) / name, threads) for name in ("before", "now", "others")}
            sides.start("before", "unforced_side.py", asked["before"], tree=before)
            sides.start("now", "unforced_side.py", asked["now"])
            sides.start("Hugging Face Trainer", "huggingface_side.py", asked["others"])
            sides.start("JoeyNMT", "joeynmt_side.py", {**asked["others"], "grouped": False}, python=JOEYNMT)
            rows += measure(f"training, {TITLES[model]}", sides.all, rounds, updates, found)
    for size in (1, 16):
        with Sides() as sides:
            asked = {**wish("transformer", data, WORK, threads), "batch": size}
            for name, tree in (("before", before), ("now", HERE.parent), ("generate", HERE.parent)):
                more = {"tree": str(tree), "generate": name == "generate"}
                sides.start(name, "beam_side.py", {**asked, **more})
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
    """Let the sides take turns; one row for the present code against each of the others."""
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
    """The tree of a commit below ``WORK``, written once."""
    tree = WORK / f"tree-{revision}"
    if not tree.exists():
        tree.mkdir(parents=True)
        archive = subprocess.run(["git", "archive", revision], cwd=HERE.parent, capture_output=True)
        if archive.returncode:
            raise SideError(f"git has no commit {revision}: {archive.stderr.decode().strip()}")
        subprocess.run(["tar", "-x", "-C", str(tree)], input=archive.stdout, check=True)
    return tree
