"""The tasks with a data set of their own, on small copies that the tests write."""

import gzip
import json
from pathlib import Path

import pytest

from unforced.errors import InputError
from unforced.protocols import Codec, Task
from unforced.tasks import pronunciation
from unforced.tasks.pronunciation import G2P, Phonemes
from unforced.tasks.splits import fraction
from unforced.tasks.text import Dialogue, Summarization, Translation
from unforced.types import Example

SPLITS = ("train", "dev", "test")
LETTERS = "abcdefgh"
ENTRIES = [
    *((f"{a}{b}{c}", ("AH0", a.upper(), b.upper(), c.upper())) for a in LETTERS for b in LETTERS for c in LETTERS),
    ("read", ("R", "EH1", "D")),
    ("read", ("R", "IY1", "D")),
    ("read", ("R", "IY0", "D")),
    ("it's", ("IH1", "T", "S")),
    ("3-d", ("TH", "R", "IY1", "D", "IY2")),
    (")paren", ("P", "ER0", "EH1", "N")),
    ("longestword", ("L", "AO1", "NG", "G", "AH0", "S", "T", "W", "ER2", "D")),
]  # fmt: skip


@pytest.fixture
def dictionary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pronunciation, "entries", lambda name: tuple(ENTRIES))


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UNFORCED_DATA", str(tmp_path))
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.encode()))


def test_fractions_are_fixed_and_uniform() -> None:
    assert fraction("word", 0) == pytest.approx(0.628878, abs=1e-6)  # on every machine, in every release
    places = [fraction(str(i)) for i in range(20_000)]
    assert min(places) >= 0
    assert max(places) < 1
    for tenth in range(10):
        share = sum(tenth / 10 <= place < (tenth + 1) / 10 for place in places) / len(places)
        assert share == pytest.approx(0.1, abs=0.01)


@pytest.mark.usefixtures("dictionary")
def test_g2p_splits_by_word_disjointly_and_completely() -> None:
    parts = {split: G2P().read(split) for split in SPLITS}
    words = {split: [e.source for e in parts[split]] for split in SPLITS}
    together = [word for split in SPLITS for word in words[split]]
    distinct = {word for word, _ in ENTRIES}
    assert len(together) == len(set(together))
    assert set(together) == distinct - {"3-d", ")paren"}
    assert len(words["train"]) == pytest.approx(0.9 * len(together), rel=0.05)
    for part in parts.values():
        assert len(part) + sum(part.dropped.values()) == len(distinct)
        assert part.dropped["not a word of letters"] == 2


@pytest.mark.usefixtures("dictionary")
def test_g2p_groups_pronunciations() -> None:
    def read(**options: object) -> list[Example]:
        task = G2P(**options)  # type: ignore[arg-type]
        return [e for split in SPLITS for e in task.read(split) if e.source == "read"]

    assert read() == [Example("read", "R EH D", ("R EH D", "R IY D"))]
    answers = ("R EH1 D", "R IY1 D", "R IY0 D")
    assert read(stress=True) == [Example("read", "R EH1 D", answers)]
    seed = next(seed for seed in range(100) if pronunciation.split_of(fraction("read", seed)) == "train")
    everything = read(stress=True, all_pronunciations=True, seed=seed)
    assert everything == [Example("read", answer, answers) for answer in answers]
    seed = next(seed for seed in range(100) if pronunciation.split_of(fraction("read", seed)) == "test")
    assert len(read(all_pronunciations=True, seed=seed)) == 1


@pytest.mark.usefixtures("dictionary")
def test_g2p_limits_take_the_same_first_words() -> None:
    full, part = G2P().read("train"), G2P(train_limit=50, max_letters=3).read("train")
    assert len(part) == 50
    assert part == [e for e in full if len(e.source) <= 3][:50]
    assert len(part) + sum(part.dropped.values()) == len({word for word, _ in ENTRIES})
    with pytest.raises(InputError, match="dev_limit"):
        G2P(dev_limit=0)


@pytest.mark.usefixtures("dictionary")
def test_g2p_codec_and_metrics() -> None:
    task = G2P()
    assert isinstance(task, Task)
    train = task.read("train")
    codec = task.fit(train)
    assert isinstance(codec, Codec)
    assert codec.encode(Example("ABC", None)).source.tolist() == codec.encode(Example("abc", None)).source.tolist()
    for example in train:
        assert codec.decode(codec.encode(example).target[:-1]) == example.target
    phoneme_error, word_error = task.metrics()
    outputs, answers = ["R IY D", "R IH"], [("R EH D", "R IY D"), ("R EH D",)]
    assert phoneme_error.score(phoneme_error.statistics(outputs, answers).sum(axis=0)) == pytest.approx(200 / 6)
    assert word_error.score(word_error.statistics(outputs, answers).sum(axis=0)) == 50


def test_staged_dictionary(data: Path) -> None:
    path = data / "cmudict_0.7b" / "cmudict-0.7b.tsv.gz"
    write(path, "A\tAH0\nA(1)\tEY1\n(PAREN\tP ER0 EH1 N\n")
    assert pronunciation.entries("0.7b") == (("a", ("AH0",)), ("a", ("EY1",)), ("(paren", ("P", "ER0", "EH1", "N")))


@pytest.mark.usefixtures("dictionary")
def test_phonemes_split_entries_completely() -> None:
    parts = {split: Phonemes().read(split) for split in SPLITS}
    strings = sorted(e.target for part in parts.values() for e in part)
    short = [p for _, p in ENTRIES if len(p) <= 6]
    assert strings == sorted(" ".join(pronunciation.without_stress(p)) for p in short)
    for part in parts.values():
        assert len(part) + sum(part.dropped.values()) == len(ENTRIES)
    assert len(parts["test"]) == pytest.approx(0.1 * len(short), rel=0.3)
    assert [metric.name for metric in Phonemes().metrics()] == ["sequence_nll"]


@pytest.mark.usefixtures("dictionary")
def test_phonemes_that_are_skipped_are_those_of_a_limit() -> None:
    whole, few, others = (
        Phonemes(**options).read("train") for options in ({}, {"train_limit": 20}, {"train_skip": 20})
    )
    assert [*few, *others] == list(whole)
    assert others.dropped == {**whole.dropped, "skipped": 20}
    assert Phonemes(train_skip=20).read("test") == Phonemes().read("test")
    with pytest.raises(InputError, match="no usable example for train"):
        Phonemes(train_skip=10**6).read("train")


@pytest.mark.usefixtures("dictionary")
def test_distinct_phonemes_are_disjoint() -> None:
    strings = [e.target for split in SPLITS for e in Phonemes(distinct=True, dev_share=0.2).read(split)]
    assert len(strings) == len(set(strings))
    codec = Phonemes().fit(Phonemes().read("train"))
    assert codec.sizes.source is None
    assert codec.sizes.target == 39 + 3  # padding, start and end; no token stands for unknown ones
    with pytest.raises(InputError, match="'XX' is not in the vocabulary"):
        codec.encode(Example(None, "AH XX"))


def test_translation_directions_variants_and_tests(data: Path) -> None:
    folder = data / "multi30k_deen"
    for part in ("train", "val", "test_2016_flickr", "test_2017_flickr"):
        for variant in ("raw", "tok"):
            write(folder / f"{part}.{variant}.tsv.gz", f"Hund {part} {variant}\tdog {part} {variant}\n\n" * 2)
    assert Translation().read("dev") == [Example("Hund val raw", "dog val raw")] * 2
    assert Translation().read("dev").dropped == {"blank line": 2}
    english = Translation(direction="en-de", variant="tok", test_set="2017")
    assert english.read("test")[0] == Example("dog test_2017_flickr tok", "Hund test_2017_flickr tok")
    assert "tok:13a" in Translation().metrics()[0].signature()
    assert "tok:none" in english.metrics()[0].signature()
    codec = Translation(target_size=300).fit(Translation().read("train"))
    assert codec.source is codec.target
    assert codec.decode(codec.encode(Example("Hund", "Ein völlig neuer Satz!")).target[:-1]) == "Ein völlig neuer Satz!"


def dialogue_line(history: object, response: str) -> str:
    record = {"id": "x", "turn": 0, "history": history, "response": response, "response_delex": "[slot] ok"}
    return json.dumps(record) + "\n"


def test_dialogue(data: Path) -> None:
    path = data / "multiwoz_small" / "train.jsonl.gz"
    write(path, dialogue_line(["U: Hi", "S: Hello", "U: A train ?"], "Sure .") + dialogue_line(["U: Bye"], " "))
    assert Dialogue(history=2).read("train") == [
        Example("s: hello u: a train ?", "[slot] ok"),
        Example("u: bye", "[slot] ok"),
    ]
    written = Dialogue(response="written", lowercase=False).read("train")
    assert written == [Example("U: Hi S: Hello U: A train ?", "Sure .")]
    assert written.dropped == {"empty target": 1}
    with pytest.raises(InputError, match="history must be at least 1"):
        Dialogue(history=0)


def test_summarization(data: Path) -> None:
    record = {"id": "x", "year": 2020, "title": "A Title", "abstract": "one two three four"}
    write(data / "acl_title_abstract" / "dev.jsonl.gz", json.dumps(record) + "\n")
    task = Summarization(cut_source=2, target_size=300)
    examples = task.read("dev")
    assert examples == [Example("one two three four", "A Title")]
    codec = task.fit(examples)
    assert codec.source is not None
    assert codec.source.decode(codec.encode(examples[0]).source[:-1]) == "one two"
    assert [metric.name for metric in task.metrics()] == ["rouge_l", "rouge_1", "rouge_2"]


def test_several_g2p_references_are_encoded() -> None:
    codec = G2P().fit([Example("read", "R IY D"), Example("red", "R EH D")])
    assert codec.encode(Example("red", "R EH D", ("R EH D",))).references == ()
    both = codec.encode(Example("read", "R IY D", ("R IY D", "R EH D")))
    assert [codec.token_names()[id] for id in both.references] == sorted(
        {"R", "IY", "D", "EH"}, key=codec.token_names().index
    )
