"""Tagging: column files, the codec, and what is refused."""

import json
from pathlib import Path

import pytest
import torch

from unforced.errors import InputError
from unforced.protocols import Codec
from unforced.tasks.tagging import COARSE, Tagging, coarse
from unforced.types import Example

FOLDER = Path(__file__).parent.parent / "fixtures" / "tagging"
PATHS = {split: str(FOLDER / f"{split}.conll") for split in ("train", "dev", "test")}


@pytest.fixture
def entities():
    return Tagging(**PATHS, tag_column=2, comment_prefix="# text", min_count=1)


@pytest.fixture
def parts_of_speech():
    return Tagging(**PATHS, comment_prefix="# text", min_count=1)


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_the_metric_follows_the_tags(entities, parts_of_speech):
    assert [metric.name for metric in entities.metrics()] == ["f1"]
    assert [metric.name for metric in parts_of_speech.metrics()] == ["accuracy"]
    forced = Tagging(**PATHS, tag_column=2, comment_prefix="# text", metric="accuracy")
    assert [metric.name for metric in forced.metrics()] == ["accuracy"]


def test_gold_tags_score_a_hundred(entities, parts_of_speech):
    for task in (entities, parts_of_speech):
        examples = task.read("test")
        metric = task.metrics()[0]
        rows = metric.statistics([e.target for e in examples], [e.answers for e in examples])
        assert float(metric.score(rows.sum(axis=0))) == 100


def test_a_batch_has_a_tag_for_every_word_and_no_end(entities):
    train = entities.read("train")
    codec = entities.fit(train)
    batch = codec.collate([codec.encode(e) for e in train], range(3))
    assert isinstance(codec, Codec)
    assert batch.symbols.eos is None
    assert batch.length.tolist() == [6, 5, 6]
    assert batch.mask.sum(dim=1).tolist() == [6, 5, 6]
    assert torch.equal(batch.mask, batch.source_mask)
    assert batch.prefix[0, 0] == batch.symbols.bos
    assert batch.gold.max() < codec.sizes.target
    assert batch.source.max() < codec.sizes.source


def test_the_codec_round_trips_through_json(entities):
    codec = entities.fit(entities.read("train"))
    assert codec.parse(" Anna  schläft \n") == ("Anna", "schläft")
    assert codec.show(("B-PER", "O")) == "B-PER O"
    again = entities.codec(json.loads(json.dumps(codec.to_json())))
    example = entities.read("dev")[0]
    assert codec.decode(codec.encode(example).target) == example.target
    same = again.encode(example)
    assert (same.source == codec.encode(example).source).all()
    assert same.target == codec.encode(example).target
    assert (again.symbols, again.sizes, again.to_json()) == (codec.symbols, codec.sizes, codec.to_json())


def test_rare_words_are_unknown_and_case_can_be_ignored():
    task = Tagging(**PATHS, tag_column=2, comment_prefix="# text", min_count=2, lowercase=True)
    codec = task.fit(task.read("train"))
    ids = codec.encode(Example(("ANNA", "Zug", "IN"), None)).source
    anna, at = codec.words.encode(["anna", "in"], eos=False)
    assert ids.tolist() == [anna, codec.words.unk, at]
    assert "Anna" not in codec.words


def test_long_training_sentences_and_those_beyond_the_limit_are_counted():
    task = Tagging(**PATHS, tag_column=2, comment_prefix="# text", longest=5)
    assert len(task.read("train")) == 1
    assert task.read("train").dropped == {"too long": 2}
    assert len(task.read("test")) == 2
    limited = Tagging(**PATHS, tag_column=2, comment_prefix="# text", train_limit=2, test_limit=1)
    assert limited.read("train").dropped == {"beyond the limit": 1}
    assert [len(limited.read(split)) for split in ("train", "dev", "test")] == [2, 1, 1]


def test_dev_and_test_are_held_out_where_they_are_absent(tmp_path):
    lines = [line for i in range(200) for line in (f"w{i % 150}\tA", "x\tB", "")]
    task = Tagging(train=write(tmp_path / "all.tsv", *lines), hold_out=0.1)
    parts = {split: task.read(split) for split in ("train", "dev", "test")}
    assert sum(len(part) for part in parts.values()) == 200
    for part in parts.values():
        assert len(part) + sum(part.dropped.values()) == 200
    words = [{example.source for example in part} for part in parts.values()]
    assert all(words)
    assert len(set.union(*words)) == sum(map(len, words))  # equal sentences are in one part
    assert task.read("dev") == parts["dev"]


@pytest.mark.parametrize("tags", [("O", "I-PER"), ("B-PER", "I-LOC"), ("O", "NOUN")])
def test_f1_refuses_tags_that_are_not_iob2(tmp_path, tags):
    path = write(tmp_path / "a.tsv", "x\tO", "", *(f"w\t{tag}" for tag in tags))
    task = Tagging(train=path, dev=path, test=path, metric="f1")
    with pytest.raises(InputError, match=rf"a\.tsv:3: .*{tags[1]!r} at word 2 breaks IOB2"):
        task.read("dev")


def test_an_unseen_tag_is_an_error_or_an_answer_without_a_match(tmp_path):
    train = write(tmp_path / "train.tsv", "a\tX", "b\tY")
    dev = write(tmp_path / "dev.tsv", "a\tX", "b\tZ")
    strict = Tagging(train=train, dev=dev, test=dev, min_count=1)
    codec = strict.fit(strict.read("train"))
    with pytest.raises(InputError, match="the tag 'Z' of 'a b' is not in the training data"):
        codec.encode(strict.read("dev")[0])
    lenient = Tagging(train=train, dev=dev, test=dev, min_count=1, unseen_tags="wrong")
    codec = lenient.fit(lenient.read("train"))
    target = codec.encode(lenient.read("dev")[0]).target
    assert target[1] in codec.symbols.banned


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dataset": "germeval14_small", "coarse": True}, "coarse needs the dataset"),
        ({"dataset": "german_ler", "train": "t"}, "set either dataset, or"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        Tagging(**options)


def test_a_missing_file_and_an_empty_one_are_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        Tagging(train=str(tmp_path / "none.tsv")).read("train")
    with pytest.raises(InputError, match=r"task\.train is empty"):
        Tagging(train="").read("train")
    empty = write(tmp_path / "empty.tsv", "")
    with pytest.raises(InputError, match="no usable example for dev"):
        Tagging(train=empty, dev=empty, test=empty).read("dev")


def test_coarse_classes_cover_the_nineteen_fine_ones():
    assert len(COARSE) == 19
    assert len(set(COARSE.values())) == 7
    assert coarse("I-EUN") == "I-NRM"
    with pytest.raises(InputError, match="B-XYZ"):
        coarse("B-XYZ")
