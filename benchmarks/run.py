"""Run the benchmarks: ``python benchmarks/run.py [NAMES…] [--quick] [--threads N]``.

Each benchmark writes results/<name>.json when it is done, and results/README.md is written anew, so a stopped run
keeps what it has. The exit code is 1 if a target is missed and 2 if a benchmark couldn't run.
"""

import argparse
import importlib
import json
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import machine
import table
from harness import RESULTS, SideError, say

NAMES = (
    "startup",
    "beam_speed",
    "training_speed",
    "revisions",
    "loop_overhead",
    "scheduled_sampling",
    "soft_beam",
    "loss_smoothing",
    "huggingface",
    "energy",
)


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the library against others; see benchmarks/README.md.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)} (all if none is given)")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds: for orientation only")
    parser.add_argument("--threads", type=int, default=machine.cores(), help="threads for each side (all cores)")
    wishes = parser.parse_args()
    unknown = set(wishes.names) - set(NAMES)
    if unknown:
        parser.error(f"no benchmark {', '.join(sorted(unknown))}: there are {', '.join(NAMES)}")
    os.environ["OMP_NUM_THREADS"] = str(wishes.threads)  # before the first import of torch
    about = machine.describe(wishes.threads)
    numbers = about.pop("versions")
    say("\n".join(f"{key}: {value}" for key, value in {**about, **numbers}.items()))
    codes = [_measure(name, wishes.quick, wishes.threads) for name in NAMES if name in (wishes.names or NAMES)]
    say(f"table: {RESULTS / 'README.md'}")
    return max(codes)


def _measure(name: str, quick: bool, threads: int) -> int:
    """Run one benchmark and save what it found."""
    say(f"\n{name}")
    about = machine.describe(threads)
    begin = time.perf_counter()
    try:
        found = importlib.import_module(name).run(quick=quick, threads=threads)
    except SideError as error:
        say(f"  {name} could not run: {error}")
        return 2
    result = {
        "name": name,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "quick": quick,
        "seconds": round(time.perf_counter() - begin, 1),
        "versions": {**about.pop("versions"), **found.pop("versions", {})},
        "machine": about,
        **found,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(path)
    table.write(RESULTS)
    for line in result["rows"]:
        verdict = {True: "passed", False: "FAILED", None: "information"}[line["passed"]]
        target = f" (target {line['target']})" if line["target"] else ""
        say(f"  {line['figure']} against {line['against']}: {line['median']:.3g}{target} {verdict}")
    return int(any(line["passed"] is False for line in result["rows"]))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # clean up as after Ctrl-C
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        say("\nstopped; finished benchmarks are saved")
        sys.exit(130)
