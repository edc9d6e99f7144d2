"""Beam search optimisation against a reference that scores every prefix from its start."""

from itertools import pairwise
from typing import Any, NamedTuple

import pytest
import torch
from objective_cases import ENDED, FIXED, assert_same, batch_of, codec, fit, gradient, loss_of, metric, network, toy
from torch import Tensor

from unforced.errors import InputError
from unforced.models.toy import Toy
from unforced.objectives.beam_search_optimization import BeamSearchOptimization, find_violations
from unforced.objectives.costs import Table, WeightedHamming
from unforced.objectives.schedules import Constant, Linear
from unforced.protocols import Cost
from unforced.types import Batch, Sizes, Symbols

V = 6


def make_model(name: str, seed: int = 0) -> Any:
    """Return a small network whose scores are far from equal."""
    return toy(V, seed=seed) if name == "toy" else network({"fixed": "tagger"}.get(name, name), V, seed, scale=2.0)


def make_batch(symbols: Symbols = ENDED, seed: int = 0, examples: int = 4) -> Batch:
    """Return targets of one to six tokens with sources of the same lengths."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (examples,), generator=rng)
    lengths[0] = 6
    mask = torch.arange(6) < lengths.unsqueeze(1)
    gold = torch.randint(3, V, (examples, 6), generator=rng)
    if symbols.eos is not None:
        gold[torch.arange(examples), lengths - 1] = symbols.eos
    gold = gold.masked_fill(~mask, 0)
    source = torch.randint(1, 5, (examples, 6), generator=rng).masked_fill(~mask, 0)
    return Batch.of_gold(
        gold,
        mask,
        symbols,
        source=source,
        source_mask=mask,
        length=lengths if symbols.eos is None else None,
        ids=torch.arange(examples),
    )


Prefix = tuple[int, ...]


class Outcome(NamedTuple):
    total: Tensor
    violators: list[tuple[int, Prefix]]  # how many tokens the gold prefix had, and who violated the margin
    leads: list[float]


class Reference:
    """The algorithm of the paper for one example; every prefix is scored from its start."""

    def __init__(self, model: Any, batch: Batch, row: int, kind: str, cost: Cost) -> None:
        self.model, self.kind, self.cost = model, kind, cost
        self.batch = batch.select(torch.tensor([row]))
        self.gold: Prefix = tuple(self.batch.gold[0][self.batch.mask[0]].tolist())
        self.symbols = batch.symbols
        self.prepared = cost.prepare(self.batch, len(self.gold) + 9)
        self.start = model.start(self.batch)
        self.known: dict[Prefix, Tensor] = {}

    def ended(self, prefix: Prefix) -> bool:
        if len(prefix) < len(self.gold) and prefix == self.gold[: len(prefix)]:
            return False
        return self.symbols.eos is not None and self.symbols.eos in prefix

    def score(self, prefix: Prefix) -> Tensor:
        """The sum of the tokens' scores up to the first end."""
        if prefix in self.known:
            return self.known[prefix]
        real = prefix
        if self.ended(prefix):
            real = prefix[: prefix.index(self.symbols.eos) + 1]  # type: ignore[arg-type]
        fed = torch.tensor([[self.symbols.bos, *real[:-1]]])
        features, _ = self.model.advance(self.start, self.model.embed(fed))
        scores = self.model.score(features)[0]
        if self.kind == "local":
            scores = scores.log_softmax(-1)
        self.known[prefix] = sum(scores[t, w] for t, w in enumerate(real))  # type: ignore[assignment]
        return self.known[prefix]

    def delta(self, prefix: Prefix) -> float:
        return max(float(self.cost(self.prepared[:, t], torch.tensor([[token]]))) for t, token in enumerate(prefix))

    def successors(self, prefix: Prefix) -> list[Prefix]:
        if self.ended(prefix):
            return [(*prefix, self.symbols.pad)]
        return [(*prefix, token) for token in range(V) if token not in self.symbols.banned]

    def run(self, beam: int, margin: float, beyond: int) -> Outcome:
        total, violators, leads = torch.zeros((), dtype=torch.float64), [], []
        hypotheses: list[Prefix] = [()]
        for t in range(1, len(self.gold) + beyond + 1):
            gold = self.gold[:t] + (self.symbols.pad,) * (t - len(self.gold))
            others = [p for h in hypotheses for p in self.successors(h) if p != gold]
            others.sort(key=lambda p: -self.score(p).item())
            rank = 1 if t >= len(self.gold) else beam
            loss = torch.zeros(())
            if len(others) >= rank:
                rival = others[rank - 1]
                leads.append((self.score(gold) - self.score(rival)).item())
                loss = self.delta(rival) * (margin - self.score(gold) + self.score(rival)).clamp(min=0)
            if loss > 0:
                total = total + loss
                violators.append((t, rival))
                hypotheses = [gold]
            else:
                hypotheses = [gold, *others[:beam]]
        return Outcome(total, violators, leads)


def reference(model: Any, batch: Batch, objective: BeamSearchOptimization) -> list[Outcome]:
    beyond = 0 if batch.symbols.eos is None else objective.beyond
    return [
        Reference(model, batch, row, objective.scores, objective.cost).run(
            objective.beam,  # type: ignore[arg-type]
            objective.margin,
            beyond,
        )
        for row in range(len(batch))
    ]


def check(model: Any, batch: Batch, objective: BeamSearchOptimization) -> list[Outcome]:
    """The objective's loss, gradients, violations and metrics are the reference's."""
    expected = reference(model, batch, objective)
    loss = loss_of(objective, model, batch)
    total = sum(outcome.total for outcome in expected)
    torch.testing.assert_close(loss.total, total, rtol=1e-10, atol=1e-10)
    if total.requires_grad:  # type: ignore[union-attr]
        assert_same(model, loss.total, total, rtol=1e-7)  # type: ignore[arg-type]
    search = objective.run_search(model, batch, model.start(batch), objective.beam)  # type: ignore[arg-type]
    found = find_violations(search, batch)
    wanted = [(row, *violator) for row, outcome in enumerate(expected) for violator in outcome.violators]
    mine = [
        (row, until, tuple(tokens[:until]))
        for row, tokens, until in zip(
            found.examples.tolist(), found.tokens.tolist(), (found.inside.sum(1) + found.first).tolist()
        )
    ]
    assert mine == wanted
    counted = loss.metrics["violations"]
    assert (counted[0], counted[1]) == (len(wanted), len(batch))
    assert loss.metrics["clean"][0] == sum(not outcome.violators for outcome in expected)
    leads = [lead for outcome in expected for lead in outcome.leads]
    assert loss.metrics["lead"][1] == len(leads)
    assert float(loss.metrics["lead"][0]) == pytest.approx(sum(leads), abs=1e-4)
    assert loss.count == batch.tokens
    return expected


CASES = [  # model, symbols, beam, scores
    ("toy", ENDED, 7, "global"),
    ("lstm", ENDED, 2, "local"),
    ("transformer", FIXED, 3, "global"),
    ("fixed", FIXED, 1, "local"),
]
SLOW = [
    pytest.param(name, symbols, beam, scores, marks=pytest.mark.slow)
    for symbols, names in ((ENDED, ("toy", "lstm", "transformer")), (FIXED, ("fixed", "transformer")))
    for name in names
    for beam in (1, 2, 3, 7)
    for scores in ("global", "local")
    if (name, symbols, beam, scores) not in CASES
]


@pytest.mark.parametrize(("name", "symbols", "beam", "scores"), [*CASES, *SLOW])
def test_loss_and_gradients_equal_the_reference(name: str, symbols: Symbols, beam: int, scores: Any) -> None:
    objective = BeamSearchOptimization(beam=beam, scores=scores, margin=1.0 if symbols is ENDED else 0.5)
    for seed in range(2):
        check(make_model(name, seed), make_batch(symbols, seed=seed), objective)


def test_the_reference_cases_cover_every_event() -> None:
    """Hypotheses leave the target early, late or have ended.

    Some steps have too few of them, and some resets are adjacent.
    """
    early = late = ended = unmet = in_a_row = 0
    for seed in range(2):
        batch = make_batch(seed=seed)
        for beam in (2, 7):
            for row, outcome in enumerate(reference(toy(V, seed=seed), batch, BeamSearchOptimization(beam=beam))):
                gold, steps = batch.gold[row].tolist(), [t for t, _ in outcome.violators]
                for t, prefix in outcome.violators:
                    late += prefix[:-1] == tuple(gold[: t - 1])
                    early += prefix[:-1] != tuple(gold[: t - 1])
                    ended += prefix[-1] == ENDED.pad
                unmet += len(outcome.leads) < int(batch.mask[row].sum())
                in_a_row += any(b == a + 1 for a, b in pairwise(steps))
    assert min(early, late, ended, unmet, in_a_row) > 0, (early, late, ended, unmet, in_a_row)


@pytest.mark.parametrize("symbols", [ENDED, FIXED])
@pytest.mark.parametrize(
    "name", ["toy", pytest.param("lstm", marks=pytest.mark.slow), pytest.param("transformer", marks=pytest.mark.slow)]
)
def test_steps_after_the_end_equal_the_reference(name: str, symbols: Symbols) -> None:
    objective, longer = BeamSearchOptimization(beam=3, beyond=3, margin=0.0), 0
    for seed in range(1, 5):
        batch = make_batch(symbols, seed)
        outcomes = check(make_model(name, seed), batch, objective)
        lengths = batch.mask.sum(dim=1).tolist()
        longer += sum(t > n for n, outcome in zip(lengths, outcomes) for t, _ in outcome.violators)
    assert (longer > 0) == (symbols is ENDED)


def test_scheduled_beams_are_rounded_down() -> None:
    model, batch = toy(V, seed=1), make_batch(seed=1)
    growing = BeamSearchOptimization(beam=Linear(start=1.0, end=3.0, over=4))
    assert set(growing.schedules()) == {"beam"}
    for epoch, beam in ((1, 1), (2, 2), (9, 3)):
        plain = loss_of(BeamSearchOptimization(beam=beam), model, batch)
        assert torch.equal(loss_of(growing, model, batch, epoch=epoch).total, plain.total)
    with pytest.raises(InputError, match=r"beam must be at least 1, got 0\.5"):
        BeamSearchOptimization(beam=Constant(0.5))


def random_costs(batch: Batch) -> Tensor:
    """Costs of each token at each step, many of them zero, zero for the gold."""
    rng = torch.Generator().manual_seed(5)
    table = torch.rand(6, V, generator=rng).expand(len(batch), 6, V) * 3
    table = torch.where(table < 1.5, 0.0, table)
    return table.scatter(2, batch.gold.unsqueeze(2), 0.0)


@pytest.mark.parametrize("cost", [WeightedHamming("w3"), Table(random_costs)])
@pytest.mark.parametrize("symbols", [ENDED, FIXED])
def test_costs_weigh_violations(cost: Cost, symbols: Symbols) -> None:
    plain, weighted = BeamSearchOptimization(beam=2), fit(BeamSearchOptimization(beam=2, cost=cost), codec(V))
    for seed in range(2):
        model, batch = toy(V, seed=seed), make_batch(symbols, seed)
        check(model, batch, weighted)
        assert loss_of(weighted, model, batch).total != loss_of(plain, model, batch).total


def table(entries: dict[tuple[int, int], float], size: int = 7) -> Any:
    """An order-1 table of zeros but for some entries (context, token)."""
    model = Toy(order=1).build(Sizes(target=size)).double()
    with torch.no_grad():
        model.table.zero_()
        for place, value in entries.items():
            model.table[place] = value
    return model


def test_targets_that_lead_by_the_margin_cost_nothing() -> None:
    model = table({(1, 3): 1.0, (3, 4): 1.0, (4, 2): 1.0})  # by exactly one at every step, which is enough
    loss = loss_of(BeamSearchOptimization(beam=1), model, batch_of([[3, 4, 2]]))
    assert loss.total == 0
    assert loss.total.requires_grad
    assert not gradient(loss.total, model).any()
    assert loss.metrics["violations"][0] == 0
    assert loss.metrics["clean"][0] == 1
    assert loss_of(BeamSearchOptimization(beam=1, margin=1.01), model, batch_of([[3, 4, 2]])).total > 0


def test_a_beam_of_two_needs_the_target_first_only_at_the_end() -> None:
    """With K = 2 the target may be second before its last step."""
    model = table({(1, 3): 2.0, (1, 4): 3.0, (3, 2): 2.0, (4, 2): -9.0})
    loss = loss_of(BeamSearchOptimization(beam=2), model, batch_of([[3, 2]]))
    # At the first step 4 leads the gold by 1, and the second best other trails by 2: no violation. At the second the
    # best others are 4 followed by anything but the end, with 3 + 0, against 2 + 2.
    assert loss.total == 0
    narrow = loss_of(BeamSearchOptimization(beam=1), model, batch_of([[3, 2]]))
    assert narrow.total.item() == 1.0 + 1.0  # the margin and the lead of 4; then nothing, for 4 is gone
    assert narrow.metrics["violations"][0] == 1
    with torch.no_grad():
        model.table[4, 5] = 1.0
    assert loss_of(BeamSearchOptimization(beam=2), model, batch_of([[3, 2]])).total.item() == pytest.approx(1.0)


def test_a_violation_resets_the_beam_to_the_target() -> None:
    """Token 5 leads at the first step only: the reset removes it."""
    model = table({(1, 5): 50.0, (1, 3): 5.0, (3, 4): 5.0, (4, 2): 5.0})
    objective = BeamSearchOptimization(beam=1)
    found = objective.run_search(model, batch_of([[3, 4, 2]]), model.start(batch_of([[3, 4, 2]])), 1).memory
    assert (found.places > 0).tolist() == [[True, False, False]]
    assert found.rivals.tolist() == [[45.0, -5.0, -5.0]]  # rivals after the reset left the gold after it
    assert loss_of(objective, model, batch_of([[3, 4, 2]])).total.item() == pytest.approx(46.0)
    # With K = 2 there is no violation at first, since but one other is ahead; at the next step all that follow 5 are.
    assert loss_of(BeamSearchOptimization(beam=2), model, batch_of([[3, 4, 2]])).total.item() == 1 - 10.0 + 50.0


def test_finished_hypotheses_keep_their_score() -> None:
    gold = {(1, 3): 9.0, (3, 4): -4.0, (4, 5): -4.0, (5, 2): -4.0}
    model = table({(a, b): -20.0 for a in range(7) for b in range(7)} | gold | {(1, 2): 7.0})
    batch, objective = batch_of([[3, 4, 5, 2]]), BeamSearchOptimization(beam=2)
    found = find_violations(objective.run_search(model, batch, model.start(batch), 2), batch)
    assert found.tokens.tolist() == [[2, 0, 0, 0]]  # the empty output, to the end
    loss = loss_of(objective, model, batch).total
    assert loss.item() == 1 - (9 - 4 - 4 - 4) + 7
    found = gradient(loss, model).view_as(model.table)
    assert {tuple(place): found[tuple(place)].item() for place in found.nonzero().tolist()} == {
        **dict.fromkeys(gold, -1.0),
        (1, 2): 1.0,
    }


def test_one_pass_serves_hypotheses_that_just_left_the_target() -> None:
    """Every step violates the margin, so no hypothesis is older than one step."""
    model, batch = make_model("transformer"), make_batch()
    calls: list[bool] = []
    advance = model.advance
    model.advance = lambda *given: calls.append(torch.is_grad_enabled()) or advance(*given)
    loss = loss_of(BeamSearchOptimization(beam=1, margin=100.0), model, batch)
    assert loss.metrics["violations"][0] == batch.tokens
    assert sum(calls) == 1


def test_training_removes_violations() -> None:
    model, batch, objective = network("lstm", V), make_batch(examples=30), BeamSearchOptimization(beam=3, beyond=1)
    optimizer, found = torch.optim.Adam(model.parameters(), lr=0.02), []
    for _ in range(40):
        loss = loss_of(objective, model, batch)
        found.append([metric(loss, name) for name in ("violations", "clean", "lead")])
        optimizer.zero_grad()
        loss.mean.backward()
        optimizer.step()
    assert found[-1][0] < 0.7 * found[0][0]
    assert found[-1][1] >= found[0][1]
    assert found[-1][2] > found[0][2]
