"""Convergence diagnostics of Markov chains: R-hat, effective sample size, acceptance rates and stuck chains.

R-hat and the effective sample size are those of Vehtari, Gelman, Simpson, Carpenter and Bürkner, "Rank-normalization,
folding, and localization: an improved R-hat" (2021). Traces are [...,M,N]: N draws of M chains with the same target.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

MIN_DRAWS = 4  # of a chain, for any diagnostic
MAX_RHAT, MIN_ESS = 1.01, 400.0  # thresholds that the authors recommend


def rhat(traces: Tensor) -> Tensor:
    """Compute the rank-normalised split R-hat of traces: [...,M,N] -> [...].

    It is the larger one of the R-hat of the values and of their distances from the median. It tends to one as the
    chains, and the halves of each, agree. It is infinite if chains are constant at different values, and NaN if all
    values are equal or there are fewer than four draws.

    >>> apart = torch.tensor([[1.0, 2.0, 1.0, 2.0, 1.0, 2.0], [5.0, 6.0, 5.0, 6.0, 5.0, 6.0]])
    >>> rhat(apart) > 1.5
    tensor(True)
    """
    values = _split_halves(traces)
    if values.shape[-1] < MIN_DRAWS // 2:
        return values.new_full(values.shape[:-2], math.nan)
    middle = values.flatten(-2).quantile(0.5, dim=-1)[..., None, None]
    bulk, tails = (potential_reduction(rank_normalized(each)) for each in (values, (values - middle).abs()))
    # tails are NaN if all values have the same distance from the median
    return torch.where(tails.isnan(), bulk, torch.maximum(bulk, tails))


def effective_sample_size(traces: Tensor) -> Tensor:
    """Compute the bulk effective sample size of all chains together: [...,M,N] -> [...].

    It is M·N / τ, with the autocorrelation time τ = −1 + 2 Σ_k P_k by Geyer's initial monotone sequence:
    P_k = ρ_2k + ρ_2k+1 up to the first negative one, none larger than its predecessor. NaN as for `rhat`.
    """
    values = _split_halves(traces)
    if values.shape[-1] < MIN_DRAWS // 2:
        return values.new_full(values.shape[:-2], math.nan)
    return independent_draws(rank_normalized(values))


def _split_halves(traces: Tensor) -> Tensor:
    """Split chains into halves, [...,2M,N/2] in double precision; drop the middle draw of an odd number."""
    half = traces.shape[-1] // 2
    return torch.cat([traces[..., :half], traces[..., traces.shape[-1] - half :]], dim=-2).double()


def rank_normalized(values: Tensor) -> Tensor:
    """Return Φ⁻¹((r − 3/8) / (M·N + 1/4)) of the ranks r among all M·N values; ties have the mean rank.

    >>> rank_normalized(torch.tensor([[1.0, 10.0, 100.0]]))
    tensor([[-0.8694,  0.0000,  0.8694]], dtype=torch.float64)
    """
    flat = values.flatten(-2).flatten(0, -2) if values.dim() > 2 else values.flatten().unsqueeze(0)
    ordered = flat.contiguous().sort(dim=-1).values
    below = torch.searchsorted(ordered, flat.contiguous(), right=False)
    up_to = torch.searchsorted(ordered, flat.contiguous(), right=True)
    ranks = (below + up_to + 1).double() / 2
    quantiles: Tensor = torch.special.ndtri((ranks - 0.375) / (flat.shape[-1] + 0.25))
    return quantiles.view(values.shape)


def potential_reduction(values: Tensor) -> Tensor:
    """Return √(((N − 1)/N · W + B/N) / W) for the mean variance W of chains and the variance B/N of their means.

    >>> round(float(potential_reduction(torch.tensor([[1.0, 2.0, 3.0], [2.0, 3.0, 4.0]]))), 3)  # W = 1, B/N = 1/2
    1.08
    """
    n = values.shape[-1]
    within = values.var(dim=-1, unbiased=True).mean(dim=-1)
    between = _variance_of_means(values)
    return (((n - 1) / n * within + between) / within).sqrt()


def _variance_of_means(values: Tensor) -> Tensor:
    if values.shape[-2] < 2:
        return values.new_zeros(values.shape[:-2])
    return values.mean(dim=-1).var(dim=-1, unbiased=True)


def independent_draws(values: Tensor) -> Tensor:
    """Return M·N / τ, see `effective_sample_size`; at most M·N log₁₀(M·N), for antithetic chains."""
    m, n = values.shape[-2:]
    covariance = autocovariance(values).mean(dim=-2)  # [...,N]
    within = covariance[..., :1] * n / (n - 1)
    total = within * (n - 1) / n + _variance_of_means(values).unsqueeze(-1)
    correlation = 1 - (within - covariance) / total  # ρ_t from within and between the chains
    correlation[..., 0] = 1.0
    even, odd = correlation[..., 0 : n - 1 : 2], correlation[..., 1:n:2]
    pairs = even + odd  # [...,N/2]
    positive = (pairs > 0).cummin(dim=-1).values  # up to the first pair that is not
    monotone = pairs.cummin(dim=-1).values.masked_fill(~positive, 0.0)
    # the even term of the first excluded pair counts if it is positive
    rest = (even[..., 1:].clamp(min=0.0) * (positive[..., :-1] & ~positive[..., 1:])).sum(dim=-1)
    time = -1 + 2 * monotone.sum(dim=-1) + rest
    draws = m * n
    independent = draws / time.clamp(min=1 / math.log10(draws))
    return torch.where(total.squeeze(-1) > 0, independent, math.nan)


def autocovariance(values: Tensor) -> Tensor:
    """Return Σ_s (x_s − x̄)(x_s+t − x̄) / N for t = 0 … N − 1, by Fourier transform: [...,N] -> [...,N].

    >>> autocovariance(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)).round(decimals=6)
    tensor([ 0.6667,  0.0000, -0.3333], dtype=torch.float64)
    """
    n = values.shape[-1]
    centred = values - values.mean(dim=-1, keepdim=True)
    spectrum = torch.fft.rfft(centred, n=2 * n)
    sums: Tensor = torch.fft.irfft(spectrum.abs().square(), n=2 * n)[..., :n]
    return sums / n


def stuck(moved: Tensor, last: int) -> Tensor:
    """Return which of R chains did not move in the ``last`` sweeps: [R] bool, from counts of moves ``moved`` [N,R].

    >>> stuck(torch.tensor([[3, 0], [0, 2], [0, 1]]), 2)
    tensor([ True, False])
    """
    if len(moved) < last:
        return torch.zeros(moved.shape[1:], dtype=torch.bool)
    return ~(moved[-last:] > 0).any(dim=0)


class Traces(NamedTuple):
    """What each of R chains did in each of N sweeps: [N,R] each."""

    energy: Tensor  # float64, after the sweep
    proposed: Tensor  # long, proposals
    accepted: Tensor  # long, accepted proposals
    moved: Tensor  # long, accepted proposals of a different sequence

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], chains: int) -> "Traces":
        """Build traces from the lines of traces.jsonl, each with lists over ``chains`` chains."""
        columns = []
        for name in cls._fields:
            kind = torch.float64 if name == "energy" else torch.long
            columns.append(torch.tensor([row[name] for row in rows], dtype=kind).reshape(len(rows), chains))
        return cls(*columns)


class ChainDiagnostics(NamedTuple):
    """Diagnostics of B examples with M chains each, R = B·M chains in all."""

    acceptance: float  # accepted proposals / proposals
    novel: float  # accepted proposals of a different sequence / proposals
    energy: float  # mean over chains and sweeps
    last_energy: float  # mean over chains after the last sweep
    rhat: Tensor  # [B], of the energies
    ess: Tensor  # [B]
    stuck: Tensor  # [R] bool

    @property
    def worst_rhat(self) -> float:
        """The largest R-hat of an example; NaN if there is none."""
        return float(max(self.rhat[~self.rhat.isnan()], default=math.nan))

    @property
    def least_ess(self) -> float:
        """The smallest effective sample size of an example; NaN if there is none."""
        return float(min(self.ess[~self.ess.isnan()], default=math.nan))

    @property
    def unconverged(self) -> Tensor:
        """Examples with R-hat above 1.01, fewer than 400 effective draws, or neither available: [B] bool."""
        return ~((self.rhat <= MAX_RHAT) & (self.ess >= MIN_ESS))


def diagnose_chains(traces: Traces, *, chains: int, burn_in: int = 0, patience: int = 5) -> ChainDiagnostics:
    """Compute diagnostics from the traces of ``chains`` adjacent chains of each example.

    The first ``burn_in`` sweeps are dropped. A chain is stuck if it did not move in the last ``patience`` sweeps.
    """
    energy, proposed, accepted, moved = (trace[burn_in:] for trace in traces)
    proposals = max(1, int(proposed.sum()))
    groups = energy.double().T.unflatten(0, (-1, chains))  # [B,M,N]
    return ChainDiagnostics(
        acceptance=int(accepted.sum()) / proposals,
        novel=int(moved.sum()) / proposals,
        energy=float(energy.double().mean()) if energy.numel() else math.nan,
        last_energy=float(energy[-1].double().mean()) if len(energy) else math.nan,
        rhat=rhat(groups),
        ess=effective_sample_size(groups),
        stuck=stuck(moved, patience),
    )
