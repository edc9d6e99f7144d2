"""Tasks on their whole data sets: published sizes, disjoint parts, lossless codecs, perfect scores of references."""

import json
import os

import pytest
from seqeval.metrics import f1_score
from seqeval.scheme import IOB2

from unforced.tasks.pronunciation import G2P, Phonemes
from unforced.tasks.tagging import Tagging
from unforced.tasks.text import Dialogue, Summarization, Translation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("UNFORCED_DATA"), reason="needs data sets under UNFORCED_DATA"),
]

SPLITS = ("train", "dev", "test")
TASKS = [
    (Translation(), (29_000, 1_014, 1_000)),
    (Translation(variant="tok", test_set="2017", direction="en-de"), (29_000, 1_014, 1_000)),
    (Dialogue(min_count=1), (11_755, 1_499, 1_483)),
    (Summarization(), (20_000, 1_000, 1_000)),
]


@pytest.mark.parametrize(("task", "sizes"), TASKS, ids=lambda value: type(value).__name__)
def test_staged_pairs(task: Translation, sizes: tuple[int, ...]) -> None:
    parts = {split: task.read(split) for split in SPLITS}
    assert tuple(len(parts[split]) for split in SPLITS) == sizes
    assert all(not part.dropped for part in parts.values())
    codec = task.codec(json.loads(json.dumps(task.fit(parts["train"]).to_json())))
    sample = parts["train"][:500]
    assert [codec.decode(codec.encode(e).target[:-1]) for e in sample] == [e.target for e in sample]
    for metric in task.metrics():
        rows = metric.statistics([e.target for e in sample], [e.answers for e in sample])
        assert metric.score(rows.sum(axis=0)) == pytest.approx(100)


@pytest.mark.parametrize(("dictionary", "words"), [("0.7b", 125_770), ("package", 126_052)])
def test_whole_dictionary(dictionary: str, words: int) -> None:
    task = G2P(dictionary=dictionary)  # type: ignore[arg-type]
    parts = [task.read(split) for split in SPLITS]
    assert all(len(part) + sum(part.dropped.values()) == words for part in parts)
    together = [e.source for part in parts for e in part]
    assert len(together) == len(set(together)) >= words - 200
    assert len(parts[0]) / len(together) == pytest.approx(0.9, abs=0.005)
    assert len(parts[1]) / len(together) == pytest.approx(0.05, abs=0.005)
    codec = task.fit(parts[0])
    assert len(codec.target.vocabulary.data) == 39
    assert codec.source is not None
    assert set(codec.source.vocabulary.data) == set("abcdefghijklmnopqrstuvwxyz'.-")


def test_phoneme_strings_of_the_thesis() -> None:
    parts = [Phonemes().read(split) for split in SPLITS]
    assert sum(len(part) for part in parts) == 77_653
    assert len(parts[2]) / 77_653 == pytest.approx(0.1, abs=0.005)
    assert sum(len(Phonemes(distinct=True).read(split)) for split in SPLITS) == 61_144
    assert len(Phonemes().fit(parts[0]).target.vocabulary.data) == 39


# Tagging


@pytest.mark.parametrize(
    ("options", "sizes", "tags"),
    [
        ({"dataset": "germeval14_small"}, (5100, 1000, 1200), 23),
        ({"dataset": "ccg_ewt"}, (11303, 1864, 1956), 508),
        ({"dataset": "german_ler", "coarse": True}, (47845, 5705, 6526), 15),
    ],
)
def test_sizes(options, sizes, tags):
    task = Tagging(**options)
    train = task.read("train")
    codec = task.fit(train)
    assert (len(train), len(task.read("dev")), len(task.read("test"))) == sizes
    assert len(codec.tags.data) == tags
    for example in task.read("dev"):
        assert len(codec.encode(example).target) == len(example.source)


def test_f1_of_shifted_tags_equals_seqeval():
    task = Tagging(dataset="germeval14_small")
    gold = [example.target for example in task.read("test")]
    # damage: every third sentence loses its last entity tag, every fifth gets its tags moved by one word
    outputs = [
        ("O", *tags[:-1]) if i % 5 == 0 else (*tags[:-1], "O") if i % 3 == 0 else tags for i, tags in enumerate(gold)
    ]
    metric = task.metrics()[0]
    rows = metric.statistics(outputs, [[tags] for tags in gold])
    assert rows[:, [0, 2]].sum() == 1402  # entities of the test part
    wanted = f1_score([list(t) for t in gold], [list(t) for t in outputs], mode="strict", scheme=IOB2)
    assert float(metric.score(rows.sum(axis=0))) == pytest.approx(100 * wanted, abs=1e-9)
