"""Minimum risk training against enumeration, and against candidates scored one by one."""

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from objective_cases import ENDED, FIXED, SPECS, assert_same, batch_of, gradient, loss_of, metric, network, sourced, toy
from sacrebleu.metrics import BLEU
from torch import Tensor

from unforced.decoding import teacher_forcing
from unforced.decoding.enumeration import enumerate_sequences
from unforced.decoding.teacher_forcing import score_outputs
from unforced.errors import InputError
from unforced.models.lstm import LSTM
from unforced.objectives.costs import Hamming
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.minimum_risk import MinimumRisk
from unforced.objectives.schedules import Linear
from unforced.objectives.smoothing.outputs import END, as_lists
from unforced.recipes.fields import build, to_mapping
from unforced.training.run_identity import _describe
from unforced.types import Batch, Sizes, Symbols

OPEN = ENDED._replace(banned=())  # all tokens can be emitted, so that probabilities add up to one


def drawn(objective: MinimumRisk, model: Any, batch: Batch, seed: int = 0) -> Tensor:
    return objective.draw_outputs(model, batch, model.start(batch), torch.Generator().manual_seed(seed))


def all_outputs(size: int, limit: int) -> list[list[int]]:
    """Return the outputs that end in 2 or have ``limit`` tokens."""
    others = [token for token in range(size) if token != 2]
    ended = [[*p, 2] for n in range(limit) for p in itertools.product(others, repeat=n)]
    return ended + [list(p) for p in itertools.product(others, repeat=limit)]


def table_log_prob(table: Tensor, output: Sequence[int]) -> Tensor:
    """log p of an output under a second-order table, by looking up."""
    size, total, before, last = table.shape[1], table.new_zeros(()), 1, 1
    for token in output:
        total = total + table[before * size + last].log_softmax(-1)[token]
        before, last = last, token
    return total


def bare(output: Sequence[int], eos: int | None = 2) -> list[int]:
    return [token for token in output if token not in (eos, END)]


def hamming(output: Sequence[int], gold: Sequence[int]) -> float:
    return float(sum(a != b for a, b in itertools.zip_longest(output, gold)))


def edit(output: Sequence[int], gold: Sequence[int]) -> float:
    if not output or not gold:
        return float(len(output) + len(gold))
    last = edit(output[:-1], gold[:-1]) + (output[-1] != gold[-1])
    return min(last, edit(output[:-1], gold) + 1, edit(output, gold[:-1]) + 1)


def unlike(output: Sequence[int], gold: Sequence[int]) -> float:
    """1 − sacreBLEU's own sentence BLEU."""
    if not output or not gold:
        return float(list(output) != list(gold))
    judge = BLEU(effective_order=True, tokenize="none", force=True)
    return 1 - judge.sentence_score(" ".join(map(str, output)), [" ".join(map(str, gold))]).score / 100


COSTS = {"hamming": hamming, "edit": edit, "bleu": unlike}


@pytest.mark.parametrize("cost", COSTS)
def test_all_outputs_with_alpha_one_give_the_expected_cost(cost: Any) -> None:
    """Loss and gradient equal the sum over all outputs of probability times cost; here padding is an ordinary token."""
    model, gold = toy(4), [3, 0, 2]
    loss = loss_of(
        MinimumRisk(samples=2000, alpha=1.0, cost=cost, temperature=3.0, max_length=3), model, batch_of([gold], OPEN)
    )
    outputs = all_outputs(4, 3)
    assert metric(loss, "candidates") == len(outputs) == 40
    probabilities = torch.stack([table_log_prob(model.table, output) for output in outputs]).exp()
    assert probabilities.sum().item() == pytest.approx(1.0)
    expected = sum(p * COSTS[cost](bare(y), bare(gold)) for p, y in zip(probabilities, outputs))
    assert isinstance(expected, Tensor)
    assert_same(model, loss.total, expected, rtol=1e-8)
    assert gradient(expected, model).abs().max() > 1e-3


def test_log_probabilities_of_samples_equal_the_enumeration() -> None:
    """Every candidate is possible, and its log-probability is the enumeration's, cut ones included."""
    model, batch = network("lstm", scale=1.5), sourced()
    objective = MinimumRisk(samples=60, max_length=3, gold=False)
    outputs = drawn(objective, model, batch)
    for example in range(3):
        every = enumerate_sequences(model, batch.select(torch.tensor([example])), max_length=3)
        known = {
            tuple(row[:n]): log_prob
            for row, n, log_prob in zip(every.tokens[0].tolist(), every.lengths[0].tolist(), every.log_probs[0])
        }
        samples = outputs[example, 1:]
        found = score_outputs(model, batch, samples, (samples != END).sum(dim=1), torch.full((60,), example))
        wanted = torch.stack([known[tuple(output)] for output in as_lists(samples)])
        torch.testing.assert_close(found, wanted.double(), rtol=1e-5, atol=1e-5)
        assert {len(output) for output in as_lists(samples) if output[-1] != 2} == {3}


def one_by_one(objective: MinimumRisk, model: Any, batch: Batch, alpha: float) -> tuple[Tensor, int]:
    """Return the loss with each candidate scored alone, and the number of candidates."""
    outputs, total, count = drawn(objective, model, batch), torch.zeros((), dtype=torch.float64), 0
    for example in range(len(batch)):
        gold, *samples = as_lists(outputs[example])
        members = {tuple(output) for output in ([gold] if objective.gold else []) + samples}
        source = (
            {}
            if batch.source is None
            else {"source": batch.source[[example]], "source_mask": batch.source_mask[[example]]}  # type: ignore[index]
        )
        log_probs, costs = [], []
        for output in sorted(members):
            tokens = torch.tensor([output])
            alone = Batch.of_gold(tokens, torch.ones_like(tokens, dtype=torch.bool), batch.symbols, **source)
            log_probs.append(-loss_of(CrossEntropy(), model, alone).total)
            costs.append(COSTS[str(objective.cost)](*(bare(y, batch.symbols.eos) for y in (output, gold))))
        weights = (alpha * torch.stack(log_probs)).softmax(0)
        assert weights.sum().item() == pytest.approx(1.0)
        total = total + (weights * torch.tensor(costs, dtype=torch.float64)).sum()
        count += len(members)
    return total, count


CASES = [
    ("lstm", ENDED, "bleu", True),
    ("fed", ENDED, "edit", False),
    ("tagger", FIXED, "hamming", True),
    ("transformer", ENDED, "hamming", True),
]
SLOW = [
    pytest.param(name, symbols, *cost, marks=pytest.mark.slow)
    for name in SPECS
    for symbols in (ENDED, FIXED)
    for cost in (("hamming", True), ("edit", False), ("bleu", True))
    if (name, symbols, *cost) not in CASES
]


@pytest.mark.parametrize(("name", "symbols", "cost", "gold"), [*CASES, *SLOW])
def test_loss_and_gradients_equal_those_of_candidates_scored_one_by_one(
    name: str, symbols: Symbols, cost: Any, gold: bool
) -> None:
    model, batch = network(name, scale=1.5), sourced(symbols)
    objective = MinimumRisk(samples=8, alpha=0.8, cost=cost, gold=gold)
    loss = loss_of(objective, model, batch)
    expected, count = one_by_one(objective, model, batch, 0.8)
    assert loss.metrics["candidates"] == (count, 3)
    assert_same(model, loss.total, expected)


def with_outputs(monkeypatch: pytest.MonkeyPatch, outputs: list[list[int]]) -> None:
    """Replace the samples of the only example."""

    def given(self: MinimumRisk, model: Any, batch: Batch, state: Any, rng: Any) -> Tensor:
        every = [batch.gold[0].tolist(), *outputs]
        width = max(map(len, every))
        return torch.tensor([[[*y, *[END] * (width - len(y))] for y in every]])

    monkeypatch.setattr(MinimumRisk, "draw_outputs", given)


@pytest.mark.parametrize("gold", [True, False])
def test_repeated_samples_count_once(gold: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = toy(5), batch_of([[3, 4, 2]])
    a, b, same = [4, 2], [3, 3, 3, 2], [3, 4, 2]
    with_outputs(monkeypatch, [a, b, same])
    once = loss_of(MinimumRisk(samples=3, alpha=0.5, gold=gold), model, batch)
    with_outputs(monkeypatch, [a, same, b, b, a, a, same])
    often = loss_of(MinimumRisk(samples=7, alpha=0.5, gold=gold), model, batch)
    assert metric(once, "candidates") == metric(often, "candidates") == 3
    torch.testing.assert_close(once.total, often.total)
    weights = (0.5 * torch.stack([table_log_prob(model.table, y) for y in (a, b, same)])).softmax(0)
    torch.testing.assert_close(often.total, weights @ torch.tensor([2.0, 2.0, 0.0], dtype=torch.float64))
    assert metric(often, "sampled_cost") == pytest.approx((3 * 2 + 2 * 2) / 7)  # repeated samples count here
    with_outputs(monkeypatch, [a, b])
    without = loss_of(MinimumRisk(samples=2, alpha=0.5, gold=gold), model, batch)
    assert metric(without, "candidates") == 2 + gold  # the target is in S if it is drawn, or with ``gold``
    torch.testing.assert_close(without.total, often.total if gold else often.total * 0 + 2)


def test_limits_of_alpha() -> None:
    model, batch = toy(6), batch_of([[3, 4, 2]])
    flat, sharp = (MinimumRisk(samples=10, alpha=alpha, max_length=4) for alpha in (1e-12, 1e6))
    members = sorted({tuple(y) for y in as_lists(drawn(flat, model, batch)[0])})
    costs = [hamming(bare(y), [3, 4]) for y in members]
    assert loss_of(flat, model, batch).total.item() == pytest.approx(sum(costs) / len(costs))
    best = max(range(len(members)), key=lambda i: table_log_prob(model.table, members[i]).item())
    assert loss_of(sharp, model, batch).total.item() == pytest.approx(costs[best])


@pytest.mark.parametrize("cost", COSTS)
def test_costs_against_brute_force_and_sacrebleu(cost: Any) -> None:
    rng = random.Random(0)
    for _ in range(60):
        gold, *outputs = ([rng.randint(3, 5) for _ in range(rng.randint(0, 7))] for _ in range(6))
        outputs.append(list(gold))
        ended = [[*y, 2] if rng.random() < 0.7 else y for y in outputs]  # EOS doesn't matter
        rows = [[*y, *[END] * (9 - len(y))] for y in ([*gold, 2], *ended)]
        found = MinimumRisk(cost=cost).judge_outputs(
            torch.tensor([rows]), torch.ones(1, len(rows), dtype=torch.bool), ENDED
        )
        wanted = [0.0, *(COSTS[cost](y, gold) for y in outputs)]
        assert found[0].tolist() == pytest.approx(wanted, abs=1e-9)


def test_functions_as_costs() -> None:
    seen: list[tuple[list[int], list[int]]] = []

    def wrong(output: list[int], gold: list[int]) -> float:
        seen.append((output, gold))
        return float(output != gold)

    model, batch = toy(5), batch_of([[3, 4, 2], [4, 2]])
    objective = MinimumRisk(samples=6, alpha=1.0, cost=wrong, max_length=4)
    loss = loss_of(objective, model, batch)
    assert {tuple(gold) for _, gold in seen} == {(3, 4), (4,)}
    assert not any(2 in output for output, _ in seen)
    assert len(seen) == loss.metrics["candidates"][0]  # once for each
    assert 0 < loss.total < 2
    with pytest.raises(InputError, match="cost must return finite numbers, got nan"):
        loss_of(MinimumRisk(cost=lambda output, gold: float("nan")), model, batch)
    assert to_mapping(objective)["cost"].endswith("wrong")
    assert build(MinimumRisk, {"cost": wrong}).cost is wrong
    assert "0x" not in _describe(objective)  # so that another process can resume the run


@pytest.mark.parametrize("chunk", [10_000, 3])
def test_all_weights_have_gradients_under_autocast(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache of casts must not lose gradients (pytorch#112583)."""
    monkeypatch.setattr(teacher_forcing, "CHUNK", chunk)
    model, batch = network("transformer", scale=1.5).float(), sourced()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(MinimumRisk(samples=8, alpha=1.0), model, batch)
    loss.total.backward()
    assert loss.total.dtype == torch.float32
    for key, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, key


@pytest.mark.parametrize("gold", [True, False])
def test_mix_adds_cross_entropy(gold: bool) -> None:
    model, batch = network("lstm", scale=1.5), sourced()
    plain, mixed = (loss_of(MinimumRisk(samples=5, gold=gold, mix=mix), model, batch) for mix in (0.0, 0.3))
    per_example = [loss_of(CrossEntropy(), model, batch.select(torch.tensor([row]))).mean for row in range(3)]
    torch.testing.assert_close(mixed.total, plain.total + 0.3 * torch.stack(per_example).sum())
    for name in ("cost", "sampled_cost", "candidates"):
        torch.testing.assert_close(plain.metrics[name], mixed.metrics[name])
    assert ("nll" in plain.metrics) == gold
    whole = loss_of(CrossEntropy(), model, batch)
    torch.testing.assert_close(mixed.metrics["nll"], whole.metrics["nll"])


@pytest.mark.parametrize("cost", ["hamming", pytest.param("bleu", marks=pytest.mark.slow)])
def test_training_lowers_the_expected_cost(cost: Any) -> None:
    torch.manual_seed(0)
    model = LSTM(hidden=24, embedding=12, dropout=0.0).build(Sizes(target=6, source=6))
    golds = [[3, 4, 2], [5, 3, 2], [4, 4, 5, 2], [5, 2]]
    source = torch.tensor([[3, 4, 0], [5, 3, 0], [4, 4, 5], [5, 0, 0]])
    batch = batch_of(golds, source=source, source_mask=source > 0)
    objective = MinimumRisk(samples=10, alpha=0.5, cost=cost, max_length=6)
    optimizer, seen = torch.optim.Adam(model.parameters(), lr=0.01), []
    for step in range(80):
        loss = loss_of(objective, model, batch, seed=step)
        seen.append((metric(loss, "cost"), metric(loss, "sampled_cost")))
        optimizer.zero_grad()
        loss.mean.backward()
        optimizer.step()
    start, end = torch.tensor(seen[:5]).mean(0), torch.tensor(seen[-5:]).mean(0)
    assert (end < 0.4 * start).all(), (start, end)


def test_alpha_follows_its_schedule() -> None:
    model, batch = toy(6), batch_of([[3, 4, 2]])
    moving = MinimumRisk(samples=8, alpha=Linear(start=0.1, end=2.1, over=2), max_length=5)
    assert set(moving.schedules()) == {"alpha"}
    found = loss_of(moving, model, batch, epoch=1)
    torch.testing.assert_close(found.total, loss_of(replace(moving, alpha=1.1), model, batch).total)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="samples must be at least 2 without gold"):
        MinimumRisk(samples=1, gold=False)
    with pytest.raises(InputError, match="minimum_risk needs the cost of a whole output"):
        MinimumRisk(cost=Hamming())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the task fixes the length"):
        loss_of(MinimumRisk(max_length=3), network("tagger"), sourced(FIXED))
    with pytest.raises(InputError, match="alpha must be above 0, got -1"):
        MinimumRisk(alpha=Linear(start=1.0, end=-1.0, over=2))
    with pytest.raises(InputError, match="alpha must be above 0, got -1"):
        loss_of(MinimumRisk(alpha=lambda progress: 1.0 - progress.epoch), toy(6), batch_of([[3, 4, 2]]), epoch=2)
