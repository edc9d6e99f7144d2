"""Samples against the enumerated distribution, and the random numbers under them."""

import pytest
import torch
from scipy.stats import chisquare
from small_models import FIXED, SOURCES, lstm, make_batch, toy

from unforced.decoding import Sample, enumerate_sequences
from unforced.errors import InputError
from unforced.types import Batch


def generator(seed: int = 1) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def counts(hypotheses) -> dict[tuple[int, ...], int]:
    found: dict[tuple[int, ...], int] = {}
    for tokens, length in zip(hypotheses.tokens[0].tolist(), hypotheses.lengths[0].tolist()):
        found[tuple(tokens[:length])] = found.get(tuple(tokens[:length]), 0) + 1
    return found


def distribution(model, batch: Batch, temperature: float = 1.0, kept=lambda p: p) -> dict[tuple[int, ...], float]:
    """Of each output of up to three tokens, the probability that step-by-step sampling gives it."""
    listed = enumerate_sequences(model, batch, 3)
    out = {}
    for output in [tuple(t[:n]) for t, n in zip(listed.tokens[0].tolist(), listed.lengths[0].tolist())]:
        probability = 1.0
        for t, token in enumerate(output):
            prefix = torch.tensor([[1, *output[:t]]])
            with torch.no_grad():
                features, _ = model.eval().advance(model.start(batch), model.embed(prefix))
                scores = model.score(features)[0, -1] / temperature
            scores[list(batch.symbols.banned)] = -torch.inf
            kept_probabilities = kept(scores.softmax(dim=0))
            probability *= float(kept_probabilities[token] / kept_probabilities.sum())
        out[output] = probability
    return out


def top_two(p: torch.Tensor) -> torch.Tensor:
    return torch.where(p >= p.sort(descending=True).values[1], p, 0.0)


def nucleus(p: torch.Tensor, mass: float = 0.7) -> torch.Tensor:
    values, order = p.sort(descending=True)
    needed = int((values.cumsum(0) < mass).sum()) + 1
    return torch.zeros_like(p).index_copy(0, order[:needed], values[:needed])


@pytest.mark.parametrize("build", [toy, lstm], ids=["toy", "lstm"])
@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({}, lambda p: p),
        ({"temperature": 0.5}, lambda p: p),
        ({"temperature": 2.0}, lambda p: p),
        ({"top_k": 2}, top_two),
        ({"nucleus": 0.7}, nucleus),
        ({"top_k": 2, "nucleus": 0.7}, lambda p: nucleus(top_two(p) / top_two(p).sum())),
    ],
    ids=["plain", "cold", "hot", "top_k", "nucleus", "both"],
)
def test_frequencies_are_those_of_the_enumerated_distribution(build, fields, kept):
    model, batch, n = build(4), make_batch([SOURCES[0]]), 4000
    expected = distribution(model, batch, fields.get("temperature", 1.0), kept)
    assert sum(expected.values()) == pytest.approx(1)
    found = counts(Sample(samples=n, max_length=3, **fields)(model, batch, rng=generator()))
    assert {output for output in found if expected[output] == 0} == set()
    likely = [output for output, p in expected.items() if p * n >= 5]
    observed = [found.get(output, 0) for output in likely]
    frequencies = [expected[output] * n for output in likely]
    rest = n - sum(observed), n - sum(frequencies)
    if rest[1] >= 1:
        observed.append(rest[0])
        frequencies.append(rest[1])
    else:
        frequencies = [f * sum(observed) / sum(frequencies) for f in frequencies]
    assert len(observed) == 1 or chisquare(observed, frequencies).pvalue > 0.001


def test_log_probs_are_the_models_and_the_best_sample_comes_first():
    model, batch = toy(2), make_batch([SOURCES[1]])
    found = Sample(temperature=2.0, top_k=3, samples=40, max_length=4)(model, batch, rng=generator())
    listed = enumerate_sequences(model, batch, 4)
    table = {
        tuple(t[:n]): p
        for t, n, p in zip(listed.tokens[0].tolist(), listed.lengths[0].tolist(), listed.log_probs[0].tolist())
    }
    for tokens, length, log_prob in zip(
        found.tokens[0].tolist(), found.lengths[0].tolist(), found.log_probs[0].tolist()
    ):
        assert log_prob == pytest.approx(table[tuple(tokens[:length])])
    assert (found.scores.diff(dim=1) <= 0).all()


def test_lengths():
    model = toy(6)
    found = Sample(samples=200, min_length=2, max_length=4)(model, make_batch([SOURCES[0]]), rng=generator())
    assert set(found.lengths[0].tolist()) == {3, 4}
    fixed = Sample(samples=20)(model, make_batch(SOURCES, FIXED), rng=generator())
    assert fixed.lengths.tolist() == [[len(source)] * 20 for source in SOURCES]


def test_samples_of_an_example_differ_and_a_generator_in_the_same_state_repeats_them():
    model, batch, rng = toy(3, scale=0.1), make_batch(SOURCES), generator(5)
    first, second = (Sample(samples=20)(model, batch, rng=rng) for _ in range(2))
    again = Sample(samples=20)(model, batch, rng=generator(5))
    assert first.tokens.tolist() == again.tokens.tolist()
    assert first.tokens.tolist() != second.tokens.tolist()
    assert len(counts(first)) > 5


def test_sampling_uses_its_own_generator():
    model, batch = lstm(1), make_batch(SOURCES)
    before = torch.get_rng_state()
    Sample()(model, batch, rng=generator())
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(InputError, match="rng="):
        Sample()(model, batch)
