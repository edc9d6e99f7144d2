"""Edge cases of input, broken models, and state after decoding."""

from dataclasses import replace

import pytest
import torch
from small_models import ENDED, FIXED, SOURCES, lstm, make_batch, toy

from unforced.decoding import Beam, Greedy, Sample, enumerate_sequences
from unforced.decoding.search import limits
from unforced.errors import InputError
from unforced.models.toy import Toy
from unforced.models.transformer import Transformer
from unforced.types import Batch, Sizes

DECODERS = {
    "greedy": Greedy(),
    "sample": Sample(samples=2),
    "pool": Beam(3, nbest=2),
    "stay": Beam(3, nbest=2, finished="stay"),
    "global pool": Beam(3, scores="global"),
    "global stay": Beam(3, scores="global", finished="stay"),
}
ALL = pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)


def run(decoder, model, batch: Batch):
    return decoder(model, batch, rng=torch.Generator().manual_seed(1))


@ALL
def test_no_examples_at_all(decoder):
    found = run(decoder, toy(1), make_batch(SOURCES).select(torch.tensor([], dtype=torch.long)))
    n = getattr(decoder, "samples", 0) or getattr(decoder, "nbest", 1)
    assert found.tokens.shape == (0, n, 0)
    assert found.scores.shape == found.lengths.shape == (0, n)


@ALL
def test_outputs_of_length_zero_and_one(decoder):
    model, sources = toy(1), [[3, 4, 4], [], [3], [5, 5]]
    found = run(decoder, model, make_batch(sources, FIXED))
    assert found.lengths[:, 0].tolist() == [3, 0, 1, 2]
    assert found.log_probs[1, 0] == 0
    assert found.scores[:, 0].isfinite().all()
    nothing = run(decoder, model, make_batch([[], []], FIXED, width=1))
    assert nothing.tokens.shape[2] == 0
    assert nothing.log_probs[:, 0].tolist() == [0, 0]


@ALL
@pytest.mark.parametrize("build", [toy, lstm], ids=["toy", "lstm"])
def test_an_empty_source_among_others(decoder, build):
    found = run(decoder, build(3), make_batch([[3, 4], [], [5]]))
    assert found.log_probs[:, 0].isfinite().all()
    assert (found.lengths[:, 0] <= torch.tensor([14, 10, 12])).all()


@ALL
@pytest.mark.parametrize("vocabulary", [3, 4])
def test_beam_and_samples_beyond_the_vocabulary(decoder, vocabulary):
    """With three ids and two of them banned, the only output is EOS."""
    found = run(decoder, toy(1, vocabulary), make_batch(SOURCES))
    assert found.log_probs[:, 0].isfinite().all()
    if vocabulary == 3:
        assert found.ids(ENDED) == [[]] * 4
        if isinstance(decoder, Beam) and decoder.nbest == 2:
            assert (found.log_probs[:, 1] == -torch.inf).all()
            assert (found.lengths[:, 1] == 0).all()


class Planted(torch.nn.Module):
    """A toy model some of whose scores are overwritten; what depends on the position shows in the length so far."""

    def __init__(self, vocabulary: int = 6) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.toy = Toy().build(Sizes(target=vocabulary, source=6)).double()
        self.bad: dict[int, float] = {}  # after this token all scores are this number

    def __getattr__(self, name):
        return (
            getattr(self._modules["toy"], name) if name in ("start", "embed", "advance") else super().__getattr__(name)
        )

    def score(self, features):
        scores = self.toy.score(features)
        for token, number in self.bad.items():
            scores = torch.where(features[..., token : token + 1] > 0, number, scores)
        return scores


@ALL
def test_scores_that_are_all_minus_infinity_are_an_error(decoder):
    model = Planted()
    model.bad = {1: -torch.inf}
    with pytest.raises(InputError, match="no output is possible for example 7"):
        run(decoder, model, make_batch([[3]], ids=[7]))
    with pytest.raises(InputError, match="no output is possible"):
        enumerate_sequences(model, make_batch([[3]]), 3)


@ALL
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_broken_scores_are_an_error_that_names_the_step(decoder, number):
    model = Planted()
    model.bad = {1: number}
    with pytest.raises(InputError, match="step 0"):
        run(decoder, model, make_batch(SOURCES))


@pytest.mark.parametrize("finished", ["pool", "stay"])
def test_beam_search_walks_around_dead_ends(finished):
    model, batch = Planted(), make_batch([[3, 4]])
    with torch.no_grad():
        model.toy.table[1, 3] += 5  # tempting, but nothing can follow
    model.bad = {3: -torch.inf}
    found = Beam(4, 0.0, 3, 1, 4, finished)(model, batch)
    listed = enumerate_sequences(model, batch, 4, min_length=1)
    assert found.log_probs.isfinite().all()
    assert 3 not in found.tokens[:, :, :-1].flatten().tolist()
    assert found.log_probs[0, 0] == pytest.approx(float(listed.log_probs[0, 0]))


@ALL
def test_banned_tokens_are_never_emitted(decoder):
    for symbols in (ENDED, FIXED):
        model, batch = toy(2, 8), make_batch(SOURCES, symbols._replace(banned=(0, 1, 4, 6)))
        with torch.no_grad():
            model.table[:, [0, 1, 4, 6]] += 10
        found = run(decoder, model, batch)
        inside = torch.arange(found.tokens.shape[2]) < found.lengths.unsqueeze(2)
        assert not set(found.tokens[inside].tolist()) & {0, 1, 4, 6}


@ALL
def test_an_end_symbol_that_is_also_padding(decoder):
    """As in GPT-2: id 0 ends and pads, and being listed as banned does not keep it from ending."""
    symbols = ENDED._replace(eos=0, pad=0)
    found = run(decoder, toy(5), make_batch(SOURCES, symbols))
    assert (found.tokens.gather(2, (found.lengths.clamp(min=1) - 1).unsqueeze(2)) == 0).any()
    inside = torch.arange(found.tokens.shape[2]) < found.lengths.unsqueeze(2) - 1
    assert (found.tokens[inside] != 0).all()


@ALL
def test_every_modules_mode_is_restored_and_dropout_is_off(decoder):
    model, batch = lstm(1), make_batch(SOURCES)
    model.train()
    frozen = next(iter(model.children()))
    frozen.eval()
    modes = [module.training for module in model.modules()]
    first, second = run(decoder, model, batch), run(decoder, model, batch)
    assert [module.training for module in model.modules()] == modes
    assert first.tokens.tolist() == second.tokens.tolist()
    assert torch.equal(first.log_probs, second.log_probs)
    with pytest.raises(InputError):
        run(decoder, model, make_batch(SOURCES, FIXED._replace(banned=tuple(range(5)))))
    assert [module.training for module in model.modules()] == modes


@ALL
def test_outputs_can_be_trained_on(decoder):
    """Also within autocast: what was cast without gradients must not be used in the next pass."""
    torch.manual_seed(1)
    spec = Transformer(width=8, heads=2, encoder_layers=1, decoder_layers=1, feedforward=16)
    model, batch = spec.build(Sizes(target=5, source=6)), make_batch(SOURCES)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = run(decoder, model, batch)
        assert found.log_probs.dtype == torch.float32
        tokens = found.tokens[:, 0]
        features, _ = model.advance(model.start(batch), model.embed(tokens))
        loss = torch.nn.functional.cross_entropy(model.score(features).flatten(0, 1), tokens.flatten())
    loss.backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.numel() > 1)


def test_default_limits_come_from_each_rows_own_source():
    assert limits(make_batch([[3, 4], [3]], width=9)).tolist() == [14, 12]
    assert limits(make_batch([[3, 4], [3]]), min_length=13).tolist() == [14, 14]
    assert limits(make_batch([[3, 4], [3]]), max_length=5).tolist() == [5, 5]
    assert limits(make_batch([[3, 4], [3]], FIXED)).tolist() == [2, 1]
    gold = torch.zeros(2, 0, dtype=torch.long)
    plain = Batch(gold, gold, gold > 0, ENDED)
    assert limits(plain).tolist() == [256, 256]


def test_wrong_lengths_and_fields_are_refused():
    with pytest.raises(InputError, match=r"set Batch\.length"):
        Greedy()(toy(1), replace(make_batch(SOURCES, FIXED), length=None))
    with pytest.raises(InputError, match="fixes the length"):
        Greedy(max_length=3)(toy(1), make_batch(SOURCES, FIXED))
    for wrong in (lambda: Greedy(min_length=5, max_length=4), lambda: Beam(2, nbest=3)):
        with pytest.raises(InputError):
            wrong()
