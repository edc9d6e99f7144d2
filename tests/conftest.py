"""The scripts of tools/ as modules, in a project of their own."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TOOLS = Path(__file__).resolve().parents[1] / "tools"


@pytest.fixture
def tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``tool(name, *words)``: the module, which writes below ``tmp_path`` and is called with these words."""

    def loaded(name: str, *words: object) -> Any:
        spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for folder in ("docs/figures", "results"):
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        monkeypatch.setattr(module, "ROOT", tmp_path)
        monkeypatch.setattr("sys.argv", [name, *map(str, words)])
        return module

    return loaded
