"""Write the tables of which objective trains which Hugging Face models, from what the tests find.

`python tools/model_kinds.py` runs the tests that try every objective on every kind of model, and the sweep over all
architectures. It writes results/huggingface.md and results/huggingface_architectures.md; docs/huggingface.md shows
them.
"""

import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = ROOT / "tests" / "huggingface"
COLUMNS = {
    "t5": "encoder-decoder (T5)",
    "gpt2": "causal (GPT-2)",
    "bert": "masked (BERT)",
    "checkpointing": "with gradient checkpointing",
}


class Outcomes:
    """Collects what the tests record."""

    def __init__(self) -> None:
        self.objectives: dict[str, dict[str, str]] = defaultdict(dict)
        self.sweeps: list[dict[str, Any]] = []
        self.failed: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)
        recorded: dict[str, Any] = dict(report.user_properties)
        if report.when == "call" and "objective" in recorded:
            self.objectives[recorded["objective"]][recorded["column"]] = recorded["outcome"]
        if report.when == "call" and "sweep" in recorded:
            self.sweeps.append(recorded["sweep"])


def objective_table(found: dict[str, dict[str, str]]) -> str:
    """Return a row for each objective."""
    rows = [[f"`{name}`", *(outcomes.get(column, "–") for column in COLUMNS)] for name, outcomes in found.items()]
    return table(["objective", *COLUMNS.values()], rows)


def architecture_tables(sweeps: list[dict[str, Any]]) -> str:
    """Return how many architectures of each kind work with each method, and why the others do not."""
    methods = list(dict.fromkeys(method for sweep in sweeps for method in sweep["trained"]))
    counts = [
        [sweep["kind"], *(str(sweep["trained"].get(method, "–")) for method in methods), str(len(sweep["not_built"]))]
        for sweep in sweeps
    ]
    lacking: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for sweep in sweeps:
        for reason, pairs in sweep["missing"].items():
            for key in dict.fromkeys(key for key, _ in pairs):
                without = ", ".join(f"`{method}`" for other, method in pairs if other == key)
                lacking[reason, without].append(key)
    reasons = [[reason, without, ", ".join(sorted(set(keys)))] for (reason, without), keys in lacking.items()]
    return "\n".join([
        table(["kind", *(f"`{method}`" for method in methods), "not tried"], counts),
        table(["what is missing", "methods that do not work", "architectures"], sorted(reasons)),
    ])  # fmt: skip


def table(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines) + "\n"


def main() -> int:
    outcomes = Outcomes()
    files = [str(TESTS / "test_hf_kinds.py"), str(TESTS / "test_hf_sweep.py")]
    code = pytest.main(["-q", "-m", "", "-p", "no:cacheprovider", "-k", "not table", *files], plugins=[outcomes])
    if code or outcomes.failed:
        print(f"not written: {', '.join(outcomes.failed) or 'the tests did not run'}")
        return 1
    results = {"huggingface": objective_table(outcomes.objectives)}
    results["huggingface_architectures"] = architecture_tables(outcomes.sweeps)
    for name, text in results.items():
        (ROOT / "results" / f"{name}.md").write_text(text, encoding="utf-8")
        print(f"written: results/{name}.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
