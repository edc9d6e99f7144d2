"""Plots of Markov chains: energies, acceptance rates and scores by sweep."""

from pathlib import Path

from torch import Tensor

from unforced.chains.results import PICTURE, ChainFolder, Scores
from unforced.energy.diagnostics import Traces
from unforced.errors import InputError
from unforced.reports.figures import Line, Panel, draw_panels

MOST = 20  # chains that are drawn


def plot_folder(folder: Path, path: Path | None = None) -> Path:
    """Plot the chains in a folder, up to the last finished sweep; into FOLDER/traces.svg if ``path`` is None."""
    chains = ChainFolder(folder)
    info = chains.info()
    burn_in, where = int(info.get("burn_in", 0)), folder / PICTURE if path is None else path
    return plot_traces(chains.traces(), int(info["chains"]), where, burn_in=burn_in, scores=chains.output_scores())


def plot_traces(traces: Traces, chains: int, path: Path, *, burn_in: int = 0, scores: Scores | None = None) -> Path:
    """Plot energies and rates by sweep, and a panel for each metric of the outputs.

    There is a line for chain 1, 2, …, averaged over examples. Acceptance is the share of accepted proposals. Novel
    transitions are the share of proposals that changed the sequence.
    """
    if not len(traces.energy):
        raise InputError("the chains have no finished sweep to plot")
    sweeps = [float(n) for n in range(1, len(traces.energy) + 1)]
    by_chain = traces.energy.double().unflatten(1, (-1, chains)).mean(dim=1)  # [N,M]
    energies = [Line(f"chain {k + 1}", sweeps, by_chain[:, k].tolist()) for k in range(min(chains, MOST))]
    rates = [
        Line("acceptance", sweeps, shares_by_sweep(traces.accepted, traces.proposed)),
        Line("novel transitions", sweeps, shares_by_sweep(traces.moved, traces.proposed)),
    ]
    examples = traces.energy.shape[1] // chains
    about = [f"mean of {examples} examples"] * (examples > 1)
    left_out = [f"the first {burn_in} sweeps are burn-in"] * (burn_in > 0)
    panels = [
        Panel(energies, "sweeps", "energy", ", ".join(about)),
        Panel(rates, "sweeps", "share of proposals", ", ".join(left_out)),
    ]
    for name, rows in (scores or {}).items():
        line = Line(name, [float(sweep) for sweep, _ in rows], [score for _, score in rows])
        panels.append(Panel([line], "sweeps", name, f"mean of {chains} chains" if chains > 1 else ""))
    return draw_panels(panels, path)


def shares_by_sweep(part: Tensor, whole: Tensor) -> list[float]:
    """Return the share of one count in another for each sweep, summed over chains.

    >>> import torch
    >>> shares_by_sweep(torch.tensor([[1, 0], [2, 2]]), torch.tensor([[2, 2], [2, 2]]))
    [0.25, 1.0]
    """
    return (part.sum(dim=1).double() / whole.sum(dim=1).clamp(min=1)).tolist()
