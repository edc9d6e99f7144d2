"""Distributions of outputs near a target: draws and log-probabilities against enumeration."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from objective_cases import batch_of
from scipy.stats import chisquare
from torch import Tensor

from unforced.objectives.smoothing.outputs import END, as_lists
from unforced.objectives.smoothing.proposals import EditProposal, HammingProposal, TokenPool, editable
from unforced.ops import random_streams
from unforced.types import Batch

WITHOUT = frozenset({0, 1, 2})
DRAWS = 20_000


def around(kind: Any, batch: Batch, tau: float, which: Any = "all", size: int = 6) -> Any:
    gold = batch.gold.masked_fill(~batch.mask, END)
    return kind(gold, editable(batch), TokenPool.of(which, batch, size, WITHOUT), tau)


def keys(batch: Batch, count: int, seed: int = 0) -> Tensor:
    own = random_streams.keys(batch, torch.Generator().manual_seed(seed))
    return random_streams.branch(own.unsqueeze(1), torch.arange(count))


def agrees(drawn: Sequence[Sequence[int]], chances: dict[tuple[int, ...], float]) -> None:
    """The draws have these chances, by chi-square (cells that are expected less than five times are put together)."""
    seen = Counter(map(tuple, drawn))
    assert set(seen) <= set(chances)
    cells = sorted(chances, key=lambda y: -chances[y])
    expected = np.array([chances[y] for y in cells]) * len(drawn)
    found = np.array([seen[y] for y in cells], dtype=float)
    often = int((expected >= 5).sum())
    if often < len(cells):
        expected = np.append(expected[:often], expected[often:].sum())
        found = np.append(found[:often], found[often:].sum())
    expected *= found.sum() / expected.sum()
    assert len(found) == 1 or chisquare(found, expected).pvalue > 1e-3


def hamming_chances(gold: Sequence[int], pool: Sequence[int], tau: float) -> tuple[dict[tuple[int, ...], float], float]:
    """r over V_sub^T, with the end symbol in its place, and log Z, by the definition."""
    bodies = [t for t in gold if t != 2]
    end = [2] if 2 in gold else []
    weights = {
        (*y, *end): math.exp(-sum(a != b for a, b in zip(y, bodies)) / tau)
        for y in itertools.product(*[sorted({*pool, token}) for token in bodies])
    }
    z = sum(weights.values())
    return {y: w / z for y, w in weights.items()}, math.log(z)


GOLDS = [[3, 4, 3, 2], [5, 2], [4, 5, 2], [2]]


@pytest.mark.parametrize("tau", [0.4, 5.0])
def test_hamming_draws_have_the_enumerated_distribution(tau: float) -> None:
    batch = batch_of(GOLDS)
    proposal = around(HammingProposal, batch, tau)
    outputs = proposal.draw(keys(batch, DRAWS))
    for row, gold in enumerate(GOLDS):
        chances, log_z = hamming_chances(gold, [3, 4, 5], tau)
        agrees(as_lists(outputs[row]), chances)
        assert proposal.log_z[row].item() == pytest.approx(log_z, rel=1e-12)
        every = torch.tensor([[*y, *[END] * (4 - len(y))] for y in chances])
        found = proposal.log_prob(every.unsqueeze(0).expand(4, -1, -1))[row].exp()
        assert found.tolist() == pytest.approx(list(chances.values()), rel=1e-12)


@pytest.mark.parametrize("kind", [HammingProposal, EditProposal])
@pytest.mark.parametrize("which", ["batch", "references"])
def test_substitutes_come_from_the_batch_or_the_references(kind: Any, which: str) -> None:
    references = torch.tensor([[7, 9, 9, 2], [3, 0, 0, 0], [8, 4, 8, 6], [0, 0, 0, 0]])
    batch = batch_of(GOLDS, references=references)
    outputs = around(kind, batch, 10.0, which, size=10).draw(keys(batch, 300))
    allowed = [{3, 4, 5}] * 4 if which == "batch" else [{7, 9}, {3}, {8, 4, 6}, set()]
    for row, (gold, pool) in enumerate(zip(GOLDS, allowed)):
        seen = {token for output in as_lists(outputs[row]) for token in output}
        assert seen == {*gold, *(pool if kind is EditProposal or len(gold) > 1 else ())}
    alone = around(kind, batch_of(GOLDS), 10.0, "references", size=10).draw(keys(batch, 300))
    for row, gold in enumerate(GOLDS):  # without references, the gold's own tokens
        assert {token for output in as_lists(alone[row]) for token in output} == set(gold)


def test_a_gold_token_outside_of_the_substitutes() -> None:
    """There are then as many substitutes as the pool has, and one may stay as it is all the same."""
    batch = batch_of([[3, 4, 2]], references=torch.tensor([[4, 5]]))
    proposal = around(HammingProposal, batch, 1.0, "references")
    chances, log_z = hamming_chances([3, 4, 2], [4, 5], 1.0)
    assert len(chances) == 6
    assert proposal.log_z.item() == pytest.approx(log_z)
    agrees(as_lists(proposal.draw(keys(batch, DRAWS))[0]), chances)


@pytest.mark.parametrize("kind", [HammingProposal, EditProposal])
def test_end_symbols_and_padding_stay_in_their_places(kind: Any) -> None:
    batch = batch_of(GOLDS)
    outputs = around(kind, batch, 100.0).draw(keys(batch, 500))
    for row, gold in enumerate(GOLDS):
        for output in as_lists(outputs[row]):
            assert output[-1] == 2
            assert not set(output[:-1]) & {END, 0, 1, 2}
            assert kind is EditProposal or len(output) == len(gold)
            assert len(output) <= 9 * len(gold)  # T + 8 (T + 1) and the end symbol


@pytest.mark.parametrize("kind", [HammingProposal, EditProposal])
def test_draws_belong_to_the_example(kind: Any) -> None:
    """Neither padding nor the other examples matter."""
    batch = batch_of(GOLDS)
    whole = around(kind, batch, 2.0).draw(keys(batch, 50))
    wide = batch_of([*GOLDS, [3] * 9])
    more = around(kind, wide, 2.0).draw(keys(wide, 50))
    for row in range(4):
        assert as_lists(whole[row]) == as_lists(more[row])
    part = batch.select(torch.tensor([2, 0]))
    some = around(kind, part, 2.0).draw(keys(part, 50))
    assert [as_lists(rows) for rows in some] == [as_lists(whole[2]), as_lists(whole[0])]
    assert as_lists(whole[0]) != as_lists(around(kind, batch, 2.0).draw(keys(batch, 50, seed=1))[0])
    first = around(kind, batch, 2.0).draw(keys(batch, 7))  # nor does the number of samples
    assert as_lists(first[0]) == as_lists(whole[0])[:7]


@pytest.mark.parametrize("kind", [HammingProposal, EditProposal])
@pytest.mark.parametrize("tau", [0.05, 0.2, 1.0, float("inf")])
def test_long_outputs_and_large_vocabularies_are_finite(kind: Any, tau: float) -> None:
    batch = batch_of([[*range(100, 200), 2], [300] * 7 + [2]])
    proposal = around(kind, batch, tau, size=32_000)
    outputs = proposal.draw(keys(batch, 4))
    assert torch.isfinite(proposal.log_z).all()
    log_probs = proposal.log_prob(outputs)
    assert torch.isfinite(log_probs).all()
    assert (log_probs <= 1e-9).all()
    if kind is HammingProposal:
        log_a = math.log(31_996) - 1 / tau
        assert proposal.log_z[0].item() == pytest.approx(100 * (max(log_a, 0) + math.log1p(math.exp(-abs(log_a)))))
        changed = (outputs != proposal.gold.unsqueeze(1)).sum(dim=2)[0].double().mean().item()
        assert changed == pytest.approx(100 / (1 + math.exp(-log_a)), abs=26)  # more than five standard errors


# ---- edits ----


def scripts(gold: Sequence[int], pool: Sequence[int], most: int) -> list[tuple[tuple[int, ...], int]]:
    """Every way of editing, as the output that it makes and the number of edits."""
    gaps = [(tokens, n) for n in range(most + 1) for tokens in itertools.product(pool, repeat=n)]
    slots: list[list[tuple[tuple[int, ...], int]]] = [gaps]
    for token in gold:
        slots.append([((token,), 0), ((), 1), *(((other,), 1) for other in pool if other != token)])
        slots.append(gaps)
    return [
        (tuple(itertools.chain(*(part for part, _ in way))), sum(n for _, n in way))
        for way in itertools.product(*slots)
    ]


def edit_chances(
    gold: Sequence[int], pool: Sequence[int], tau: float, most: int = 1
) -> tuple[dict[tuple[int, ...], float], float]:
    weights: dict[tuple[int, ...], float] = {}
    for output, edits in scripts([t for t in gold if t != 2], pool, most):
        weights[(*output, 2)] = weights.get((*output, 2), 0.0) + math.exp(-edits / tau)
    z = sum(weights.values())
    return {y: w / z for y, w in weights.items()}, math.log(z)


@pytest.mark.parametrize(
    ("tau", "most"),
    [(0.5, 1), (0.6, 2), pytest.param(3.0, 1, marks=pytest.mark.slow), pytest.param(0.7, 3, marks=pytest.mark.slow)],
)
def test_edit_draws_have_the_enumerated_distribution(tau: float, most: int) -> None:
    golds = [[3, 4, 2], [4, 2], [3, 3, 2], [2]] if most < 3 else [[4, 2], [2]]
    batch = batch_of(golds)
    proposal = replace(around(EditProposal, batch, tau, size=5), insertions=most)  # of 3 and 4
    outputs = proposal.draw(keys(batch, DRAWS))
    for row, gold in enumerate(golds):
        chances, log_z = edit_chances(gold, [3, 4], tau, most)
        longest = len(gold) - 1 + most * len(gold)
        assert len(chances) == 2 ** (longest + 1) - 1  # all outputs of at most T + J (T + 1) tokens
        agrees(as_lists(outputs[row]), chances)
        assert proposal.log_z[row].item() == pytest.approx(log_z, rel=1e-12)
        every = torch.tensor([[*y, *[END] * (longest + 1 - len(y))] for y in chances])
        found = proposal.log_prob(every.unsqueeze(0).expand(len(golds), -1, -1))[row].exp()
        assert found.tolist() == pytest.approx(list(chances.values()), rel=1e-10)
        assert found.sum().item() == pytest.approx(1.0)


def test_edits_of_a_gold_token_outside_of_the_substitutes() -> None:
    batch = batch_of([[3, 4, 2]], references=torch.tensor([[4, 5]]))
    proposal = replace(around(EditProposal, batch, 0.8, "references"), insertions=2)
    chances, log_z = edit_chances([3, 4, 2], [4, 5], 0.8, 2)
    assert proposal.log_z.item() == pytest.approx(log_z)
    outputs = proposal.draw(keys(batch, 3000))
    found = proposal.log_prob(outputs)[0].exp().tolist()
    assert found == pytest.approx([chances[tuple(y)] for y in as_lists(outputs[0])], rel=1e-10)


def test_an_output_that_edits_cannot_make_has_no_probability() -> None:
    batch = batch_of([[3, 4, 2]])
    proposal = replace(around(EditProposal, batch, 1.0, size=5), insertions=1)
    outputs = torch.tensor([[[3, 9, 2, END, END, END, END], [3, 3, 3, 3, 3, 3, 2]]])
    assert proposal.log_prob(outputs).tolist() == [[-math.inf, -math.inf]]
