"""The same outputs whatever the batch: size, order, padding, and who else is in it."""

import pytest
import torch
from small_models import ENDED, FIXED, lstm, make_batch, toy

from unforced.decoding import Beam, Greedy, Sample, SoftBeamSearch
from unforced.models.transformer import Causal, Transformer
from unforced.types import Batch, Sizes

SOURCES = [[3, 4], [5], [4, 4, 3, 5, 3], [3, 5, 4]]
IDS = [11, 4, 300, 0]
DECODERS = {
    "greedy": Greedy(),
    "sample": Sample(samples=3),
    "cut sample": Sample(top_k=4, nucleus=0.9, temperature=1.3),
    "pool": Beam(3, nbest=3),
    "full": Beam(3, early_stopping="full"),
    "never": Beam(4, nbest=2, early_stopping="never", length_penalty=0.6),
    "stay": Beam(3, nbest=3, finished="stay"),
    "soft": SoftBeamSearch(3, 2.0),
}


def transformer(seed: int, vocabulary: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    spec = Transformer(width=8, heads=2, encoder_layers=1, decoder_layers=2, feedforward=16)
    model = spec.build(Sizes(target=vocabulary, source=6)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2)
    return model


def decode(decoder, model, batch: Batch):
    return decoder(model, batch, rng=torch.Generator().manual_seed(3))


def rows(hypotheses, symbols) -> list:
    """Each example's outputs and scores, free of the batch's padding."""
    n = hypotheses.tokens.shape[1]
    columns = [hypotheses.ids(symbols, best) for best in range(n)]
    return [[columns[best][b] for best in range(n)] for b in range(len(columns[0]))]


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
@pytest.mark.parametrize("build", [toy, lstm, transformer], ids=["toy", "lstm", "transformer"])
@pytest.mark.parametrize("symbols", [ENDED, FIXED], ids=["eos", "fixed"])
def test_outputs_do_not_depend_on_the_batch(build, decoder, symbols):
    model = build(2, 9)
    whole = decode(decoder, model, make_batch(SOURCES, symbols, IDS))
    expected = rows(whole, symbols)
    assert len({str(row) for row in expected}) > 1

    alone = [
        decode(decoder, model, make_batch([s], symbols, [i], width=w)) for s, i, w in zip(SOURCES, IDS, (0, 3, 7, 4))
    ]
    assert [rows(one, symbols)[0] for one in alone] == expected
    torch.testing.assert_close(torch.cat([one.scores for one in alone]), whole.scores)
    torch.testing.assert_close(torch.cat([one.lengths for one in alone]), whole.lengths)

    order = [2, 0, 3, 1]
    other = make_batch([SOURCES[i] for i in order], symbols, [IDS[i] for i in order], width=8)
    mixed = decode(decoder, model, other)
    assert rows(mixed, symbols) == [expected[i] for i in order]
    torch.testing.assert_close(mixed.log_probs, whole.log_probs[order])


@pytest.mark.parametrize("decoder", DECODERS.values(), ids=DECODERS)
def test_a_language_model_without_source(decoder):
    torch.manual_seed(1)
    model = Causal(width=8, heads=2, layers=2, feedforward=16).build(Sizes(target=7)).double()
    gold = torch.zeros(3, 1, dtype=torch.long)
    decoded = decode(
        decoder, model, Batch.of_gold(gold, gold > 0, FIXED, length=torch.tensor([4, 1, 6]), ids=gold[:, 0])
    )
    assert decoded.lengths[:, 0].tolist() == [4, 1, 6]
    alone = Batch.of_gold(gold[:1], gold[:1] > 0, FIXED, length=torch.tensor([6]), ids=gold[:1, 0])
    assert decode(decoder, model, alone).tokens[0].tolist() == decoded.tokens[2].tolist()


def test_float32_models_of_a_usual_size():
    """With V past the size where blocks are looked at first; batch shapes may change the last bits, not the ids."""
    torch.manual_seed(4)
    model = Transformer(width=32, heads=4, encoder_layers=1, decoder_layers=1, feedforward=64).build(
        Sizes(target=1003, source=50)
    )
    generator = torch.Generator().manual_seed(1)
    sources = [torch.randint(3, 50, (n,), generator=generator).tolist() for n in (5, 9, 2, 7)]
    for decoder in DECODERS.values():
        expected = rows(decode(decoder, model, make_batch(sources, ENDED, range(4))), ENDED)
        for i, source in enumerate(sources):
            one = decode(decoder, model, make_batch([source], ENDED, [i], width=12))
            assert rows(one, ENDED)[0] == expected[i]


def test_ties_go_to_the_lower_token():
    model, batch = toy(1, 7, scale=0.0), make_batch(SOURCES, FIXED)
    assert set(Greedy()(model, batch).tokens.flatten().tolist()) == {0, 2}
    found = Beam(3, nbest=3)(model, batch)
    assert found.tokens[1, :, :1].tolist() == [[2], [3], [4]]
    assert found.tokens[0, :, :2].tolist() == [[2, 2], [2, 3], [2, 4]]
