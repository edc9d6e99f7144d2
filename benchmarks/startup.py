"""Measure the time of ``unforced --help``, and check that it loads neither torch nor numpy."""

import subprocess
import sys
import time
from pathlib import Path

from harness import row, say

LIMIT = 0.5  # seconds
HEAVY = ("torch", "numpy")
WATCH = f"""
import sys
from unforced.cli import main
sys.argv = ["unforced", "--help"]
try:
    main()
except SystemExit:
    pass
print("loaded:", *(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)
"""


def run(*, quick: bool, threads: int) -> dict:
    command = Path(sys.executable).with_name("unforced")
    times = [_seconds(command) for _ in range(4 if quick else 10)]
    watched = subprocess.run([sys.executable, "-c", WATCH], capture_output=True, text=True, check=True)
    loaded = watched.stderr.strip().splitlines()[-1].removeprefix("loaded:").split()
    best = min(times)
    say(f"  unforced --help: best {best:.3f} s, worst {max(times):.3f} s; loads {', '.join(loaded) or 'nothing heavy'}")
    figure = {"median": best, "low": best, "high": max(times), "rounds": len(times)}
    return {
        "settings": {"command": "unforced --help", "figure": "the best of the runs, in seconds"},
        "rows": [
            row("unforced --help, seconds", "—", figure, target=f"< {LIMIT}", passed=best < LIMIT),
            row(
                "heavy modules loaded by --help",
                "—",
                {"median": len(loaded)},
                target="0",
                passed=not loaded,
                loaded=loaded,
            ),
        ],
    }


def _seconds(command: Path) -> float:
    begin = time.perf_counter()
    subprocess.run([str(command), "--help"], stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin
