"""Search against enumeration: on spaces small enough to list, a wide beam must find what the list says is best."""

import itertools

import pytest
import torch
from small_models import BUILDERS, ENDED, FIXED, SOURCES, make_batch, toy

from unforced import decode
from unforced.decoding import Beam, Greedy, enumerate_sequences
from unforced.errors import InputError
from unforced.types import Batch

WIDE = 200  # more than there are outputs below


def outputs(hypotheses, row: int = 0) -> list[tuple[int, ...]]:
    """The outputs of an example that exist, as tuples with their EOS."""
    return [
        tuple(tokens[:length])
        for tokens, length, log_prob in zip(
            hypotheses.tokens[row].tolist(), hypotheses.lengths[row].tolist(), hypotheses.log_probs[row].tolist()
        )
        if log_prob > -float("inf")
    ]


def teacher_forced(model, batch: Batch, output: tuple[int, ...]) -> float:
    """log p(output | source) by one parallel pass: no search code involved."""
    tokens = torch.tensor([output])
    prefix = torch.cat([torch.tensor([[batch.symbols.bos]]), tokens[:, :-1]], dim=1)
    with torch.no_grad():
        features, _ = model.eval().advance(model.start(batch), model.embed(prefix))
        log_probs = model.score(features).log_softmax(dim=-1)
    return float(log_probs.gather(2, tokens.unsqueeze(2)).sum())


@BUILDERS
@pytest.mark.parametrize("min_length", [0, 2])
def test_enumeration_lists_each_output_once_with_its_probability(build, min_length):
    model, batch = build(1), make_batch([SOURCES[0]])
    listed = enumerate_sequences(model, batch, 3, min_length=min_length)
    words = (3, 4)
    expected = {(*body, 2) for n in range(min_length, 3) for body in itertools.product(words, repeat=n)} | set(
        itertools.product(words, repeat=3)
    )
    assert set(outputs(listed)) == expected
    assert len(outputs(listed)) == len(expected)
    assert listed.log_probs[0].tolist() == sorted(listed.log_probs[0].tolist(), reverse=True)
    for output, log_prob in zip(outputs(listed), listed.log_probs[0].tolist()):
        assert log_prob == pytest.approx(teacher_forced(model, batch, output), abs=1e-12)


def test_enumerated_probabilities_sum_to_one_where_nothing_is_banned():
    symbols = ENDED._replace(banned=())
    listed = enumerate_sequences(toy(3), make_batch([[3, 4]], symbols), 4)
    assert listed.log_probs.exp().sum().item() == pytest.approx(1, abs=1e-12)


def test_enumeration_of_a_fixed_length():
    model, batch = toy(2), make_batch([SOURCES[1]], FIXED)
    listed = enumerate_sequences(model, batch)
    assert set(outputs(listed)) == set(itertools.product((2, 3, 4), repeat=3))


def test_enumeration_refuses_what_is_too_big_and_more_than_one_example():
    with pytest.raises(InputError, match="more than 1000 outputs"):
        enumerate_sequences(toy(1), make_batch([[3]]), 60, most=1000)
    with pytest.raises(InputError, match="one example at a time"):
        enumerate_sequences(toy(1), make_batch(SOURCES), 3)


@BUILDERS
@pytest.mark.parametrize("symbols", [ENDED, FIXED], ids=["eos", "fixed"])
def test_greedy_is_a_beam_of_one_and_takes_each_best_token(build, symbols):
    for seed in range(3):
        model, batch = build(seed, 7), make_batch(SOURCES, symbols)
        greedy = Greedy()(model, batch)
        for finished in ("pool", "stay"):
            one = Beam(beam=1, finished=finished, length_penalty=0.0)(model, batch)
            assert one.tokens.tolist() == greedy.tokens.tolist()
            torch.testing.assert_close(one.log_probs, greedy.log_probs)
        for row, output in enumerate(greedy.ids(symbols)):
            single, prefix = batch.select(torch.tensor([row])), [1]
            for token in output:
                with torch.no_grad():
                    features, _ = model.eval().advance(model.start(single), model.embed(torch.tensor([prefix])))
                    scores = model.score(features)[0, -1]
                scores[list(symbols.banned)] = -torch.inf
                assert token == int(scores.argmax())
                prefix.append(token)


@BUILDERS
@pytest.mark.parametrize("finished", ["pool", "stay"])
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -0.5])
@pytest.mark.parametrize(("min_length", "max_length"), [(0, 4), (2, 4), (3, 3), (0, 1)])
def test_a_beam_as_wide_as_the_space_ranks_all_outputs(build, finished, penalty, min_length, max_length):
    model, batch = build(int(penalty * 10) + 20), make_batch(SOURCES[:3])
    beam = Beam(WIDE, penalty, WIDE, min_length, max_length, finished, early_stopping="never")
    found = beam(model, batch)
    for row in range(len(batch)):
        listed = enumerate_sequences(model, batch.select(torch.tensor([row])), max_length, min_length=min_length)
        scores = (listed.log_probs / listed.lengths**penalty)[0]
        order = scores.argsort(descending=True, stable=True)
        ranked = [outputs(listed)[i] for i in order.tolist()]
        assert outputs(found, row) == ranked
        torch.testing.assert_close(found.scores[row, : len(ranked)], scores[order])
        torch.testing.assert_close(found.log_probs[row, : len(ranked)], listed.log_probs[0, order])
        assert (found.scores[row, len(ranked) :] == -torch.inf).all()


@BUILDERS
@pytest.mark.parametrize("finished", ["pool", "stay"])
@pytest.mark.parametrize("scores", ["local", "global"])
def test_a_wide_beam_over_outputs_of_fixed_length(build, finished, scores):
    model, batch = build(8), make_batch(SOURCES, FIXED)
    found = Beam(WIDE, nbest=WIDE, finished=finished, scores=scores)(model, batch)
    for row, source in enumerate(SOURCES):
        listed = enumerate_sequences(model, batch.select(torch.tensor([row])), scores=scores)
        assert outputs(found, row) == outputs(listed)
        assert {len(output) for output in outputs(found, row)} == {len(source)}
        torch.testing.assert_close(found.log_probs[row, : listed.log_probs.shape[1]], listed.log_probs[0])


@pytest.mark.parametrize("finished", ["pool", "stay"])
def test_raw_scores_with_end_symbol(finished):
    model, batch = toy(5), make_batch([SOURCES[0]])
    found = Beam(WIDE, 1.0, 8, 0, 4, finished, "never", "global")(model, batch)
    listed = enumerate_sequences(model, batch, 4, scores="global")
    best = (listed.scores / listed.lengths)[0].sort(descending=True).values
    assert (listed.log_probs > 0).any()  # sums of raw scores have no bound
    torch.testing.assert_close(found.scores[0], best[:8])


@pytest.mark.parametrize("finished", ["pool", "stay"])
def test_narrow_beams_never_beat_the_optimum_and_report_true_log_probs(finished):
    gaps = []
    for seed in range(10):
        model, batch = toy(seed, scale=2.0), make_batch([SOURCES[seed % 4]])
        found = Beam(2, 0.0, 2, 0, 5, finished)(model, batch)
        listed = enumerate_sequences(model, batch, 5)
        gaps.append(float(listed.log_probs[0, 0] - found.log_probs[0, 0]))
        for output, log_prob in zip(outputs(found), found.log_probs[0].tolist()):
            assert log_prob == pytest.approx(teacher_forced(model, batch, output), abs=1e-12)
    assert min(gaps) >= -1e-12


def test_stay_is_beam_search_with_padding_written_out():
    """The recurrence of the relaxed search at its hard limit, in plain Python."""
    for seed in range(8):
        model, batch = toy(seed, 6), make_batch([SOURCES[seed % 4]])
        beam: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
        for _ in range(5):
            candidates = []
            for score, output in beam:
                if output and output[-1] == 2:
                    candidates.append((score, output))
                else:
                    longer = [(*output, token) for token in range(2, 6)]
                    candidates += [(teacher_forced(model, batch, y), y) for y in longer]
            beam = sorted(candidates, reverse=True)[:3]
        found = Beam(3, 0.0, 3, 0, 5, "stay")(model, batch)
        assert outputs(found) == [output for _, output in beam]


def test_decode_by_name():
    model, batch = toy(1), make_batch(SOURCES)
    assert decode(model, batch).tokens.tolist() == Beam()(model, batch).tokens.tolist()
    assert decode(model, batch, "greedy").ids(ENDED) == Greedy()(model, batch).ids(ENDED)
    drawn = decode(model, batch, "sample", rng=torch.Generator().manual_seed(1), samples=3)
    assert drawn.tokens.shape[:2] == (4, 3)
    with pytest.raises(InputError, match='did you mean "greedy"'):
        decode(model, batch, "gredy")
    with pytest.raises(InputError, match=r'did you mean "beam\.length_penalty"'):
        decode(model, batch, "beam", lenght_penalty=1.0)
