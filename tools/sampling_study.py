"""Reproduce Tables 6.2–6.5 and Figures 6.2–6.4 of Goyal (2021) with a conditional masked model.

    python tools/sampling_study.py RUN FOLDER [--examples N] [--chains K] [--start greedy|random]

RUN is a run folder of the recipe ``multi30k_masked``. Chains translate the first development sentences whose source
has at most 20 tokens, as in the thesis. Outputs have the most probable length. Chains start from the most probable
tokens (Algorithm 4, line 3) or, with ``--start random``, from random tokens, as for Figure 6.2. From random tokens,
proposals from a nucleus are rarely accepted: the token to replace lies outside the nucleus, so the move cannot be
undone.

FOLDER stores the result of each setting, so an interrupted study continues with the next one. Tables go to
results/sampling_*.md, figures to docs/figures/sampling_*.svg.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import torch

from unforced.chains.readers import Reader, Sentence, open_model
from unforced.chains.results import score_samples
from unforced.chains.sampling import sweeps_from
from unforced.energy import energies
from unforced.energy.gibbs import Gibbs
from unforced.energy.mask_predict import random_start, warm_start
from unforced.energy.metropolis_hastings import MetropolisHastings
from unforced.models.modes import evaluation_mode
from unforced.ops.random_streams import generator
from unforced.protocols import Sampler
from unforced.reports.figures import Line, Panel, draw_panels
from unforced.training.run_folder import replace_json

ROOT = Path(__file__).resolve().parent.parent
SWEEPS, BURN_IN = 33, 7  # as in the thesis
BLOCK, SHRINK = 6, 26  # the thesis gives neither
EVERY = 2  # energies and BLEU are computed every so many sweeps
SEED = 1
STARTS = {"greedy": "the model's first guess", "random": "random tokens"}
LONGEST = 20  # tokens of a source
SEARCHED = 1000  # sentences among which short ones are selected


class Setting(NamedTuple):
    """One sampler: its energy ("gibbs" has none), and options of its kernel."""

    sampler: str
    options: tuple[tuple[str, float], ...] = ()

    @property
    def name(self) -> str:
        return "-".join([self.sampler, *(f"{key}_{value:g}" for key, value in self.options)])

    def kernel(self) -> Sampler:
        options: dict[str, Any] = dict(self.options)
        if self.sampler == "gibbs":
            return Gibbs(energy=None, **options)
        return MetropolisHastings(energy=self.sampler, **options)  # type: ignore[arg-type]


def varied(
    option: str, values: Sequence[float], samplers: Sequence[str], default: float | None = None
) -> dict[str, list[Setting]]:
    """Return the settings for each value of an option; the default value needs no option."""
    return {
        f"{value:g}": [Setting(s, () if value == default else ((option, value),)) for s in samplers] for value in values
    }


ALL, TWO = ("gibbs", "local", "raw"), ("local", "gibbs")
TABLES: dict[str, dict[str, list[Setting]]] = {
    "plain": {"temperature 1, one position": [Setting(s) for s in ALL]},
    "temperature": varied("temperature", (2.0, 1.5, 1.0, 0.8, 0.5), TWO, default=1.0),
    "nucleus": varied("nucleus", (1.0, 0.99, 0.95, 0.9, 0.8), TWO, default=1.0),
    "block": {f"{BLOCK} to 1 in {SHRINK} sweeps": [Setting(s, (("block", BLOCK), ("shrink", SHRINK))) for s in ALL]},
    "anneal": varied("anneal", (0.02, 0.04, 0.06), ("local", "raw")),
}
FIGURES = {"plain": ("energy", "score"), "block": ("acceptance", "energy"), "anneal": ("acceptance", "energy", "score")}
LABELS = {"energy": "local energy of a sentence", "score": "BLEU", "acceptance": "share of proposals accepted"}


def short_sentences(reader: Reader, examples: int) -> tuple[list[Sentence], list[Sequence[Any]]]:
    """Return the first development sentences with short sources, and their references."""
    sentences, answers = reader.examples("dev", SEARCHED), reader.answers("dev", SEARCHED)
    assert answers is not None
    short = [pair for pair in zip(sentences, answers) if len(pair[0].encoded.source) <= LONGEST]
    if len(short) < examples:
        raise SystemExit(f"only {len(short)} of the first {SEARCHED} development sentences are short enough")
    return [sentence for sentence, _ in short[:examples]], [answer for _, answer in short[:examples]]


def measure(reader: Reader, setting: Setting, examples: int, chains: int, start: str) -> dict[str, list[list[float]]]:
    """Run chains; return acceptance and novel transitions of each sweep, local energy and BLEU of every second one."""
    sentences, answers = short_sentences(reader, examples)
    batch = reader.fit_lengths(reader.collate(sentences), None)
    free = energies.variables(batch).repeat_interleave(chains, dim=0)
    kernel = setting.kernel().kernel(reader.model, batch)
    tokens = (
        warm_start(reader.model, batch, chains)
        if start == "greedy"
        else random_start(batch, reader.size, generator(batch.gold.device, SEED, 0), chains)
    )
    found: dict[str, list[list[float]]] = {"acceptance": [], "novel": [], "energy": [], "score": []}
    for number, state, info in sweeps_from(kernel, kernel.init(tokens), SEED, SWEEPS):
        proposed = max(1, int(info.proposed.sum()))
        found["acceptance"].append([number, int(info.accepted.sum()) / proposed])
        found["novel"].append([number, int(info.novel.sum()) / proposed])
        if number % EVERY and number != SWEEPS:
            continue
        with evaluation_mode(reader.model):
            energy = energies.energy(reader.model, batch, state.tokens, "local")
        rows = [reader.show(row[here].tolist()) for row, here in zip(state.tokens, free)]
        lines = [
            {"sweep": number, "example": i // chains, "chain": i % chains, "output": text}
            for i, text in enumerate(rows)
        ]
        (score,) = next(iter(score_samples(lines, answers, reader.metrics()[:1]).values()))
        found["energy"].append([number, float(energy.mean())])
        found["score"].append([number, score[1]])
    return found


def mean_after_burn_in(rows: Sequence[Sequence[float]]) -> float:
    """Return the mean over the sweeps after burn-in."""
    return fmean(value for sweep, value in rows if sweep > BURN_IN)


def table(columns: dict[str, list[Setting]], found: dict[str, Any]) -> str:
    """Return a table with a row for each setting."""
    lines = ["| setting | sampler | local energy | accepted | novel | BLEU |", "|---|---|---:|---:|---:|---:|"]
    for column, settings in columns.items():
        for setting in settings:
            values = found[setting.name]
            figures = [
                f"{mean_after_burn_in(values[key]):.{digits}f}"
                for key, digits in (("energy", 2), ("acceptance", 2), ("novel", 2), ("score", 2))
            ]
            lines.append(f"| {column} | {setting.sampler} | {' | '.join(figures)} |")
    return "\n".join(lines) + "\n"


def picture(columns: dict[str, list[Setting]], keys: Sequence[str], found: dict[str, Any], path: Path) -> None:
    """Draw a panel for each quantity, with a line for each setting."""
    panels = []
    for key in keys:
        lines = []
        for column, settings in columns.items():
            for setting in settings:
                label = setting.sampler if len(columns) == 1 else f"{setting.sampler}, {column}"
                x, y = zip(*found[setting.name][key])
                lines.append(Line(label, x, y))
        panels.append(Panel(lines, "sweeps", LABELS[key]))
    draw_panels(panels, path)


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare samplers on a conditional masked model.")
    parser.add_argument("run", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--examples", type=int, default=30)
    parser.add_argument("--chains", type=int, default=5)
    parser.add_argument("--start", choices=tuple(STARTS), default="greedy")
    args = parser.parse_args()
    torch.set_flush_denormal(True)
    reader, found = open_model(args.run), {}
    args.folder.mkdir(parents=True, exist_ok=True)
    settings = dict.fromkeys(s for columns in TABLES.values() for row in columns.values() for s in row)
    for number, setting in enumerate(settings, start=1):
        path = args.folder / f"{setting.name}-{args.start}-{args.examples}x{args.chains}.json"
        print(f"[{number}/{len(settings)}] {setting.name}", file=sys.stderr, flush=True)
        if not path.is_file():
            replace_json(path, measure(reader, setting, args.examples, args.chains, args.start))
        found[setting.name] = json.loads(path.read_text())
    command = "python tools/sampling_study.py RUN FOLDER"
    caption = (
        f"{args.examples} development sentences of at most {LONGEST} tokens, {args.chains} chains each"
        f" from {STARTS[args.start]}; means of sweeps {BURN_IN + 1} to {SWEEPS}. Regenerated by"
        f" `{command} --examples {args.examples} --chains {args.chains} --start {args.start}`.\n"
    )
    for name, columns in TABLES.items():
        (ROOT / "results" / f"sampling_{name}.md").write_text(f"{table(columns, found)}\n{caption}", encoding="utf-8")
    for name, keys in FIGURES.items():
        picture(TABLES[name], keys, found, ROOT / "docs" / "figures" / f"sampling_{name}.svg")
    return 0


if __name__ == "__main__":
    sys.exit(main())
