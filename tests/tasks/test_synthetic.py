"""Palindromes and hidden Markov models against enumeration."""

import json
from itertools import product

import numpy as np
import pytest

from unforced.errors import InputError
from unforced.protocols import Codec, Task
from unforced.tasks.synthetic import HMM, Palindromes, all_sequences

TASKS = [Palindromes(), HMM(emissions="low"), HMM(emissions="high")]
SMALL = [
    Palindromes(alphabet=3, length=4, probability=0.3),
    Palindromes(alphabet=2, length=3),
    HMM(alphabet=3, length=4, states=2),
    HMM(alphabet=2, length=3, states=5, emissions="high"),
]


@pytest.mark.parametrize("task", TASKS + SMALL, ids=str)
def test_probabilities_of_all_strings_sum_to_one_and_give_the_entropy(task):
    log_probs = task.log_prob(all_sequences(task.alphabet, task.length))
    assert np.exp(log_probs).sum() == pytest.approx(1, abs=1e-12)
    assert -(np.exp(log_probs) * log_probs).sum() == pytest.approx(task.entropy(), abs=1e-12)


def test_palindromes_have_the_entropy_derived_by_hand():
    """5³ palindromes share 0.8, the 5⁵ − 5³ other strings 0.2."""
    wanted = -0.8 * np.log(0.8 / 125) - 0.2 * np.log(0.2 / 3000)
    assert Palindromes().entropy() == pytest.approx(wanted, abs=1e-12)
    assert Palindromes().entropy() == pytest.approx(5.964, abs=5e-4)


@pytest.mark.parametrize(("emissions", "reported"), [("low", (4.97, 5.02)), ("high", (6.41, 6.45))])
def test_hidden_markov_models_have_entropies_like_the_reported_ones(emissions, reported):
    low, high = reported
    assert low - 0.02 <= HMM(emissions=emissions).entropy() <= high + 0.02


@pytest.mark.parametrize("task", [HMM(), HMM(alphabet=3, length=3, states=2, emissions="high")], ids=str)
def test_forward_algorithm_equals_the_sum_over_hidden_paths(task):
    first, transitions, emissions = task.parameters()
    for ids in np.random.default_rng(0).integers(task.alphabet, size=(5, task.length)):
        total = 0.0
        for path in product(range(task.states), repeat=task.length):
            p = first[path[0]] * emissions[path[0], ids[0]]
            for t in range(1, task.length):
                p *= transitions[path[t - 1], path[t]] * emissions[path[t], ids[t]]
            total += p
        assert float(task.log_prob(ids)) == pytest.approx(np.log(total), abs=1e-12)


@pytest.mark.parametrize("task", [Palindromes(alphabet=3, length=3), HMM(alphabet=3, length=3)], ids=str)
def test_samples_have_the_frequencies_of_the_distribution(task):
    n = 20000
    ids = task.sample(n, np.random.default_rng(0))
    found = np.bincount(ids @ [9, 3, 1], minlength=27)
    wanted = n * np.exp(task.log_prob(all_sequences(3, 3)))
    statistic = ((found - wanted) ** 2 / wanted).sum()
    assert statistic < 48.3  # the 99.5 % point of chi-square with 26 degrees of freedom


def test_remarks_give_the_likelihood_of_the_true_distribution():
    task = HMM(held_out=50)
    codec = task.fit([])
    strings = np.array([codec.encode(example).target for example in task.read("test")])
    (remark,) = task.remarks()
    assert f"{-task.log_prob(strings).mean():.4f} on the test split" in remark
    assert f"{task.entropy():.4f} in expectation" in remark
    (of_many,) = HMM(length=20).remarks()  # too many strings to enumerate
    assert "expectation" not in of_many


@pytest.mark.parametrize("kind", [Palindromes, HMM])
def test_splits_have_their_sizes_and_repeat(kind):
    task = kind(size=30, held_out=20, seed=4)
    parts = [task.read(split) for split in ("train", "dev", "test")]
    assert isinstance(task, Task)
    assert [len(part) for part in parts] == [30, 20, 20]
    assert parts[1] != parts[2]
    assert task.read("train") == parts[0] != kind(size=30, seed=5).read("train")
    again = kind(size=30, held_out=20, seed=4, draw=1)
    assert again.read("train") != parts[0]
    assert [again.read(split) for split in ("dev", "test")] == parts[1:]
    assert all(example.source is None and len(example.target) == 5 for example in parts[0])
    assert [metric.name for metric in task.metrics()] == ["sequence_nll"]


@pytest.mark.parametrize("task", TASKS, ids=str)
def test_codec_round_trip(task):
    train = task.read("train")[:4]
    codec = task.fit(train)
    batch = codec.collate([codec.encode(example) for example in train], range(4))
    assert isinstance(codec, Codec)
    assert [codec.decode(row) for row in batch.gold.tolist()] == [example.target for example in train]
    assert batch.symbols == (6, 5, None, (5, 6))
    assert batch.source is None
    assert batch.length.tolist() == [5] * 4
    assert (batch.prefix[:, 0] == 5).all()
    assert codec.sizes.target == 7
    assert task.codec(json.loads(json.dumps(codec.to_json()))) == codec
    # ids are what the true distribution takes
    assert task.log_prob(batch.gold.numpy()).shape == (4,)


def test_wrong_options_are_refused():
    with pytest.raises(InputError, match="length must be at least 2"):
        Palindromes(length=1)
    with pytest.raises(InputError, match="too many to enumerate"):
        HMM(length=20).entropy()
