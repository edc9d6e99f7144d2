"""The loop takes soft selectors as well: a small relaxed beam search (CRB Algorithm 3) runs through it unchanged."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import pytest
import torch
from small_models import FIXED, SOURCES, lstm, make_batch, toy
from torch import Tensor

from unforced.decoding import Beam, Greedy
from unforced.decoding.search import HardMove, Nodes, SearchResult, Selection, follow, hypotheses, search
from unforced.models.transformer import Transformer
from unforced.ops import state_rows
from unforced.types import DecoderState, Sizes

BANNED = -1e4  # finite, so that squared differences stay numbers


class SoftMove(NamedTuple):
    weights: Tensor  # [B,K,V]
    pointers: Tensor  # [B,K,k']

    def follow(self, state: DecoderState) -> DecoderState:
        return state_rows.mix(state, self.pointers)

    def inputs(self, model) -> Tensor:
        return model.embed_mix(self.weights.flatten(0, 1).unsqueeze(1))


class SoftMemory(NamedTuple):
    scores: Tensor  # [B,K]
    costs: Tensor  # [B,K]
    gold: Tensor  # [B,T]


@dataclass(frozen=True)
class SoftTopK:
    width: int
    alpha: float
    gold: Tensor

    def begin(self, limits: Tensor) -> SoftMemory:
        zeros = torch.zeros(len(limits), self.width, dtype=torch.float64)
        return SoftMemory(zeros, zeros, self.gold)

    def select(self, t: int, scores: Tensor, memory: SoftMemory, last: Tensor | None) -> Selection:
        b, k, v = scores.shape
        allowed = torch.ones(v, dtype=torch.bool).index_fill(0, torch.tensor(FIXED.banned), False)
        local = torch.where(allowed, scores.log_softmax(dim=-1), BANNED)
        s = (memory.scores[:, :k].unsqueeze(2) + local).flatten(1)  # [B,k·V]
        m = s.topk(self.width, dim=1).values
        p = torch.softmax(-self.alpha * (s.unsqueeze(1) - m.unsqueeze(2)) ** 2, dim=2)
        p = p.unflatten(2, (k, v))  # [B,K,k,V]
        pointers, weights = p.sum(dim=3), p.sum(dim=2)
        wrong = (torch.arange(v) != memory.gold[:, t : t + 1]).to(p.dtype).unsqueeze(1)  # [B,1,V]
        costs = (weights * wrong).sum(dim=2) + (pointers @ memory.costs[:, :k].unsqueeze(2)).squeeze(2)
        totals = (p.flatten(2) * s.unsqueeze(1)).sum(dim=2)
        best = p.detach().flatten(2).argmax(dim=2)
        record = Nodes(best % v, best // v)
        running = torch.ones(b, dtype=torch.bool)
        return Selection(SoftMemory(totals, costs, memory.gold), SoftMove(weights, pointers), record, running)


def transformer(seed: int, vocabulary: int):
    torch.manual_seed(seed)
    spec = Transformer(width=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=16, dropout=0.0)
    return spec.build(Sizes(target=vocabulary, source=6)).double()


@pytest.mark.parametrize("build", [toy, lstm, transformer], ids=["toy", "lstm", "transformer"])
@pytest.mark.parametrize("k", [1, 3])
def test_a_soft_selector_runs_through_the_same_loop(build, k):
    model, batch = build(3, 7).eval(), make_batch(SOURCES, FIXED)
    gold = torch.tensor([[3, 4, 3, 3], [2, 2, 2, 0], [5, 0, 0, 0], [6, 5, 4, 3]])
    found = search(model, batch, SoftTopK(k, 1e7, gold), batch.length)
    hard = Beam(k, 0.0, k, finished="stay")(model, batch)
    torch.testing.assert_close(found.memory.scores, hard.log_probs, atol=1e-6, rtol=1e-6)
    inside = torch.arange(4) < batch.length.view(-1, 1, 1)
    hamming = ((hard.tokens != gold.unsqueeze(1)) & inside).sum(dim=2)
    torch.testing.assert_close(found.memory.costs, hamming.double(), atol=1e-6, rtol=1e-6)

    ends = (batch.length - 1).unsqueeze(1).expand(-1, k)
    walked = hypotheses(found, batch, ends, torch.arange(k).expand(4, k), found.memory.scores, found.memory.scores)
    assert walked.tokens.tolist() == hard.tokens.tolist()

    # and gradients reach all parameters through scores, inputs and mixed states
    relaxed = search(model, batch, SoftTopK(k, 0.5, gold), batch.length).memory
    relaxed.costs.sum().backward()
    for name, parameter in model.named_parameters():
        if "table" not in name and parameter.grad is None:
            pytest.fail(f"no gradient for {name}")
        assert parameter.grad.isfinite().all()


def test_a_move_that_keeps_the_order_copies_nothing():
    state = DecoderState(torch.arange(6.0).unsqueeze(1), None)
    tokens = torch.zeros(2, 3, dtype=torch.long)
    same = HardMove(tokens, torch.tensor([[0, 1, 2], [0, 1, 2]]), 3)
    assert same.follow(state).carry is state.carry
    moved = HardMove(tokens, torch.tensor([[2, 0, 0], [1, 1, 2]]), 3).follow(state)
    assert moved.carry.flatten().tolist() == [2, 0, 0, 4, 4, 5]
    wider = HardMove(tokens, torch.zeros(2, 3, dtype=torch.long), 1).follow(
        DecoderState(torch.tensor([[7.0], [8.0]]), None)
    )
    assert wider.carry.flatten().tolist() == [7, 7, 7, 8, 8, 8]


def test_following_a_trace_by_hand():
    everyone, second = torch.tensor([0, 1]), torch.tensor([1])
    trace = [
        (everyone, Nodes(torch.tensor([[10, 11], [12, 13]]), torch.tensor([[0, 0], [0, 0]]))),
        (everyone, Nodes(torch.tensor([[20, 21], [22, 23]]), torch.tensor([[1, 0], [1, 1]]))),
        (second, Nodes(torch.tensor([[30, 31]]), torch.tensor([[1, 0]]))),
    ]
    found = SearchResult(None, trace, 2, 1)
    ends, nodes = torch.tensor([[1, 0, -1], [2, 2, 1]]), torch.tensor([[0, 1, 0], [0, 1, 0]])
    assert follow(found, ends, nodes, 0).tolist() == [
        [[11, 20, 0], [11, 0, 0], [0, 0, 0]],
        [[13, 23, 30], [13, 22, 31], [13, 22, 0]],
    ]


@pytest.mark.parametrize("decoder", [Greedy(min_length=6, max_length=6), Beam(beam=1, min_length=6, max_length=6)])
def test_the_first_input_of_an_example_is_the_first_of_its_prefix(decoder):
    """Compare with feeding the whole prefix at every step."""
    differ = 0
    for seed in range(6):
        model, usual = lstm(seed).eval(), make_batch(SOURCES)
        first = torch.tensor([[3], [4], [1], [3]])
        batch = replace(usual, prefix=torch.cat([first, usual.prefix[:, 1:]], dim=1))
        expected = first
        for _ in range(6):
            features, _ = model.advance(model.start(batch), model.embed(expected))
            scores = model.score(features[:, -1]).index_fill(1, torch.tensor([0, 1, 2]), -torch.inf)
            expected = torch.cat([expected, scores.argmax(dim=1, keepdim=True)], dim=1)
        assert torch.equal(decoder(model, batch).tokens[:, 0], expected[:, 1:])
        differ += not torch.equal(expected[:, 1:], decoder(model, usual).tokens[:, 0])
    assert differ > 0
