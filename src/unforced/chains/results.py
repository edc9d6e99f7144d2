"""How good the sequences of chains are by a task's metrics, sweep by sweep."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from unforced.chains.chains import Traces
from unforced.energy.diagnostics import MAX_RHAT, MIN_ESS, Diagnosis
from unforced.protocols import Metric
from unforced.training.run_folder import read_json, replace_json

FILE = "scores.json"  # beside the chains: {metric: [[sweep, score], …]}
Scores = dict[str, list[tuple[int, float]]]  # by metric: the sweeps that were kept, and the score of each


def graded(samples: Sequence[Mapping[str, Any]], answers: Sequence[Sequence[Any]], metrics: Sequence[Any]) -> Scores:
    """The score of all examples' outputs together, for each sweep that is kept: the mean over chains.

    ``samples`` are lines of samples.jsonl, ``answers`` what each example's output may be. Metrics of models, not outputs, are
    left out.
    """
    outputs: dict[int, dict[int, dict[int, str]]] = {}  # by sweep, chain and example
    for line in samples:
        outputs.setdefault(line["sweep"], {}).setdefault(line["chain"], {})[line["example"]] = line["output"]
    found: Scores = {}
    for metric in metrics:
        if isinstance(metric, Metric):
            found[metric.name] = [
                (sweep, fmean(_score(metric, chain, answers) for chain in chains.values()))
                for sweep, chains in sorted(outputs.items())
            ]
    return found


def _score(metric: Metric, outputs: Mapping[int, str], answers: Sequence[Sequence[Any]]) -> float:
    texts = [outputs[example] for example in sorted(outputs)]
    gold = [answers[example] for example in sorted(outputs)]
    return float(metric.score(metric.statistics(texts, gold).sum(axis=0)))


def write(folder: Path, scores: Scores) -> None:
    replace_json(folder / FILE, scores)


def read(folder: Path) -> Scores:
    """The scores beside chains; none where they were not graded."""
    if not (folder / FILE).is_file():
        return {}
    return {name: [(int(s), float(x)) for s, x in rows] for name, rows in read_json(folder / FILE).items()}


# What is to be said of chains that have been run: figures, a table, and doubts.

SHOWN = 8  # stuck chains that are named


class Sampled(NamedTuple):
    """Chains in a folder, and what is to be said of them."""

    folder: Path
    traces: Traces
    diagnosis: Diagnosis
    picture: Path
    scores: Scores  # of the outputs by the task's metrics, where their examples have answers
    left_out: int  # sweeps of burn-in
    forced: int = 0  # sweeps in which everything was accepted
    annealed: bool = False  # whether the target changed from sweep to sweep

    def report(self) -> dict[str, Any]:
        """The diagnosis in plain words and numbers."""
        found, rows = self.diagnosis, len(self.diagnosis.stuck)
        chains = rows // max(1, len(found.rhat))
        return {
            "acceptance": found.acceptance,
            "novel_transitions": found.novel,
            "energy": found.energy,
            "last_energy": found.last_energy,
            "rhat": None if self.annealed else found.worst_rhat,
            "ess": None if self.annealed else found.least_ess,
            "doubtful_examples": None if self.annealed else int(found.unconverged.sum()),
            "examples": len(found.rhat),
            "chains": chains,
            "stuck": [list(divmod(row, chains)) for row in found.stuck.nonzero().squeeze(1).tolist()],
            "scores": {name: {"mean": self.mean(name), "last": rows[-1][1]} for name, rows in self.scores.items()},
        }

    def mean(self, metric: str) -> float:
        """The mean score of the sweeps behind burn-in that were kept; of the last one if there is none."""
        later = [score for sweep, score in self.scores[metric] if sweep > self.left_out]
        return fmean(later or [self.scores[metric][-1][1]])

    def rows(self) -> list[tuple[str, str]]:
        """The report as lines of a table."""
        said = self.report()
        several = f", worst of {said['examples']} examples" if said["examples"] > 1 else ""
        return [
            ("acceptance", f"{said['acceptance']:.3f}"),
            ("novel transitions", f"{said['novel_transitions']:.3f}"),
            ("energy, mean", f"{said['energy']:.3f}"),
            ("energy, last", f"{said['last_energy']:.3f}"),
            *(
                [("R-hat, effective sample size", "none: the target was annealed")]
                if self.annealed
                else [
                    (f"R-hat{several}", f"{said['rhat']:.3f}"),
                    (f"effective sample size{several}", f"{said['ess']:.0f}"),
                ]
            ),
            ("stuck chains", f"{len(said['stuck'])} of {len(self.diagnosis.stuck)}"),
            *(
                (f"{name}, {which}", f"{said['scores'][name][which]:.2f}")
                for name in self.scores
                for which in ("mean", "last")
            ),
            ("chains", str(self.folder)),
            ("picture", str(self.picture)),
        ]

    def warnings(self) -> list[str]:
        """What speaks against using the samples, a sentence each."""
        said, found = self.report(), []
        if said["stuck"]:
            named = ", ".join(f"{example + 1}.{chain + 1}" for example, chain in said["stuck"][:SHOWN])
            more = f" and {len(said['stuck']) - SHOWN} more" if len(said["stuck"]) > SHOWN else ""
            found.append(f"chains that stand still (example.chain): {named}{more}")
        if self.left_out < self.forced:
            found.append(
                f"the first {self.forced} sweeps accepted everything, and {self.forced - self.left_out} of them count above: "
                f"leave them out by a burn-in of {self.forced}"
            )
        if said["doubtful_examples"]:
            found.append(
                f"{said['doubtful_examples']} of {said['examples']} examples have R-hat over {MAX_RHAT} or fewer than "
                f"{MIN_ESS:.0f} effective draws: more sweeps are needed before means over them are trusted"
            )
        return found
