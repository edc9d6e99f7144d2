"""The folder of a run of chains, and a summary of what is in it: diagnostics, scores of the outputs, and warnings.

| file | content |
|---|---|
| ``chains.json`` | ``created``, ``chains`` per example, ``burn_in`` of the report, ``facts`` for a resumed run |
| ``traces.jsonl`` | a line per sweep: ``sweep``, and for each chain ``energy``, ``proposed``, ``accepted``, ``moved`` |
| ``samples.jsonl`` | a line per chain and kept sweep: ``sweep``, ``example``, ``chain``, ``energy``, ``output`` |
| ``scores.json`` | ``{metric: [[sweep, score], …]}``, if the examples have references |
| ``traces.svg`` | the plot of the traces |
| ``checkpoints/step-00000020/`` | the state of all chains after sweep 20, with hashes; the newest two are kept |
| ``finished.json`` | written last: ``{"sweeps"}`` |
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from unforced.chains.options import ChainOptions
from unforced.energy.diagnostics import MAX_RHAT, MIN_ESS, ChainDiagnostics, Traces, diagnose_chains
from unforced.energy.samplers import SweepInfo
from unforced.errors import InputError
from unforced.protocols import Annealed, Metric
from unforced.training.run_folder import RunFolder, read_json, read_lines, replace_json

INFO = {"chains": int, "burn_in?": int, "facts": dict}  # shapes of the files
TRACE = {"sweep": int, "energy": [float], "proposed": [int], "accepted": [int], "moved": [int]}
SAMPLE = {"sweep": int, "example": int, "chain": int, "energy": float, "output": object}
PICTURE = "traces.svg"
SHOWN = 8  # stuck chains that a warning names
Scores = dict[str, list[tuple[int, float]]]  # metric -> the kept sweeps and their scores


def trace_row(number: int, info: SweepInfo) -> dict[str, Any]:
    """Return the line of traces.jsonl for a sweep."""
    columns = (info.energy.double(), info.proposed, info.accepted, info.novel)
    return {"sweep": number, **{name: column.tolist() for name, column in zip(Traces._fields, columns)}}


class ChainFolder(RunFolder):
    """A folder with chains."""

    def exists(self) -> bool:
        return (self.path / "chains.json").is_file()

    def info(self) -> dict[str, Any]:
        if not self.exists():
            raise InputError(f"{self.path}: holds no chains (there is no chains.json)")
        data: dict[str, Any] = read_json(self.path / "chains.json", INFO)
        return data

    def finished(self) -> dict[str, Any] | None:
        return self._optional("finished.json", {"sweeps": int})

    def traces(self) -> Traces:
        """Return the traces of all sweeps so far."""
        rows = self._lines("traces.jsonl", TRACE)
        width = len(rows[0]["energy"]) if rows else 0
        for row in rows:
            if {len(row[name]) for name in Traces._fields} != {width}:
                raise InputError(f"{self.path / 'traces.jsonl'}: is damaged: sweep {row['sweep']} lacks chains")
        return Traces.of(rows, width)

    def samples(self) -> list[dict[str, Any]]:
        return self._lines("samples.jsonl", SAMPLE)

    def output_scores(self) -> Scores:
        """Return the scores of the outputs; empty if there are none."""
        if not (self.path / "scores.json").is_file():
            return {}
        saved = read_json(self.path / "scores.json", {...: [[float]]})
        return {name: [(int(sweep), float(score)) for sweep, score in rows] for name, rows in saved.items()}

    def _lines(self, name: str, shape: Any) -> list[dict[str, Any]]:
        self.info()
        path = self.path / name
        return read_lines(path, shape) if path.is_file() else []


# ---- summary ----


class ChainSummary(NamedTuple):
    """Chains in a folder with their diagnostics."""

    folder: Path
    traces: Traces
    diagnostics: ChainDiagnostics
    scores: Scores  # of the outputs by the task's metrics; empty if the examples have no references
    burn_in: int  # sweeps that the diagnostics leave out
    forced: int = 0  # first sweeps in which every proposal was accepted
    annealed: bool = False  # whether the target changed from sweep to sweep

    @property
    def picture(self) -> Path:
        return self.folder / PICTURE

    def report(self) -> dict[str, Any]:
        """Return the summary as JSON data."""
        found, rows = self.diagnostics, len(self.diagnostics.stuck)
        chains = rows // max(1, len(found.rhat))
        return {
            "acceptance": found.acceptance,
            "novel_transitions": found.novel,
            "energy": found.energy,
            "last_energy": found.last_energy,
            "rhat": None if self.annealed else found.worst_rhat,
            "ess": None if self.annealed else found.least_ess,
            "unconverged_examples": None if self.annealed else int(found.unconverged.sum()),
            "examples": len(found.rhat),
            "chains": chains,
            "stuck": [list(divmod(row, chains)) for row in found.stuck.nonzero().squeeze(1).tolist()],
            "scores": {name: {"mean": self.mean(name), "last": rows[-1][1]} for name, rows in self.scores.items()},
        }

    def mean(self, metric: str) -> float:
        """Return the mean score of the kept sweeps after burn-in, or that of the last kept sweep if there are none."""
        later = [score for sweep, score in self.scores[metric] if sweep > self.burn_in]
        return fmean(later or [self.scores[metric][-1][1]])

    def rows(self) -> list[tuple[str, str]]:
        """Return the summary as the rows of a table."""
        data = self.report()
        several = f", worst of {data['examples']} examples" if data["examples"] > 1 else ""
        rows = [
            ("acceptance", f"{data['acceptance']:.3f}"),
            ("novel transitions", f"{data['novel_transitions']:.3f}"),
            ("energy, mean", f"{data['energy']:.3f}"),
            ("energy, last", f"{data['last_energy']:.3f}"),
        ]
        if self.annealed:
            rows.append(("R-hat, effective sample size", "not defined for an annealed target"))
        else:
            rows.append((f"R-hat{several}", f"{data['rhat']:.3f}"))
            rows.append((f"effective sample size{several}", f"{data['ess']:.0f}"))
        rows.append(("stuck chains", f"{len(data['stuck'])} of {len(self.diagnostics.stuck)}"))
        for name, score in data["scores"].items():
            rows += [(f"{name}, {which}", f"{value:.2f}") for which, value in score.items()]
        return [*rows, ("chains", str(self.folder)), ("picture", str(self.picture))]

    def warnings(self) -> list[str]:
        """Return reasons not to use the samples, one sentence each."""
        data, found = self.report(), []
        if data["stuck"]:
            names = ", ".join(f"{example + 1}.{chain + 1}" for example, chain in data["stuck"][:SHOWN])
            more = f" and {len(data['stuck']) - SHOWN} more" if len(data["stuck"]) > SHOWN else ""
            found.append(f"stuck chains (example.chain): {names}{more}")
        if self.burn_in < self.forced:
            found.append(
                f"{self.forced - self.burn_in} of the {self.forced} forced sweeps are not left out: "
                f"set a burn-in of at least {self.forced}"
            )
        if data["unconverged_examples"]:
            found.append(
                f"{data['unconverged_examples']} of {data['examples']} examples have R-hat above {MAX_RHAT} or an "
                f"effective sample size below {MIN_ESS:.0f}: run more sweeps before using means over the samples"
            )
        return found


def summarize_chains(
    folder: Path,
    traces: Traces,
    options: ChainOptions,
    sampler: Any = None,
    answers: Sequence[Sequence[Any]] | None = None,
    metrics: Sequence[Any] = (),
) -> ChainSummary:
    """Compute diagnostics of chains, and scores of their outputs if there are ``answers``; save both in the folder."""
    forced, annealed = (sampler.forced, sampler.anneal > 0) if isinstance(sampler, Annealed) else (0, False)
    burn_in, chains = options.burn_in_for(forced), ChainFolder(folder)
    diagnostics = diagnose_chains(traces, chains=options.chains, burn_in=burn_in, patience=options.patience)
    scores = {} if answers is None else score_samples(chains.samples(), answers, metrics)
    if scores:
        replace_json(folder / "scores.json", scores)
    replace_json(folder / "chains.json", {**chains.info(), "burn_in": burn_in})
    return ChainSummary(folder, traces, diagnostics, scores, burn_in, forced, annealed)


def score_samples(
    samples: Sequence[Mapping[str, Any]], answers: Sequence[Sequence[Any]], metrics: Sequence[Any]
) -> Scores:
    """Score the outputs of all examples for each kept sweep, as the mean over chains.

    ``samples`` are lines of samples.jsonl and ``answers`` the references of each example. Likelihood metrics are
    skipped.
    """
    outputs: dict[int, dict[int, dict[int, str]]] = {}  # sweep -> chain -> example -> output
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
    references = [answers[example] for example in sorted(outputs)]
    return float(metric.score(metric.statistics(texts, references).sum(axis=0)))
