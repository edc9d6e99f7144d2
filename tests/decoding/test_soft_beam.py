"""The relaxed beam search against hard beam search, and against its own definition."""

import pytest
import torch
from small_models import ENDED, FIXED, SOURCES, lstm, make_batch, toy

from unforced.decoding import soft_beam as soft_top_file
from unforced.decoding.beam import Beam
from unforced.decoding.search import Constraints, HardMove, limits, search, step
from unforced.decoding.soft_beam import (
    Continuations,
    SoftBeamSearch,
    SoftTop,
    all_candidates,
    best_candidates,
    mixtures,
    soft_top,
)
from unforced.errors import InputError
from unforced.models.transformer import Transformer
from unforced.objectives import soft_beam as objectives
from unforced.objectives.costs import Hamming
from unforced.ops import state_rows
from unforced.types import Batch, Progress, Sizes

HARD = 1e13  # α at which a gap of 3e-6 between two scores decides


def soft_top_k(scores, k, alpha):
    """The relaxed selection of the k best of scores [...,N] (CRB Algorithm 2): weights [...,k,N]."""
    distances = -alpha * (scores.unsqueeze(-2) - scores.topk(k).values.unsqueeze(-1)).square()
    return distances.softmax(dim=-1)


def transformer(seed: int, vocabulary: int = 5) -> torch.nn.Module:
    torch.manual_seed(seed)
    spec = Transformer(width=8, heads=2, encoder_layers=1, decoder_layers=2, feedforward=8, dropout=0.3)
    model = spec.build(Sizes(target=vocabulary, source=6)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


MODELS = pytest.mark.parametrize("build", [toy, lstm, transformer], ids=["toy", "lstm", "transformer"])
SYMBOLS = pytest.mark.parametrize("symbols", [ENDED, FIXED], ids=["ended", "fixed"])


def soft(model, batch: Batch, k: int, alpha: float, kind="local", keep=None, **more):
    selector = SoftTop(Constraints.of(batch, kind=kind), k, alpha, keep, 1e-12, **more)
    return search(model.eval(), batch, selector, limits(batch, max_length=more_steps(batch)))


def more_steps(batch: Batch) -> int | None:
    return None if batch.symbols.eos is None else 6


def hard(model, batch: Batch, k: int, kind="local"):
    decoder = Beam(k, length_penalty=0.0, nbest=k, finished="stay", scores=kind, max_length=more_steps(batch))
    return decoder(model, batch)


@MODELS
@SYMBOLS
@pytest.mark.parametrize("kind", ["local", "global"])
@pytest.mark.parametrize(("k", "vocabulary"), [(1, 5), (2, 5), (3, 7), (4, 5), (5, 4), (5, 9)])
def test_with_large_alpha_it_is_beam_search(build, symbols, kind, k, vocabulary):
    for seed in range(3):
        model = build(seed, vocabulary)
        sources = [[min(x, 5) for x in source] for source in SOURCES]
        batch = make_batch(sources, symbols)
        expected = hard(model, batch, k, kind)
        torch.manual_seed(seed)
        gold = torch.randint(2, vocabulary, (len(sources), 8))
        prepared = torch.where(torch.arange(8) < 4, gold, torch.tensor(0))
        found = soft(model, batch, k, HARD, kind, cost=Hamming(), prepared=prepared)
        memory = found.memory
        there = expected.log_probs > -torch.inf
        assert torch.equal(memory.filled, there)  # V < K leaves places empty
        scores = memory.scores + memory.offset.unsqueeze(1)
        torch.testing.assert_close(scores[there], expected.log_probs[there].double(), rtol=1e-6, atol=1e-6)

        steps = limits(batch, max_length=more_steps(batch))
        tokens = torch.nn.functional.pad(expected.tokens, (0, 8 - expected.tokens.shape[2]))
        counted = torch.arange(8) < steps.unsqueeze(1)
        costs = ((tokens != prepared.unsqueeze(1)) & counted.unsqueeze(1)).sum(dim=2).double()
        torch.testing.assert_close(memory.costs[there], costs[there], rtol=1e-6, atol=1e-6)

        decoded = SoftBeamSearch(k, HARD, kind, keep=None, max_length=more_steps(batch))(model, batch)
        assert decoded.ids(symbols) == expected.ids(symbols)
        assert decoded.lengths[:, 0].tolist() == expected.lengths[:, 0].tolist()


def written_out(model, batch: Batch, k: int, alpha: float, kind: str, gold: list[int], steps: int):
    """CRB Algorithm 3 for one example, candidate by candidate: scores, costs and ended mass of the K mixtures."""
    symbols, state = batch.symbols, model.start(batch)
    s, phi, costs = [torch.zeros(()).double()], [torch.zeros(()).double()], [torch.zeros(()).double()]
    inputs = model.embed(batch.prefix[:, :1])
    for t in range(steps):
        features, state = model.advance(state, inputs)
        f = model.score(features[:, -1])
        f = f.log_softmax(dim=1) if kind == "local" else f
        found = []  # score, hypothesis, token
        for j in range(len(s)):
            for w in range(f.shape[1]):
                if w not in symbols.banned and phi[j] < 1:
                    found.append((s[j] + torch.log(1 - phi[j]) + f[j, w], j, w))
            if phi[j] > 0:
                found.append((s[j] + torch.log(phi[j]), j, symbols.pad))
        values = torch.stack([score for score, _, _ in found])
        peaks = values.sort(descending=True).values[:k]
        mixtures = [torch.softmax(-alpha * (values - peak) ** 2, dim=0) for peak in peaks]
        back, tokens = torch.zeros(1, k, len(s)).double(), torch.zeros(k, 1, f.shape[1]).double()
        for i, p in enumerate(mixtures):
            for weight, (_, j, w) in zip(p, found):
                back[0, i, j] += weight
                tokens[i, 0, w] += weight
        over = [float(w in (symbols.eos, symbols.pad)) for _, _, w in found]
        paid = torch.stack([costs[j] + float(w != gold[t]) for _, j, w in found])
        s = [(p * values).sum() for p in mixtures]
        phi = [(p * torch.tensor(over).double()).sum() for p in mixtures]
        costs = [(p * paid).sum() for p in mixtures]
        if t == 0:
            state = state._replace(shared=state_rows.repeat(state, k).shared)
        state, inputs = state_rows.mix(state, back), model.embed_mix(tokens)
    return torch.stack(s), torch.stack(costs), torch.stack(phi)


@MODELS
@SYMBOLS
@pytest.mark.parametrize("kind", ["local", "global"])
@pytest.mark.parametrize("alpha", [0.5, 3.0])
@torch.no_grad()
def test_at_any_alpha_it_is_the_recurrence_written_out(build, symbols, kind, alpha):
    model, k = build(2, 7).eval(), 3
    batch = make_batch([[3, 4, 4, 5]], symbols)
    steps = int(limits(batch, max_length=more_steps(batch))[0])
    gold = [4, 3, 6, 2, 0, 0][:steps]
    found = soft(model, batch, k, alpha, kind, cost=Hamming(), prepared=torch.tensor([gold])).memory
    scores, costs, phi = written_out(model, batch, k, alpha, kind, gold, steps)
    assert found.filled.all()
    torch.testing.assert_close(found.scores[0] + found.offset, scores, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.costs[0], costs, rtol=1e-9, atol=1e-9)
    if symbols.eos is not None:
        assert phi.max() > 0
        torch.testing.assert_close(found.ended[0].exp(), phi, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.running[0].exp(), 1 - phi, rtol=1e-9, atol=1e-9)


@torch.no_grad()
def test_a_local_model_stays_normalised():
    """What all continuations have together, running and ended, is what the hypotheses had."""
    model, batch = lstm(2, 7).eval(), make_batch(SOURCES, ENDED)
    selector = SoftTop(Constraints.of(batch), 3, 1.0, None, 0.0)
    memory = search(model, batch, selector, torch.full((len(SOURCES),), 3)).memory
    assert (memory.ended.exp() > 0.01).any()
    scores = torch.randn(len(SOURCES), 3, 7).double()
    scores[:, :, [0, 1]] = -torch.inf  # what is never emitted has no part in it
    offered = all_candidates(selector.continuations(3, scores, memory, None)).scores
    torch.testing.assert_close(offered.logsumexp(dim=1), memory.scores.logsumexp(dim=1))


@pytest.mark.parametrize("build", [lstm, transformer], ids=["lstm", "transformer"])
def test_the_start_of_the_papers_collapses_the_beam(build):
    """With K equal hypotheses at score 0 every step selects K copies of one; with a single one at first it does not."""
    model, batch, k = build(1, 7).eval(), make_batch(SOURCES[1:2], FIXED), 3
    right = soft(model, batch, k, HARD).memory
    selector = SoftTop(Constraints.of(batch), k, HARD, None, 0.0)
    memory = selector.begin(torch.tensor([3]))
    memory = memory._replace(filled=torch.ones_like(memory.filled))  # all K at score 0
    state = state_rows.repeat(model.start(batch), k)
    move = HardMove(torch.full((1, k), batch.symbols.bos), None, k)
    for t in range(3):
        state, (memory, move, _, _) = step(model, selector, t, k, state, move, memory, None)
    collapsed = memory.scores + memory.offset.unsqueeze(1)
    assert collapsed.std() < 1e-6  # K copies
    expected = hard(model, batch, k).log_probs.double()
    torch.testing.assert_close(right.scores + right.offset.unsqueeze(1), expected, rtol=1e-6, atol=1e-6)
    assert expected.std() > 0.01


@pytest.mark.parametrize("alpha", [0.3, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("spread", [0.1, 3.0])
def test_left_out_continuations_stay_below_the_bound(alpha, spread):
    torch.manual_seed(1)
    b, k, v = 4, 3, 500
    so_far, scores = torch.randn(b, k).double(), spread * torch.randn(b, k, v).double()
    offer = Continuations(so_far, torch.ones(b, k, dtype=torch.bool), scores, None, torch.tensor([0]))
    ranked = scores.index_fill(2, torch.tensor([0]), -torch.inf)
    whole = mixtures(all_candidates(offer), k, alpha).log_weights.exp()
    for keep in (4, 30, 300):
        chosen = mixtures(best_candidates(offer, ranked, keep), k, alpha)
        kept = chosen.candidates.parents * v + chosen.candidates.tokens
        left_out = 1 - whole.gather(2, kept.unsqueeze(1).expand(-1, k, -1)).sum(dim=2)
        assert (left_out <= chosen.bound.unsqueeze(1) + 1e-12).all()


def test_the_number_kept_grows_until_the_bound_holds():
    torch.manual_seed(2)
    flat, peaked = 0.01 * torch.randn(2, 3, 4000), 8 * torch.randn(2, 3, 4000)
    runs, none = torch.ones(2, 3, dtype=torch.bool), torch.tensor([], dtype=torch.long)
    zeros = torch.zeros(2, 3).double()

    def kept(scores, tolerance):
        chosen = soft_top(Continuations(zeros, runs, scores, None, none), 3, 1.0, 16, tolerance)
        assert float(chosen.bound.max()) <= tolerance
        return chosen.candidates.scores.shape[1]

    assert kept(flat, 1e-4) == 12000  # nothing stands out: all are weighed
    assert kept(peaked, 1e-4) < 1000
    assert kept(peaked, 1e-12) >= kept(peaked, 1e-2)


def test_min_length_holds_and_outputs_end_at_the_first_end():
    model = lstm(3, 6)
    batch = make_batch(SOURCES)
    for alpha in (0.5, 5.0, HARD):
        found = SoftBeamSearch(4, alpha, min_length=3, max_length=7)(model, batch)
        assert (found.lengths >= 3).all()
        assert all(len(ids) <= 7 and not {0, 1, 2} & set(ids) for ids in found.ids(ENDED))


def test_scores_that_are_no_numbers_are_reported():
    model = lstm(1)
    with torch.no_grad():
        model.projection[3] = float("nan")
    with pytest.raises(InputError, match="NaN or infinite"):
        SoftBeamSearch()(model, make_batch(SOURCES))


def test_padding_must_not_be_the_end():
    batch = make_batch(SOURCES, ENDED._replace(pad=2))
    with pytest.raises(InputError, match="needs separate ids for padding"):
        SoftBeamSearch()(lstm(1), batch)
    with pytest.raises(InputError, match="needs separate ids for padding"):
        objectives.SoftBeam()(lstm(1), batch, progress=Progress(), rng=torch.Generator())


@pytest.mark.parametrize("alpha", [0.05, 1.0, 20.0])
@pytest.mark.parametrize("spread", [0.5, 8.0])
def test_truncated_mixtures_equal_full_ones_up_to_their_bound(alpha, spread):
    """Values and gradients; flat scores need more than ``keep`` candidates, or all of them."""
    torch.manual_seed(0)
    scores = (spread * torch.randn(6, 1, 400, dtype=torch.float64)).requires_grad_()
    full = soft_top_k(scores.squeeze(1), 3, alpha)
    zeros, nothing = torch.zeros(6, 1, dtype=torch.float64), torch.zeros(0, dtype=torch.long)
    found = soft_top(Continuations(zeros, zeros == 0, scores, None, nothing), 3, alpha, 6, 1e-7)
    assert float(found.bound.max()) <= 1e-7
    tokens = found.candidates.tokens
    tokens = torch.arange(400).expand(6, 400) if tokens is None else tokens
    spread_out = torch.zeros_like(full).scatter(
        -1, tokens.unsqueeze(1).expand_as(found.log_weights), found.log_weights.exp()
    )
    torch.testing.assert_close(spread_out, full, rtol=0, atol=2e-7)
    values = torch.randn(400, dtype=torch.float64)
    want = torch.autograd.grad((full @ values).square().sum(), scores)[0]
    got = torch.autograd.grad((spread_out @ values).square().sum(), scores)[0]
    torch.testing.assert_close(got, want, rtol=0, atol=1e-5 * float(want.abs().max()))
    if alpha == 20.0 and spread == 8.0:
        assert tokens.shape[-1] < 100  # else nothing was truncated


@pytest.mark.parametrize("kind", ["local", "global"])
@pytest.mark.parametrize("keep", [None, 3])
def test_selections_keep_their_precision_under_autocast(kind, keep, monkeypatch):
    monkeypatch.setattr(soft_top_file, "EXACT", 0)  # in single precision, which autocast would halve
    torch.manual_seed(0)
    batch = make_batch(SOURCES, ENDED)
    scores = 5 * torch.randn(3, len(batch), 2, 40)
    memories = []
    for on in (False, True):
        selector = SoftTop(Constraints.of(batch, kind=kind), 2, 1.0, keep, 0.5)
        memory = selector.begin(torch.full((len(batch),), 9))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=on):
            for t, each in enumerate(scores):
                memory = selector.select(t, each if t else each[:, :1], memory, None).memory
        memories.append(memory)
    for name in ("scores", "offset", "running", "ended"):
        assert torch.equal(*(getattr(memory, name) for memory in memories))


def test_raw_scores_can_revive_a_nearly_finished_hypothesis():
    """Late tokens with high scores outweigh a mass of e^-14.

    A decoder must therefore continue until almost no mass is unfinished.
    """
    batch = make_batch(SOURCES, ENDED)
    for kind, goes_on in (("local", False), ("global", True)):
        selector = SoftTop(Constraints.of(batch, kind=kind), 1, 1.0, None, 0.0, tracing=True)
        memory = selector.begin(torch.full((len(batch),), 9))
        scores = torch.zeros(len(batch), 1, 5)
        scores[..., ENDED.eos] = 4.5  # all but e^-20 of the mixture
        found = selector.select(0, scores, memory, None)
        assert -69 < float(found.memory.running.max()) < -14
        assert found.running.tolist() == [goes_on] * len(batch)


@MODELS
@pytest.mark.parametrize("training", [False, True])
def test_recomputed_segments_give_the_same_gradient(build, training):
    """Steps are recomputed after the search, in the mode and with the dropout masks of the first time."""
    model, batch = build(3).train(training), make_batch([[3, 4] * 9], ENDED)
    gradients = []
    for segment in (None, 2):
        torch.manual_seed(0)
        selector = SoftTop(Constraints.of(batch), 2, 1.0, None, 0.0)
        found = search(model, batch, selector, torch.full((1,), 18), segment=segment)
        gradients.append(torch.autograd.grad(found.memory.scores[:, 1].sum(), [*model.parameters()], allow_unused=True))
    for plain, recomputed in zip(*gradients):
        if plain is not None:
            torch.testing.assert_close(recomputed, plain)
