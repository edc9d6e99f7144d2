"""Run the benchmarks: ``python benchmarks/run.py [NAMES…] [--quick] [--threads N]``.

Each benchmark writes results/<name>.json and results/README.md when it ends, so a stopped run keeps what it has. The
exit code is 1 if a target is missed, and 2 if a benchmark could not run.
"""

import argparse
import importlib
import os
import signal
import sys
import time
from datetime import UTC, datetime

import report
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
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of {', '.join(NAMES)}; default: all")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, for orientation only")
    parser.add_argument("--threads", type=int, default=report.cores(), help="threads of each side; default: all cores")
    options = parser.parse_args()
    unknown = set(options.names) - set(NAMES)
    if unknown:
        parser.error(f"unknown benchmark {', '.join(sorted(unknown))}; the names are {', '.join(NAMES)}")
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # before the first import of torch
    about = report.describe(options.threads)
    numbers = about.pop("versions")
    say("\n".join(f"{key}: {value}" for key, value in {**about, **numbers}.items()))
    codes = [run(name, options.quick, options.threads) for name in NAMES if name in (options.names or NAMES)]
    say(f"table: {RESULTS / 'README.md'}")
    return max(codes)


def run(name: str, quick: bool, threads: int) -> int:
    """Run one benchmark, save its result and return the exit code."""
    say(f"\n{name}")
    about = report.describe(threads)
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
    report.save(result, RESULTS)
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
