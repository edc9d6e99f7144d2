"""Diagnostics of chains against closed forms, slow references and processes whose effective sample size is known."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from unforced.energy.diagnostics import diagnose, effective_sample_size, rhat, stuck


def autoregressive(phi: float, chains: int, draws: int, seed: int) -> Tensor:
    """x_t = φ x_t−1 + ε_t with variance one: [M,N], from its stationary distribution."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(chains, draws)) * math.sqrt(1 - phi**2)
    noise[:, 0] = rng.normal(size=chains)
    for t in range(1, draws):
        noise[:, t] += phi * noise[:, t - 1]
    return torch.from_numpy(noise)


def slow_rhat(traces: np.ndarray) -> float:
    """R-hat with loops and scipy's ranks."""
    half = traces.shape[1] // 2
    halves = np.array([part for row in traces for part in (row[:half], row[-half:])])

    def reduction(values: np.ndarray) -> float:
        ranks = stats.rankdata(values).reshape(values.shape)
        z = stats.norm.ppf((ranks - 3 / 8) / (values.size + 1 / 4))
        m, n = z.shape
        means = [sum(row) / n for row in z]
        grand = sum(means) / m
        between = n / (m - 1) * sum((mean - grand) ** 2 for mean in means)
        within = sum(sum((x - mean) ** 2 for x in row) / (n - 1) for row, mean in zip(z, means)) / m
        return math.sqrt(((n - 1) / n * within + between / n) / within)

    return max(reduction(halves), reduction(abs(halves - np.median(halves))))


def slow_ess(traces: np.ndarray) -> float:
    """The bulk effective sample size, step by step as in the paper."""
    half = traces.shape[1] // 2
    halves = np.array([part for row in traces for part in (row[:half], row[-half:])])
    z = stats.norm.ppf((stats.rankdata(halves).reshape(halves.shape) - 3 / 8) / (halves.size + 1 / 4))
    m, n = z.shape
    centred = z - z.mean(axis=1, keepdims=True)
    covariance = [sum((row[: n - t] * row[t:]).sum() / n for row in centred) / m for t in range(n)]  # mean over chains
    within = covariance[0] * n / (n - 1)
    total = covariance[0] + z.mean(axis=1).var(ddof=1)
    rho = [1.0] + [1 - (within - covariance[t]) / total for t in range(1, n)]
    time, before, t = -1.0, math.inf, 0
    while t + 1 < n:
        pair = rho[t] + rho[t + 1]
        if pair <= 0:
            time += max(0.0, rho[t])
            break
        before = min(before, pair)
        time += 2 * before
        t += 2
    return m * n / max(time, 1 / math.log10(m * n))


@pytest.mark.parametrize("draws", [20, 21, 50])
def test_equal_to_plain_loops(draws: int) -> None:
    traces = autoregressive(0.6, 3, draws, draws)
    traces[2] += 0.7
    traces[:, ::5] = 0.25  # ties
    assert float(rhat(traces)) == pytest.approx(slow_rhat(traces.numpy()), rel=1e-10)
    assert float(effective_sample_size(traces)) == pytest.approx(slow_ess(traces.numpy()), rel=1e-9)


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
    found = diagnose(energy, proposed, accepted, moved, chains=2)
    assert found.acceptance == pytest.approx(8 / 20)
    assert found.novel == pytest.approx(3 / 20)
    assert found.energy == pytest.approx(float(energy.mean()))
    assert found.last_energy == pytest.approx(float(energy[-1].mean()))
    assert found.stuck.tolist() == [False, False, True, True]
    assert found.unconverged.tolist() == [False, True]
    assert found.worst_rhat == math.inf
    assert found.least_ess == float(found.ess[1]) < 5
    torch.testing.assert_close(found.rhat[0], rhat(energy[:, :2].T))
    later = diagnose(energy, proposed, accepted, moved, chains=2, burn_in=100)
    torch.testing.assert_close(later.rhat[0], rhat(energy[100:, :2].T))
    assert later.energy == pytest.approx(float(energy[100:].mean()))


def test_before_the_first_sweep() -> None:
    nothing = torch.zeros(0, 4)
    found = diagnose(nothing, nothing.long(), nothing.long(), nothing.long(), chains=2)
    assert (found.acceptance, found.novel) == (0.0, 0.0)
    assert math.isnan(found.energy)
    assert found.rhat.isnan().tolist() == [True, True]
    assert math.isnan(found.worst_rhat)
    assert found.unconverged.tolist() == [True, True]
