"""Describe the machine, save a benchmark's result as JSON, and write results/README.md."""

import json
import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("unforced", "torch", "accelerate", "transformers", "tokenizers", "numpy")
HEADER = """# Results

Written by `python benchmarks/run.py`; do not edit. A ratio is the median of its rounds. Square brackets have its 95 %
interval (in newer results), round brackets the smallest and the largest round. The comparisons are described in
[benchmarks/README.md](../README.md).
"""


# ---- the machine ----


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """Return the name of the processor."""
    names = Path("/proc/cpuinfo")
    if names.is_file():
        for line in names.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def load() -> float | None:
    """Return the mean number of running processes in the last minute; well above zero means a busy machine."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def describe(threads: int) -> dict[str, Any]:
    """Return the machine, its versions and the number of threads of each side."""
    return {
        "processor": processor(),
        "cores": cores(),
        "threads": threads,
        "load_at_start": load(),
        "system": platform.platform(terse=True),
        "versions": versions(),
    }


# ---- files ----


def save(result: dict, folder: Path) -> None:
    """Write <name>.json in one step, then the page of all results."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{result['name']}.json"
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(result, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.replace(path)
    write_page(folder)


def write_page(folder: Path) -> None:
    """Write a section for each saved benchmark, in the order of their names."""
    parts = [HEADER]
    for path in sorted(folder.glob("*.json")):
        parts.append(_section(json.loads(path.read_text(encoding="utf-8"))))
    (folder / "README.md").write_text("\n".join(parts), encoding="utf-8")


def _section(result: dict) -> str:
    machine = result["machine"]
    numbers = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    quick = " · a quick run, for orientation only" if result["quick"] else ""
    lines = [
        f"## {result['name']}",
        "",
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads a side, load"
        f" {machine['load_at_start']} at the start · {result['date']} · {result['seconds']:.0f} s{quick}",
        "",
        numbers,
        "",
        "| figure | against | measured | target | |",
        "|---|---|---|---|---|",
    ]
    lines += [_line(row) for row in result["rows"]]
    lines += ["", *(f"- {key}: {_plain(value)}" for key, value in result["settings"].items()), ""]
    return "\n".join(lines)


def _line(row: dict) -> str:
    measured = f"{row['median']:.3g}"
    if "interval_low" in row:
        measured += f" [{row['interval_low']:.3g}, {row['interval_high']:.3g}]"
    if "low" in row:
        measured += f" ({row['low']:.3g} to {row['high']:.3g}, {row['rounds']} rounds)"
    if "absolute" in row:
        measured += f"; {row['absolute']}"
    verdict = {True: "passed", False: "failed", None: "information"}[row["passed"]]
    return f"| {row['figure']} | {row['against']} | {measured} | {row['target'] or '—'} | {verdict} |"


def _plain(value: object) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
