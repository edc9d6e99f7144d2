"""The staged tagging data sets: sizes as their descriptions state them."""

import os

import pytest
from seqeval.metrics import f1_score
from seqeval.scheme import IOB2

from unforced.tasks.tagging import Tagging

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif("UNFORCED_DATA" not in os.environ, reason="needs data sets under UNFORCED_DATA"),
]


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
