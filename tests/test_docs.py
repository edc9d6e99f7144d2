"""The hand-written pages run, and their tables are the generated ones."""

from __future__ import annotations

import doctest
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_examples_in_pages_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.testfile(str(page), module_relative=False, optionflags=options, encoding="utf-8")
    assert failed == 0


def test_tables_in_pages_are_the_generated_ones() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "fill_tables.py"), "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout
