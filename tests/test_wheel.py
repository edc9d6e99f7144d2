"""The wheel holds everything the package needs, and works outside the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
def test_the_wheel_works_outside_the_checkout(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, cwd=tmp_path)
    (wheel,) = tmp_path.glob("unforced-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(tmp_path / "site")
    recipes = {path.name for path in (ROOT / "src/unforced/recipes/builtin").glob("*.toml")}
    assert {Path(name).name for name in names if name.startswith("unforced/recipes/builtin/")} == recipes
    assert "unforced/py.typed" in names
    assert "unforced/reports/templates/report.html.jinja" in names
    assert "unforced/reports/templates/comparison.html.jinja" in names
    assert not [name for name in names if name.startswith(("tests/", "benchmarks/"))]

    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "unforced", *words]
        return subprocess.run(command, env=environment, cwd=tmp_path, check=True, capture_output=True, text=True).stdout

    where = subprocess.run(
        [sys.executable, "-c", "import unforced; print(unforced.__file__)"],
        env=environment, cwd=tmp_path, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    assert str(tmp_path / "site") in where
    assert "g2p" in run("list", "recipes")
    small = ["task.size=50", "task.held_out=10", "training.epochs=1"]
    run("train", "palindromes", "--run", str(tmp_path / "run"), "--quiet", *small)
    run("evaluate", str(tmp_path / "run"), "--quiet")
    run("report", str(tmp_path / "run"), "--output", str(tmp_path / "report.html"))
    assert "<svg" in (tmp_path / "report.html").read_text()
