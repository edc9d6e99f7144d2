"""The table of exact likelihoods, and the figure of the projection."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from unforced.experiments.comparison import Cell, Comparison, Row, RunState
from unforced.recipes.recipe import load
from unforced.tasks.synthetic import HMM

MEASURES = ("sequence_nll", "pseudo_nll", "masked_nll")
PROJECTED = {"mlm_100k": 5.8, "pll_30": 6.5, "kl_30": 5.2, "pll_100": 5.6, "kl_100": 5.1}


def comparison(scores: dict[str, float], baseline: str) -> Comparison:
    """Return a comparison in which all metrics of a variant have the same score."""
    rows = [
        Row(name, "mask_predict", None, dict.fromkeys(MEASURES, Cell({"1": nll, "2": nll}, nll, 0.5)))
        for name, nll in scores.items()
    ]
    runs = [RunState(name, seed, name) for name in scores for seed in (1, 2)]
    return Comparison("x", "", "", baseline, "test", None, 0.95, 0, 0, (), tuple(rows), tuple(runs))


def write(folder: Path, recipe: str, found: Comparison) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "comparison.json").write_text(found.to_json())
    (folder / "recipe.toml").write_text(load(recipe).to_toml())


def test_projection_figure(tmp_path: Path, tool: Callable[..., Any]) -> None:
    figure = tool("projection_figure", tmp_path)
    for name, baseline in (("energy_projection", "mlm_100k"), ("energy_projection_phonemes", "mlm_35k")):
        measured = {baseline if key == "mlm_100k" else key: nll for key, nll in PROJECTED.items()}
        write(tmp_path / name, name, comparison(measured, baseline))
        panel = figure.panel_of(tmp_path / name)
        found = {line.label: (tuple(line.x), tuple(line.y)) for line in panel.lines}
        assert found.pop(figure.LABELS["pll"]) == ((30, 100), (6.5, 5.6))
        assert found.pop(figure.LABELS["kl"]) == ((30, 100), (5.2, 5.1))
        strings = "100,000" if name == "energy_projection" else "35,000"
        assert found.pop(f"the masked model itself ({strings} strings)") == ((30, 100), (5.8, 5.8))
        levels = [y for _, y in found.values()]
        true = HMM(emissions="low").surprise("test")
        assert levels == ([(true, true)] if name == "energy_projection" else [])
    assert figure.main() == 0
    assert "<svg" in (tmp_path / "docs/figures/projection.svg").read_text()


def test_energy_table(tmp_path: Path, tool: Callable[..., Any]) -> None:
    table = tool("energy_table", tmp_path)
    for name in table.DATA:
        if name == "energy_phonemes":
            found = comparison({"pll": 14.5, "mlm": 18.2}, "pll")
        else:
            found = comparison({"ll_1k": 5.1, "pll_1k": 5.2, "mlm_1k": 6.0, "ll_10k": 5.0}, "ll_1k")
        write(tmp_path / name, name, found)
    assert table.main() == 0
    rows = (tmp_path / "results/energy.md").read_text().splitlines()
    true = f"{HMM().surprise('test'):.3f}"
    one, ten = "5.200 ± 0.500", "5.000 ± 0.500"
    assert (
        f"| HMM of low entropy | 1k | 2 | {true} | 5.100 ± 0.500 | {one} | 6.000 ± 0.500 | {one} | 6.000 ± 0.500 |"
        in rows
    )
    assert f"| HMM of low entropy | 10k | 2 | {true} | {ten} | – | – | – | – |" in rows
    phonemes = next(row for row in rows if row.startswith("| phonemes"))
    assert phonemes.split(" | ")[1:6] == ["all", "2", "–", "–", "14.500 ± 0.500"]
