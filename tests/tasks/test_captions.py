"""Captioning: pictures and captions of the user, the codec, and refused input."""

import json
import os

import numpy as np
import pytest
import torch

from unforced.errors import InputError
from unforced.protocols import Codec, Task
from unforced.tasks.captions import Captions
from unforced.types import Example

RECORDS = [
    {"split": "train", "caption": "A red square"},
    {"split": "train", "caption": ["a Blue square", "a square: blue"]},
    {"split": "dev", "caption": "a red circle"},
    {"split": "test", "caption": ["a blue circle", "blue circle"]},
]


def write(folder, records=RECORDS, pixels=None):
    """Pictures 4×6 of one colour each, and their captions."""
    if pixels is None:
        colours = np.array([[255, 0, 0], [0, 0, 255], [255, 0, 0], [0, 0, 255]], dtype=np.uint8)
        pixels = np.broadcast_to(colours[:, None, None], (4, 4, 6, 3))
    np.savez(folder / "x.npz", x=pixels)
    lines = "".join(json.dumps(record) + "\n" for record in records)
    (folder / "captions.jsonl").write_text(lines)
    return {"images": str(folder / "x.npz"), "captions": str(folder / "captions.jsonl")}


@pytest.fixture
def task(tmp_path):
    return Captions(**write(tmp_path))


def test_training_has_an_example_a_caption_and_other_splits_one_a_picture(task):
    assert isinstance(task, Task)
    assert [e.target for e in task.read("train")] == ["a red square", "a blue square", "a square : blue"]
    assert task.read("test")[0].answers == ("a blue circle", "blue circle")
    assert task.read("train").dropped == {"in another split": 2}


def test_all_captions_of_a_picture_are_its_references(task):
    train = task.read("train")
    assert [e.references for e in train] == [
        ("a red square",),
        ("a blue square", "a square : blue"),
        ("a blue square", "a square : blue"),
    ]
    codec = task.fit(train)
    encoded = [codec.encode(example) for example in train]
    assert encoded[0].references == ()  # nothing but the target
    words = {codec.token_names()[id] for id in encoded[1].references}
    assert words == {"a", "blue", "square", ":"}
    assert encoded[1].references == encoded[2].references
    batch = codec.collate(encoded, range(3))
    assert sorted(batch.references[0].tolist()) == sorted(encoded[0].target)


def test_codec_round_trip(task):
    train = task.read("train")
    codec = task.fit(train)
    batch = codec.collate([codec.encode(example) for example in train], range(3))
    assert isinstance(codec, Codec)
    assert codec.sizes.image == (3, 4, 6)
    assert batch.source.shape == (3, 3, 4, 6)
    assert batch.source.dtype == torch.float32
    assert batch.source[0, :, 0, 0].tolist() == [1, 0, 0]
    assert batch.source[1, :, 0, 0].tolist() == [0, 0, 1]
    assert batch.length is None
    assert (batch.gold[0, batch.mask[0]].tolist())[-1] == batch.symbols.eos
    for row, mask, example in zip(batch.gold, batch.mask, train):
        assert codec.decode(row[mask].tolist()[:-1]) == example.target
    again = task.codec(json.loads(json.dumps(codec.to_json())))
    assert (again.symbols, again.sizes, again.to_json()) == (codec.symbols, codec.sizes, codec.to_json())


def test_metrics_judge_captions(task):
    examples = task.read("train")
    outputs, answers = [e.target for e in examples], [e.answers for e in examples]
    cider, *bleus = task.metrics()
    assert [bleu.name for bleu in bleus] == ["bleu", "bleu_1"]
    for bleu in bleus:
        assert float(bleu.score(bleu.statistics(outputs, answers).sum(axis=0))) == pytest.approx(100)
    perfect = cider.score(cider.statistics(outputs, answers).sum(axis=0))
    assert perfect > cider.score(cider.statistics(outputs[::-1], answers).sum(axis=0))
    assert "tok:none" in bleu.signature()


def test_a_line_names_a_picture_file(task, tmp_path):
    from PIL import Image

    codec = task.fit(task.read("train"))
    Image.new("RGBA", (60, 40), (255, 0, 0, 0)).save(tmp_path / "clear.png")
    picture = codec.parse(f"{tmp_path}/clear.png\n")
    assert (picture, picture.pixels.shape) == ("clear.png", (4, 6, 3))
    assert (picture.pixels == 255).all()  # transparent is white
    np.save(tmp_path / "red.npy", np.array(task.read("train")[0].source.pixels))
    red = codec.parse(str(tmp_path / "red.npy"))
    assert (codec.encode(Example(red, None)).source == codec.encode(task.read("train")[0]).source).all()
    assert codec.encode(Example(red, None)).target == []
    assert codec.show(red) == "red.npy"
    assert codec.show("a red square") == "a red square"


def test_files_that_are_no_pictures(task, tmp_path):
    codec = task.fit(task.read("train"))
    (tmp_path / "text.png").write_text("not a picture")
    np.save(tmp_path / "objects.npy", np.array([object()]), allow_pickle=True)
    for line in (f"{tmp_path}/text.png", f"{tmp_path}/objects.npy"):
        with pytest.raises(InputError, match="cannot be read as a picture"):
            codec.parse(line)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"split": "valid", "caption": "a"}, r"captions\.jsonl:4: split must be"),
        ({"split": "train", "caption": []}, r"captions\.jsonl:4: caption must be"),
    ],
)
def test_bad_records_name_their_line(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        Captions(**write(tmp_path, [*RECORDS[:3], change])).read("train")


def test_numbers_of_pictures_and_captions_must_agree(tmp_path):
    with pytest.raises(InputError, match=r"has 3 captions, but .* has 4 pictures"):
        Captions(**write(tmp_path, RECORDS[:3])).read("train")
    with pytest.raises(InputError, match=r"has 5 captions, but .* has 4 pictures"):
        Captions(**write(tmp_path, [*RECORDS, RECORDS[0]])).read("train")


def test_empty_and_long_captions_are_counted_and_empty_splits_refused(tmp_path):
    records = [{"split": "train", "caption": " "}, *RECORDS[1:]]
    files = write(tmp_path, records)
    assert Captions(**files, longest=3).read("train").dropped == {
        "empty caption": 1,
        "in another split": 2,
        "too long": 1,
    }
    with pytest.raises(InputError, match="no usable example for train"):
        Captions(**files, longest=1).read("train")


def test_wrong_options_and_arrays_are_refused(tmp_path):
    with pytest.raises(InputError, match="need both files"):
        Captions(images="x.npz")
    with pytest.raises(InputError, match="x must be uint8"):
        Captions(**write(tmp_path, pixels=np.zeros((4, 2, 2, 3)))).read("train")


@pytest.mark.slow
@pytest.mark.skipif("UNFORCED_DATA" not in os.environ, reason="needs data sets under UNFORCED_DATA")
def test_emoji():
    task = Captions()
    parts = [task.read(split) for split in ("train", "dev", "test")]
    codec = task.fit(parts[0])
    assert [len(part) for part in parts] == [6136, 688, 748]
    assert codec.sizes.image == (3, 24, 24)
    names = [{str(example.source).split()[0] for example in part} for part in parts]
    assert len(set.union(*names)) == sum(map(len, names)) == 3786  # an emoji is in one split only
    metric = task.metrics()[0]
    codes = [codec.encode(example) for example in parts[0]]
    more = [set(code.references) - set(code.target) for code in codes]
    assert sum(map(bool, more)) > 0.8 * len(codes)  # tags bring other words
    assert all(example.answers == (example.target,) for example in parts[2])  # but are no answers
    perfect = metric.statistics([e.target for e in parts[2]], [e.answers for e in parts[2]])
    assert 700 < metric.score(perfect.sum(axis=0)) < 1000
