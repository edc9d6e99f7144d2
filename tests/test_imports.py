"""Rooms import one way: each may import the rooms before it in the list, never those after it."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import unforced

ROOT = Path(unforced.__file__).parent
ROOMS = [
    "lazy",
    "errors",
    "options",
    "types",
    "protocols",
    "ops",
    "metrics",
    "models",
    "tasks",
    "decoding",
    "energy",
    "registry",
    "recipes.fields",
    "training.options",
    "recipes",
    "objectives",
    "training",
    "huggingface",
    "chains",
    "diagnosis",
    "experiments",
    "reports",
    "api",
    "cli",
]


def imports(path: Path) -> set[str]:
    """The modules of this package that a file imports at run time, without the package's name."""
    found = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            return
        if isinstance(node, ast.ImportFrom) and node.module == "unforced":
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("unforced."):
            found.add(str(node.module).removeprefix("unforced."))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def place(module: str) -> int:
    """The position of a module's room; a module that is listed itself has a position of its own."""
    return ROOMS.index(module if module in ROOMS else module.split(".")[0])


def test_rooms_import_one_way() -> None:
    backwards: set[tuple[str, str]] = set()
    for path in ROOT.rglob("*.py"):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        if module not in ("__init__", "__main__"):
            backwards |= {
                (module, other)
                for other in imports(path)
                if not other.startswith("__") and place(other) > place(module)
            }
    assert not backwards


@pytest.mark.parametrize(
    "module",
    [
        "unforced",
        "unforced.cli",
        "unforced.reports.page",
        "unforced.metrics.significance",
        "unforced.training.run_folder",
        "unforced.recipes.recipe",
    ],
)
def test_light_modules_do_not_import_torch(module: str) -> None:
    code = f"import sys, {module}; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
