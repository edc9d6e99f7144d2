"""Images as pixel sequences: splits, quantisation, codec, metrics and what is refused."""

import json
import os
import sys
from dataclasses import replace

import numpy as np
import pytest

from unforced.errors import InputError
from unforced.protocols import Codec, Task
from unforced.tasks.codecs import PixelCodec
from unforced.tasks.images import Images
from unforced.types import Example


def write(path, **changes):
    """A small ``.npz`` of 4×4 grey images: class 0 is dark, class 1 bright."""
    rng = np.random.default_rng(0)
    arrays = {}
    for split, n in (("train", 40), ("test", 10)):
        labels = np.arange(n) % 2
        arrays[f"x_{split}"] = (rng.integers(0, 100, (n, 4, 4)) + 150 * labels[:, None, None]).astype(np.uint8)
        arrays[f"y_{split}"] = labels
    arrays.update(changes)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return str(path)


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("images") / "own.npz")
    return Images(path=path, conditional=True, side=2, levels=4)


def test_digits_are_split_evenly_by_class_without_overlap():
    task = Images(conditional=True)
    parts = {split: task.read(split) for split in ("train", "dev", "test")}
    assert isinstance(task, Task)
    assert [len(part) for part in parts.values()] == [1266, 178, 353]
    for part in parts.values():
        share = np.bincount([example.source for example in part], minlength=10) / len(part)
        assert share.min() > 0.08
        assert share.max() < 0.12
    seen = [{example.target.tobytes() for example in part} for part in parts.values()]
    assert len(set.union(*seen)) == sum(map(len, seen)) == 1797


def test_digits_have_seventeen_levels_and_no_end():
    task = Images(train_limit=50)
    train = task.read("train")
    codec = task.fit(train)
    batch = codec.collate([codec.encode(example) for example in train[:3]], [5, 6, 7])
    assert isinstance(codec, Codec)
    assert codec.sizes == (19, None, None, None)
    assert batch.symbols == (18, 17, None, (17, 18))
    assert batch.gold.shape == (3, 64)
    assert batch.length.tolist() == [64] * 3
    assert batch.source is None
    assert batch.ids.tolist() == [5, 6, 7]
    assert train.dropped == {"beyond the limit": 1216}


def test_images_of_the_user_are_shrunk_and_quantised(own):
    raw = np.load(own.path)["x_test"][3].astype(float)
    blocks = raw.reshape(2, 2, 2, 2).mean(axis=(1, 3))
    assert (own.read("test")[3].target == np.floor(blocks * 4 / 256)).all()


def test_images_of_the_user_hold_out_a_tenth_for_development(own, tmp_path):
    assert [len(own.read(split)) for split in ("train", "dev", "test")] == [36, 4, 10]
    path = write(tmp_path / "b.npz", x_dev=np.zeros((6, 4, 4), np.uint8), y_dev=np.zeros(6, int))
    given = Images(path=path)
    assert [len(given.read(split)) for split in ("train", "dev", "test")] == [40, 6, 10]


def test_colours_of_a_pixel_are_adjacent():
    codec = PixelCodec((2, 2, 3), levels=16)
    image = np.arange(12).reshape(2, 2, 3)
    encoded = codec.encode(Example(None, image))
    assert encoded.target == list(range(12))
    assert (codec.decode(encoded.target) == image).all()
    assert codec.decode(encoded.target).shape == (2, 2, 3)


def test_codec_round_trip(own):
    train = own.read("train")
    codec = own.fit(train)
    batch = codec.collate([codec.encode(example) for example in train[:5]], range(5))
    assert batch.source.tolist() == [0, 1, 0, 1, 0]
    for row, example in zip(batch.gold.tolist(), train):
        assert (codec.decode(row) == example.target).all()
    again = own.codec(json.loads(json.dumps(codec.to_json())))
    assert again == codec
    assert again.sizes.classes == 2
    assert json.loads(codec.show(train[0].target)) == train[0].target.tolist()


def test_metrics_tell_real_images_from_one_repeated_image(own):
    real = [example.target for example in own.read("train")]
    answers = [example.answers for example in own.read("test")]
    distance, score = own.metrics()
    for metric, better in ((distance, np.less), (score, np.greater)):
        good = metric.score(metric.statistics(real[:10], answers).sum(axis=0))
        bad = metric.score(metric.statistics([real[0]] * 10, answers).sum(axis=0))
        assert better(good, bad)
    assert "trained on 36 images" in distance.signature()


def test_the_judge_is_the_same_whatever_the_model_is_trained_on(own):
    other = replace(own, conditional=False, train_limit=5, test_limit=3)
    assert [m.signature() for m in own.metrics()] == [m.signature() for m in other.metrics()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((40, 4, 4))}, "must be uint8"),
        ({"y_train": np.zeros(39, int)}, r"y_train \[N\], got uint8 \[40, 4, 4\] and \[39\]"),
    ],
)
def test_invalid_files(tmp_path, changes, message):
    with pytest.raises(InputError, match=message):
        Images(path=write(tmp_path / "bad.npz", **changes)).read("train")


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(InputError, match=r"needs? the package scikit-learn: pip install 'unforced\[digits\]'"):
        Images().read("train")


def test_wrong_options_are_refused():
    with pytest.raises(InputError, match="cannot be shrunk to 3×3"):
        Images(side=3).read("train")
    with pytest.raises(InputError, match="at most 17"):
        Images(levels=18).read("train")


@pytest.mark.slow
@pytest.mark.skipif("UNFORCED_DATA" not in os.environ, reason="needs data sets under UNFORCED_DATA")
@pytest.mark.parametrize(
    ("task", "sizes", "shape", "accuracy"),
    [
        (Images(dataset="mnist", side=14, levels=4), (55000, 500, 2000), (14, 14), 0.95),
        (Images(dataset="cifar10", levels=16), (18000, 500, 2000), (8, 8, 3), 0.35),
        (Images(), (1266, 178, 353), (8, 8), 0.93),
    ],
    ids=["mnist", "cifar10", "digits"],
)
def test_staged_images_and_their_classifiers(task, sizes, shape, accuracy):
    from unforced.metrics.images import Classifier

    assert tuple(len(task.read(split)) for split in ("train", "dev", "test")) == sizes
    assert task.read("test")[0].target.shape == shape
    train, test = task.arrays("train"), task.arrays("test")
    classifier = Classifier.fit("judge", train.images, train.labels, levels=train.levels, classes=10)
    assert classifier.accuracy(test.images, test.labels) > accuracy
