"""Write the table of the objectives that train each kind of Hugging Face model.

    python tools/model_kinds.py

This runs the tests of every objective on every kind of model, and writes results/huggingface.md from their outcomes.
"""

import sys
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "results" / "huggingface.md"
TESTS = ROOT / "tests" / "huggingface" / "test_hf_kinds.py"
COLUMNS = {
    "t5": "encoder-decoder (T5)",
    "gpt2": "causal (GPT-2)",
    "bert": "masked (BERT)",
    "checkpointing": "with gradient checkpointing",
}


class Outcomes:
    """A pytest plugin that collects what the tests record: an objective, a column, and the outcome."""

    def __init__(self) -> None:
        self.found: dict[str, dict[str, str]] = defaultdict(dict)
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        record = dict(report.user_properties)
        if report.when == "call" and "objective" in record:
            self.found[str(record["objective"])][str(record["column"])] = str(record["outcome"])


def table(found: dict[str, dict[str, str]]) -> str:
    """Return a Markdown table with a row for each objective."""
    lines = [
        f"| objective | {' | '.join(COLUMNS.values())} |",
        f"|---|{'---|' * len(COLUMNS)}",
        *(
            f"| `{name}` | {' | '.join(outcomes.get(column, '–') for column in COLUMNS)} |"
            for name, outcomes in found.items()
        ),
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    outcomes = Outcomes()
    options = ["-q", "-m", "", "-p", "no:cacheprovider", "-k", "not table"]
    code = pytest.main([*options, str(TESTS)], plugins=[outcomes])
    if code or outcomes.failed:
        print(f"not written: {', '.join(outcomes.failed) or 'the tests did not run'}")
        return 1
    TABLE.write_text(table(outcomes.found), encoding="utf-8")
    print(f"written: {TABLE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
