"""Each text task on its whole data set: published sizes, disjoint parts, lossless codecs, a perfect score for the gold."""

import json
import os

import pytest

from unforced.tasks.pronunciation import G2P, Phonemes
from unforced.tasks.text import Dialogue, Summarization, Translation

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not os.environ.get("UNFORCED_DATA"), reason="UNFORCED_DATA is not set"),
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
