"""The import graph points one way (docs/design.md), and what must start fast imports nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import unforced

ROOT = Path(unforced.__file__).parent

LEAVES = {
    "errors",
    "options",
    "types",
    "rows",
    "masking",
    "relax",
    "schedules",
    "streams",
    "costs",
    "metrics",
}
ALLOWED = {
    "errors": set(),
    "types": set(),
    "options": {"errors"},
    "rows": {"types"},
    "masking": set(),
    "relax": {"errors", "masking"},
    "schedules": {"errors", "options", "types"},
    "streams": {"types"},
    "costs": {"errors", "options", "types"},
    "metrics": {"errors", "types", "metrics"},
    "models": LEAVES | {"models"},
    "decoding": LEAVES | {"models", "decoding"},
    "energy": LEAVES | {"models.protocol", "decoding", "energy"},
    "energy.chains": {"errors", "types", "decoding", "energy", "training"},
    "objectives": LEAVES | {"models", "decoding", "energy", "objectives"},
    "tasks": {"errors", "options", "types", "metrics", "tasks"},
    "training": {"errors", "options", "types", "masking", "models.protocol", "objectives.protocol", "tasks.protocol", "metrics.protocol", "decoding", "energy", "training"},
    "significance": {"errors"},
    "comparison": {"errors", "training.files"},
    "tables": {"errors", "comparison"},
    "report": {"errors", "comparison", "tables", "significance", "training.records", "training.files", "report"},
    "schema": {"errors", "options", "catalogue"},
    "trees": {"errors", "schema"},
    "catalogue": {"errors"},
    "describe": {"options", "schema", "catalogue", "recipe"},
    "recipe": {"errors", "options", "schema", "trees", "catalogue", "training.options", "types"},
    "earlier": {"recipe", "errors"},
    "graded": {"metrics", "training.files"},
    "sampled": {"energy", "graded"},
}  # fmt: skip
# on top of everything: may import what they like
TOP = {
    "api",
    "integrations",
    "loading",
    "sampling",
    "sentences",
    "stream",
    "compare",
    "plots",
    "cli",
    "__init__",
    "__main__",
}


def local_imports(path: Path) -> set[str]:
    """The modules of this package that a file imports when it runs (type-checking-only imports do not count)."""
    found = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            for child in node.orelse:
                visit(child)
            return
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names if a.name.startswith("unforced."))
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "unforced":
            if node.module == "unforced":
                found.update(f"unforced.{a.name}" for a in node.names)
            else:
                found.add(node.module)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return {name.removeprefix("unforced.") for name in found}


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_one_way(path: Path) -> None:
    parts = path.relative_to(ROOT).with_suffix("").parts
    part = ".".join(parts) if ".".join(parts) in ALLOWED else parts[0]  # a module, or else its package
    if part in TOP:
        return
    assert part in ALLOWED, (
        f"{part} has no place in the import graph yet: give it one in docs/design.md and here"
    )
    for module in local_imports(path):
        allowed = any(module == a or module.startswith(a + ".") for a in ALLOWED[part])
        assert allowed, f"{part} may not import {module}"


@pytest.mark.parametrize(
    "module", ["unforced", "unforced.cli", "unforced.report", "unforced.significance", "unforced.training.records", "unforced.recipe"]
)  # fmt: skip
def test_light_modules_do_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
