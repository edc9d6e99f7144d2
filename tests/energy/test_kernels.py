"""Samplers: exact transition matrices, long chains, and a plain loop with the same random numbers."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from energy_cases import (
    Pair,
    TableModel,
    WithFeatures,
    WithFeaturesAt,
    alone,
    ended,
    free_of,
    kept_of,
    letters,
    plain_energy,
    plain_scores,
)
from exact_kernels import matrices, shares, violations
from scipy.stats import chisquare
from torch import Tensor

from unforced.energy import Gibbs, MetropolisHastings, energies, random_start, sweep
from unforced.energy.gibbs import GibbsWalk
from unforced.energy.metropolis_hastings import MetropolisWalk
from unforced.errors import InputError
from unforced.models.field import Field
from unforced.models.masked import ConditionalMasked
from unforced.ops import random_streams
from unforced.types import Batch, Sizes, Symbols

EXACT = 1e-12
slow = pytest.mark.slow
VARIANTS: dict[str, dict[str, Any]] = {
    "single": {},
    "hot nucleus": {"temperature": 1.5, "nucleus": 0.7},
    "block": {"block": 2},
    "nucleus block": {"block": 2, "nucleus": 0.9, "temperature": 1.7},
    "whole": {"block": 3},
    "target block": {"target": 0.7, "block": 2, "temperature": 0.8},
}


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def walk(batch: Batch, model: Any = None, **fields: Any) -> MetropolisWalk:
    return MetropolisWalk(MetropolisHastings(**fields), model or TableModel(5), batch)


def violation(chains: MetropolisWalk, size: int = 5, **rest: Any) -> float:
    """Return the largest violation of detailed balance or stationarity."""
    return violations(chains, chains.batch, size, chains.options.energy, **rest).worst


CASES = [
    (name, kind, model) for name in VARIANTS for kind in ("raw", "local") for model in (TableModel, WithFeaturesAt)
]
QUICK = [
    ("single", "local", WithFeaturesAt),
    ("hot nucleus", "raw", WithFeaturesAt),
    ("block", "local", TableModel),
    ("target block", "raw", TableModel),
]


@pytest.mark.parametrize(
    ("name", "kind", "model"), [*QUICK, *(pytest.param(*case, marks=slow) for case in CASES if case not in QUICK)]
)
def test_detailed_balance_and_stationarity(name: str, kind: Any, model: type[TableModel]) -> None:
    """Every block is reversible, and every sweep keeps exp(−E/T)/Z.

    Strings of two and of three letters are in one batch.
    """
    fields = VARIANTS[name]
    chains = walk(letters(3, [2, 3]), model(5), energy=kind, **fields)
    assert violation(chains, target=fields.get("target", 1.0)) < EXACT


@pytest.mark.parametrize("kind", [pytest.param("raw", marks=slow), "local"])
def test_detailed_balance_with_end_symbol_and_sources(kind: Any) -> None:
    batch = ended([[3, 4], [5], [4, 4]], sources=[[1, 2], [3], [2]])
    assert violation(walk(batch, TableModel(6), energy=kind), 6) < EXACT


def test_annealed_targets() -> None:
    chains = walk(letters(3, [2]), energy="raw", target=1.0, anneal=0.2, lowest=0.3)
    for done, target in ((0, 1.0), (2, 0.6), (9, 0.3)):
        assert violation(chains, target=target, sweep=done) < EXACT
    assert violation(chains, target=1.0, sweep=2) > 1e-3
    assert MetropolisHastings(anneal=0.3).target_at(9) == 0.05
    assert MetropolisHastings(anneal=0.3, target=0.01).target_at(9) == 0.01


def test_forced_sweeps() -> None:
    chains = walk(letters(3, [2]), energy="raw", forced=2)
    assert violation(chains, sweep=2) < EXACT
    kernel = chains.kernel()
    state = kernel.init(torch.zeros(200, 2, dtype=torch.long))
    rng, rates = generator(), []
    for _ in range(4):
        state, report = sweep(kernel, rng, state)
        rates.append(float(report.accepted.sum() / report.proposed.sum()))
        expected = energies.energy(chains.model, chains.batch, state.tokens, "raw")
        torch.testing.assert_close(state.energy, expected.detach(), rtol=0, atol=1e-9)
    assert rates[:2] == [1.0, 1.0]
    assert max(rates[2:]) < 0.95


@pytest.mark.parametrize("name", ["single", pytest.param("nucleus block", marks=slow)])
def test_degenerate_gibbs_does_not_sample_an_energy(name: str) -> None:
    chains = GibbsWalk(Gibbs(**VARIANTS[name]), TableModel(5), letters(3, [2, 3]))
    for kind in ("raw", "local"):
        found = violations(chains, chains.batch, 5, kind)
        assert found.rows < EXACT
        assert found.balance > 1e-4
        assert found.stationary > 1e-3


def pair_batch() -> Batch:
    gold = torch.zeros(1, 2, dtype=torch.long)
    return Batch.of_gold(gold, gold == 0, Symbols(pad=2, bos=2, eos=None, banned=(2,)))


def stationary(matrix: Tensor) -> Tensor:
    """Return the stationary distribution of a matrix."""
    return torch.linalg.matrix_power(matrix, 1 << 12)[0]


def test_inconsistent_conditionals() -> None:
    """Two variables of the thesis: the result of Gibbs sampling depends on the order of visits."""
    chains = GibbsWalk(Gibbs(), Pair(), pair_batch())
    first_last, last_first = (matrices(chains, chains.batch, [order], 2)[0] for order in ([0, 1], [1, 0]))
    torch.testing.assert_close(stationary(first_last), torch.full((4,), 0.25, dtype=torch.float64), rtol=0, atol=1e-12)
    torch.testing.assert_close(
        stationary(last_first), torch.tensor([0.495, 0.005, 0.005, 0.495], dtype=torch.float64), rtol=0, atol=1e-12
    )
    for kind in ("raw", "local"):
        assert violations(chains, chains.batch, 2, kind).worst > 0.1
        for fields in ({}, {"block": 2}, {"temperature": 3.0}):
            assert violation(walk(pair_batch(), Pair(), energy=kind, **fields), 2) < EXACT


def test_tokens_are_drawn_from_the_proposal_distribution() -> None:
    """The share of [0, 1) that leads to a token is q: the draw changes at its edges and nowhere else."""
    chains = walk(letters(3, [2, 3]), nucleus=0.8, temperature=1.4)
    state = chains.init(random_start(chains.batch, 5, generator(), 4))
    turn = chains.turn(state)
    q, middle = shares(chains, state, turn)
    assert bool((q[..., 3:] == 0).all())
    torch.testing.assert_close(q.sum(dim=2), torch.ones(8, 1, dtype=torch.float64))
    for token in range(3):
        for side in (-1, 0, 1):
            inside = middle[:, :, token] + side * q[:, :, token] * (0.5 - 1e-9)
            drawn = chains.propose(state, turn._replace(choices=inside)).drawn
            possible = q[:, :, token] > 0
            assert bool((drawn[possible] == token).all())


@pytest.mark.parametrize("model", [WithFeatures, WithFeaturesAt])
def test_stored_features_save_the_pass_of_a_proposal(model: type[TableModel]) -> None:
    batch, table = letters(3, [6, 4]), model(5)
    one, two = walk(batch, table, energy="raw"), walk(batch, TableModel(5), energy="raw")
    begin = random_start(batch, 5, generator(), 30)
    a, b, rng_a, rng_b = one.init(begin), two.init(begin), generator(2), generator(2)
    for _ in range(12):
        table.seen.clear()
        drawn = one.propose(a, one.turn(a))
        assert not table.seen
        a, _ = one.step(rng_a, a)
        assert len(table.seen) <= 2  # new sequences of each length
        b, _ = two.step(rng_b, b)
        assert torch.equal(a.tokens, b.tokens)
        torch.testing.assert_close(a.terms, b.terms, rtol=0, atol=1e-12)
    assert drawn.changed.any()
    assert not drawn.changed.all()
    fresh = one.init(a.tokens)
    torch.testing.assert_close(a.features, fresh.features, rtol=0, atol=1e-12)


# ---- the plain loop, sentence by sentence, one forward pass for each masked position ----


def plain_log_q(scores: Tensor, symbols: Symbols, temperature: float, nucleus: float | None) -> dict[int, float]:
    kept = kept_of(symbols, len(scores))
    values = (scores[kept] / temperature).softmax(0)
    if nucleus is not None:
        ordered, order = values.sort(descending=True)
        enough = int((ordered.cumsum(0) < nucleus).sum()) + 1
        inside = torch.zeros_like(values).index_fill(0, order[:enough], 1.0)
        values = values * inside / (values * inside).sum()
    return {token: float(value.log()) for token, value in zip(kept, values)}


def plain_draw(log_q: dict[int, float], u: float) -> int:
    total = 0.0
    for token in sorted(log_q):
        total += float(torch.tensor(log_q[token], dtype=torch.float64).exp())
        if u < total:
            return token
    raise AssertionError


def plain_chain(
    sampler: MetropolisHastings | Gibbs,
    model: Any,
    batch: Batch,
    b: int,
    chain: int,
    begin: list[int],
    sweeps: int,
    seed: int,
) -> list[int]:
    one = alone(batch, b)
    free, tokens, rng = free_of(batch, b), list(begin[: one.gold.shape[1]]), generator(seed)
    for done in range(sweeps):
        key = random_streams.branch(random_streams.keys(one, rng), chain)
        order = free
        if sampler.order == "random":
            ranks = random_streams.uniform(random_streams.branch(key, 0), torch.arange(len(tokens)))
            order = sorted(free, key=lambda t, ranks=ranks: float(ranks[t]))
        size, place = sampler.block_size(done), 0
        while place < len(order):
            block = order[place : place + size]
            scores = plain_scores(model, one, tokens, block)
            new, ratio = list(tokens), 0.0
            for t in block:
                log_q = plain_log_q(scores[t], batch.symbols, sampler.temperature, sampler.nucleus)
                new[t] = plain_draw(log_q, float(random_streams.uniform(random_streams.branch(key, 1), t)))
                ratio += log_q[tokens[t]] - log_q[new[t]]
            if isinstance(sampler, MetropolisHastings):
                gain = plain_energy(model, one, tokens, sampler.energy) - plain_energy(model, one, new, sampler.energy)
                ratio += gain / sampler.target_at(done)
                u = random_streams.uniform(random_streams.branch(key, 2), place)
                accept = float(u.log()) < ratio or done < sampler.forced
            else:
                accept = True
            tokens = new if accept else tokens
            place += size
    return tokens


CHAINS: dict[str, MetropolisHastings | Gibbs] = {
    "local": MetropolisHastings(),
    "nucleus": MetropolisHastings(nucleus=0.8, temperature=1.2, forced=1),
    "block": MetropolisHastings(block=4, shrink=2, energy="raw", temperature=0.7),
    "annealed": MetropolisHastings(block=2, target=0.9, anneal=0.3, lowest=0.2),
    "block gibbs": Gibbs(block=3, nucleus=0.9, order="left_to_right"),
}
QUICK_CHAINS = ("local", "block", "block gibbs")

SOME_CHAINS = [*QUICK_CHAINS, *(pytest.param(name, marks=slow) for name in CHAINS if name not in QUICK_CHAINS)]


@pytest.mark.parametrize("name", SOME_CHAINS)
def test_chains_equal_a_plain_loop(name: str) -> None:
    """Sentences of five lengths, with sources, two chains of each, in small micro-batches."""
    batch = ended(
        [[3, 4, 5, 3, 3], [4], [], [5, 5, 3], [3, 3, 4, 4, 5, 5]],
        sources=[[1, 2, 3], [4], [1], [2, 2], [5, 1, 2]],
        ids=[11, 5, 8, 2, 40],
    )
    sampler, model = replace(CHAINS[name], rows=7), TableModel(6)
    begin = random_start(batch, 6, generator(9), 2)
    kernel, rng = sampler.kernel(model, batch), generator(4)
    state, moved = kernel.init(begin), 0
    for _ in range(3):
        state, report = sweep(kernel, rng, state)
        moved += int(report.novel.sum())
    assert moved > 10
    for row in range(10):
        expected = plain_chain(sampler, model, batch, row // 2, row % 2, begin[row].tolist(), 3, 4)
        assert state.tokens[row].tolist()[: len(expected)] == expected
    kind = sampler.energy or "local"
    torch.testing.assert_close(
        state.energy, energies.energy(model, batch, state.tokens, kind).detach(), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("name", QUICK_CHAINS)
def test_chains_resume_bitwise_from_any_state(name: str) -> None:
    batch, model = ended([[3, 4, 5, 3], [4, 5], [5]]), WithFeatures(6)
    kernel, rng = CHAINS[name].kernel(model, batch), generator(4)
    state = kernel.init(random_start(batch, 6, generator(9), 3))
    trace, saved = [], []
    for _ in range(12):
        saved.append((type(state)(*(leaf.clone() for leaf in state)), rng.get_state()))
        state, info = kernel.step(rng, state)
        trace.append((state, info))
    for begin in (0, 1, 3, 7, 10):
        again, number = generator(0), saved[begin][1]
        again.set_state(number)
        resumed, other = saved[begin][0], CHAINS[name].kernel(WithFeatures(6), batch)
        for expected, expected_info in trace[begin:]:
            resumed, info = other.step(again, resumed)
            for a, b in zip((*resumed, *info), (*expected, *expected_info)):
                torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def test_orders_of_visits() -> None:
    batch = letters(3, [3], width=5)
    chains = walk(batch)
    state = chains.start_sweep(generator(), chains.init(batch.gold.repeat(3000, 1)))
    visited = state.order[:, :3]
    assert bool((visited.sort(dim=1).values == torch.arange(3)).all())
    orders = visited[:, 0] * 9 + visited[:, 1] * 3 + visited[:, 2]
    counts = orders.unique(return_counts=True)[1]
    assert len(counts) == 6
    assert chisquare(counts.tolist()).pvalue > 1e-4
    left = walk(batch, order="left_to_right")
    assert left.start_sweep(generator(), left.init(batch.gold)).order.tolist() == [[0, 1, 2, 3, 4]]


def test_a_sweep_visits_every_variable_once() -> None:
    batch = ended([[3, 4, 5, 3, 4], [4, 5], []])
    kernel, rng = MetropolisHastings(block=2).kernel(TableModel(6), batch), generator()
    state = kernel.init(batch.gold.repeat_interleave(2, dim=0))
    seen = torch.zeros_like(state.tokens)
    active = []
    while int(state.sweep) == 0:
        state, info = kernel.step(rng, state)
        seen += info.positions
        active.append(info.active.tolist())
    free = energies.variables(batch).repeat_interleave(2, dim=0)
    assert torch.equal(seen, free.long())
    assert active == [[True] * 4 + [False] * 2, [True] * 2 + [False] * 4, [True] * 2 + [False] * 4]
    state, report = sweep(kernel, rng, state)
    assert report.proposed.tolist() == [3, 3, 1, 1, 0, 0]
    assert bool((report.novel <= report.accepted).all())
    assert bool((report.accepted <= report.proposed).all())
    assert int(state.sweep) == 2
    assert bool((state.tokens[~free] == batch.gold.repeat_interleave(2, dim=0)[~free]).all())


@pytest.mark.parametrize("kind", ["raw", "local"])
def test_energies_stay_exact_for_networks(kind: Any) -> None:
    """Stored energies stay exact for the field and for the conditional model.

    The field makes one pass for all positions; the conditional model has sources.
    """
    torch.manual_seed(3)
    rows = [[4, 3, 5], [5], [3, 4, 4, 5]]
    small = {"width": 8, "heads": 2, "feedforward": 12, "encoder_layers": 1, "decoder_layers": 1}
    field = Field(hidden=6, embedding=5).build(Sizes(target=6)).double()
    conditional = ConditionalMasked(**small).build(Sizes(target=6, source=6)).double()
    for model, batch in ((field, ended(rows)), (conditional, ended(rows, [[1, 2], [3], [2, 2, 1]]))):
        model.train()
        for sampler in (MetropolisHastings(energy=kind), MetropolisHastings(energy=kind, block=2)):
            kernel, rng = sampler.kernel(model, batch), generator(1)
            state = kernel.init(batch.gold.repeat_interleave(4, dim=0))
            for _ in range(3):
                state, _ = sweep(kernel, rng, state)
            assert model.training  # although dropout was off
            assert not state.terms.requires_grad
            model.eval()
            torch.testing.assert_close(
                state.energy, energies.energy(model, batch, state.tokens, kind).detach(), rtol=0, atol=1e-9
            )
            model.train()


def test_invalid_input() -> None:
    with pytest.raises(InputError, match=r"lowest must be at most target, 0\.01, got 0\.05"):
        MetropolisHastings(target=0.01, lowest=0.05)
    batch = ended([[3, 4], [5]])
    kernel = MetropolisHastings().kernel(TableModel(6), batch)
    with pytest.raises(InputError, match="special tokens"):
        kernel.init(torch.ones_like(batch.gold))
    with pytest.raises(InputError, match="do not match a batch"):
        kernel.init(batch.gold[:1, :2])
    with pytest.raises(InputError, match="needs a model with scores"):
        MetropolisHastings().kernel(torch.nn.Linear(1, 1), batch)
    broken = TableModel(6)
    with torch.no_grad():
        broken.table.fill_(torch.nan)
    with pytest.raises(InputError, match="NaN or infinite"):
        MetropolisHastings().kernel(broken, batch).init(batch.gold)
    state = kernel.init(batch.gold)
    for sampler in (MetropolisHastings(), Gibbs(energy=None)):
        with pytest.raises(InputError, match="NaN or infinite"):
            sampler.kernel(broken, batch).step(generator(), state)
