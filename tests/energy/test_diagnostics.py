"""Diagnostics of chains: values of arviz, and processes whose effective sample size is known."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from unforced.energy.diagnostics import Traces, diagnose_chains, effective_sample_size, rhat, stuck


def autoregressive(phi: float, chains: int, draws: int, seed: int) -> Tensor:
    """x_t = φ x_t−1 + ε_t with variance one: [M,N], from its stationary distribution."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(chains, draws)) * math.sqrt(1 - phi**2)
    noise[:, 0] = rng.normal(size=chains)
    for t in range(1, draws):
        noise[:, t] += phi * noise[:, t - 1]
    return torch.from_numpy(noise)


@pytest.mark.parametrize(
    ("chains", "draws", "shift", "expected_rhat", "expected_ess"),
    [
        (4, 400, 0.0, 1.000029199276235, 282.805744890938),
        (4, 401, 0.05, 1.011555069255529, 266.19368506576745),
        (2, 250, 0.2, 1.044186055868974, 71.7333930513734),
    ],
)
def test_equal_to_arviz(chains: int, draws: int, shift: float, expected_rhat: float, expected_ess: float) -> None:
    """What arviz-stats 0.8 gives (methods "rank" and "bulk") for chains that a formula makes."""
    t = np.arange(1, draws + 1)
    rows = [(math.sqrt(2) * t * t + 0.37 * c) % 1 + 0.3 * np.sin(t / 7 + c) + shift * c for c in range(chains)]
    traces = torch.from_numpy(np.array(rows))
    assert float(rhat(traces)) == pytest.approx(expected_rhat, rel=1e-9)
    assert float(effective_sample_size(traces)) == pytest.approx(expected_ess, rel=1e-7)


@pytest.mark.parametrize("phi", [0.0, 0.5, 0.9, -0.4])
def test_effective_sample_size_of_an_autoregressive_process(phi: float) -> None:
    """Its autocorrelation is φ^t, so M·N draws are worth M·N (1 − φ) / (1 + φ) independent ones."""
    traces = autoregressive(phi, 4, 20_000, 7)
    expected = traces.numel() * (1 - phi) / (1 + phi)
    assert float(effective_sample_size(traces)) == pytest.approx(expected, rel=0.15)
    assert float(rhat(traces)) == pytest.approx(1.0, abs=0.005)


def test_rhat_detects_disagreement() -> None:
    good = autoregressive(0.2, 4, 2000, 3)
    assert float(rhat(good)) < 1.01
    for fault in ("elsewhere", "wider", "drifting", "constant"):
        bad = good.clone()
        if fault == "elsewhere":
            bad[0] += 2
        elif fault == "wider":  # seen by the distances from the median alone
            bad[0] *= 4
        elif fault == "drifting":  # seen by the halves alone
            bad += torch.linspace(-1, 1, bad.shape[1])
        else:
            bad[0] = 0.3
        assert float(rhat(bad)) > 1.01, fault


def test_undefined_diagnostics() -> None:
    nothing = torch.zeros(3, 10)
    assert rhat(nothing).isnan()
    assert effective_sample_size(nothing).isnan()
    apart = torch.tensor([[1.0], [2.0], [3.0]]).expand(3, 10)
    assert rhat(apart).isinf()
    assert rhat(autoregressive(0.0, 2, 3, 0)).isnan()
    assert effective_sample_size(autoregressive(0.0, 2, 3, 0)).isnan()
    assert rhat(autoregressive(0.0, 1, 100, 0)).isfinite()  # one chain has two halves


def test_stuck_chains() -> None:
    moved = torch.tensor([[1, 1, 0], [0, 2, 0], [0, 0, 0], [0, 1, 0]])
    assert stuck(moved, 3).tolist() == [True, False, True]
    assert stuck(moved, 4).tolist() == [False, False, True]
    assert stuck(moved, 5).tolist() == [False, False, False]  # not that many sweeps yet


def test_diagnosis() -> None:
    """Two examples with two chains each: the chains of the second example do not move and have different energies."""
    sweeps = 400
    energy = torch.cat([autoregressive(0.0, 2, sweeps, 5), torch.tensor([[3.0], [9.0]]).expand(2, sweeps)]).T
    proposed = torch.full((sweeps, 4), 5)
    accepted = torch.tensor([4, 3, 1, 0]).expand(sweeps, 4)
    moved = torch.tensor([2, 1, 0, 0]).expand(sweeps, 4)
    traces = Traces(energy, proposed, accepted, moved)
    found = diagnose_chains(traces, chains=2)
    assert found.acceptance == pytest.approx(8 / 20)
    assert found.novel == pytest.approx(3 / 20)
    assert found.energy == pytest.approx(float(energy.mean()))
    assert found.last_energy == pytest.approx(float(energy[-1].mean()))
    assert found.stuck.tolist() == [False, False, True, True]
    assert found.unconverged.tolist() == [False, True]
    assert found.worst_rhat == math.inf
    assert found.least_ess == float(found.ess[1]) < 5
    torch.testing.assert_close(found.rhat[0], rhat(energy[:, :2].T))
    later = diagnose_chains(traces, chains=2, burn_in=100)
    torch.testing.assert_close(later.rhat[0], rhat(energy[100:, :2].T))
    assert later.energy == pytest.approx(float(energy[100:].mean()))


def test_before_the_first_sweep() -> None:
    nothing = torch.zeros(0, 4)
    found = diagnose_chains(Traces(nothing, *[nothing.long()] * 3), chains=2)
    assert (found.acceptance, found.novel) == (0.0, 0.0)
    assert math.isnan(found.energy)
    assert found.rhat.isnan().tolist() == [True, True]
    assert math.isnan(found.worst_rhat)
    assert found.unconverged.tolist() == [True, True]
