"""Public names of a package, imported on first use."""

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_exports(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return ``__getattr__``, ``__dir__`` and ``__all__`` for a package.

    The names are those that the package imports under ``if TYPE_CHECKING:``. Editors and type checkers read these
    imports directly; at run time each is done when its name is first used, so that ``import unforced`` does not
    import torch.
    """
    module: Any = sys.modules[package]
    homes: dict[str, str] = {}
    for node in ast.parse(module.__spec__.loader.get_source(package)).body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            imports = [line for line in node.body if isinstance(line, ast.ImportFrom)]
            homes |= {alias.name: str(line.module) for line in imports for alias in line.names}

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        is_module = homes[name] == package
        value = import_module(f"{package}.{name}") if is_module else getattr(import_module(homes[name]), name)
        vars(module)[name] = value
        return value

    return get, lambda: sorted({*vars(module), *homes}), sorted(homes)
