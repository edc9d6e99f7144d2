"""results/*.json -> results/README.md."""

import json
from pathlib import Path

HEADER = """# Results

Written by `python benchmarks/run.py`; don't edit. A ratio is the median of its rounds, in square brackets (newer results
have them) the median's 95 % interval, in round ones the smallest and the largest round. What is compared with what, and how, is in [benchmarks/README.md](../README.md).
"""


def write(results: Path) -> Path:
    """One section for each saved benchmark, in the order of their names."""
    parts = [HEADER]
    for path in sorted(results.glob("*.json")):
        parts.append(_section(json.loads(path.read_text(encoding="utf-8"))))
    page = results / "README.md"
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


def _section(result: dict) -> str:
    machine = result["machine"]
    versions = ", ".join(f"{name} {number}" for name, number in result["versions"].items())
    quick = " · a quick run, for orientation only" if result["quick"] else ""
    lines = [
        f"## {result['name']}",
        "",
        f"{machine['processor']}, {machine['cores']} cores, {machine['threads']} threads a side, load"
        f" {machine['load_at_start']} at the start · {result['date']} · {result['seconds']:.0f} s{quick}",
        "",
        versions,
        "",
        "| figure | against | measured | target | |",
        "|---|---|---|---|---|",
    ]
    lines += [_line(row) for row in result["rows"]]
    lines += ["", *(f"- {key}: {_plain(value)}" for key, value in result["settings"].items()), ""]
    return "\n".join(lines)


def _line(row: dict) -> str:
    measured = f"{row['median']:.3g}"
    if "sure_low" in row:
        measured += f" [{row['sure_low']:.3g}, {row['sure_high']:.3g}]"
    if "low" in row:
        measured += f" ({row['low']:.3g} to {row['high']:.3g}, {row['rounds']} rounds)"
    if "absolute" in row:
        measured += f"; {row['absolute']}"
    verdict = {True: "passed", False: "failed", None: "information"}[row["passed"]]
    return f"| {row['figure']} | {row['against']} | {measured} | {row['target'] or '—'} | {verdict} |"


def _plain(value: object) -> str:
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
