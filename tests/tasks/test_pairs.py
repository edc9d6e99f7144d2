"""A user's own pairs and plain text: file forms, hold-out, what is dropped, codecs, and options that are refused."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

import unforced
from unforced.errors import InputError
from unforced.protocols import Codec, FittedTask, Task
from unforced.recipes.fields import build, to_mapping
from unforced.tasks.codecs import PairCodec
from unforced.tasks.language import Language
from unforced.tasks.pairs import Pairs
from unforced.types import Example

FIXTURES = Path(__file__).parent.parent / "fixtures"
TSV = str(FIXTURES / "text_pairs.tsv")
PLAIN = str(FIXTURES / "text_plain.txt")
SPLITS = ("train", "dev", "test")


def forms(tmp_path: Path) -> dict[str, Pairs]:
    packed = tmp_path / "pairs.tsv.gz"
    packed.write_bytes(gzip.compress(Path(TSV).read_bytes()))
    return {
        "tsv": Pairs(train=TSV),
        "gz": Pairs(train=str(packed)),
        "jsonl": Pairs(train=str(FIXTURES / "text_pairs.jsonl")),
        "parallel": Pairs(train=str(FIXTURES / "text_pairs.de"), train_target=str(FIXTURES / "text_pairs.en")),
    }


def test_all_file_forms_give_the_same_examples(tmp_path: Path) -> None:
    tasks = forms(tmp_path)
    for split in SPLITS:
        expected = tasks["tsv"].read(split)
        for task in tasks.values():
            assert task.read(split) == expected
            assert task.read(split).dropped == expected.dropped


def test_hold_out_is_disjoint_complete_and_keeps_equal_sources_together(tmp_path: Path) -> None:
    rows = [f"source {i % 40}\ttarget {i}" for i in range(100)]
    path = tmp_path / "a.tsv"
    path.write_text("\n".join(rows) + "\n")
    task = Pairs(train=str(path), hold_out=0.1)
    parts = {split: task.read(split) for split in SPLITS}
    sources = {split: {e.source for e in parts[split]} for split in SPLITS}
    assert [len(sources[split]) for split in SPLITS] == [32, 4, 4]
    assert sum(len(part) for part in parts.values()) == 100
    assert not sources["train"] & (sources["dev"] | sources["test"])
    assert not sources["dev"] & sources["test"]
    for part in parts.values():
        assert len(part) + sum(part.dropped.values()) == 100
    path.write_text("\n".join(reversed(rows)) + "\n")  # the order of the file changes no membership
    assert {e.source for e in task.read("dev")} == sources["dev"]


def test_given_files_are_used_and_only_the_missing_part_is_held_out() -> None:
    task = Pairs(train=TSV, dev=TSV)
    assert len(task.read("dev")) == 42
    assert len(task.read("test")) == 2
    assert len(task.read("train")) == 40
    assert len(Pairs(train=TSV, dev=TSV, test=TSV).read("train")) == 42


def test_dropped_examples_are_counted_with_reasons(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a b\tc\n\n\tc\na\t\na b c\tc\na\tb c d e\nA\tB\n")
    task = Pairs(train=str(path), dev=str(path), test=str(path), longest_source=2, longest_target=3, lowercase=True)
    train = task.read("train")
    assert train == [Example("a b", "c"), Example("a", "b")]
    assert Counter(train.dropped) == Counter(
        {"blank line": 1, "empty source": 1, "empty target": 1, "source too long": 1, "target too long": 1}
    )
    dev = task.read("dev")  # lengths limit training alone
    assert len(dev) == 4
    limited = Pairs(train=TSV, train_limit=5, dev_limit=1).read("train")
    assert len(limited) + sum(limited.dropped.values()) == 42
    assert limited.dropped["beyond the limit"] == 33


BAD = [
    ("empty.tsv", "", r"empty\.tsv has only 0 different examples"),
    ("keys.jsonl", '{"source": "a"}\n', r"keys\.jsonl:1: must be a JSON object with the key 'target'"),
    ("type.jsonl", '{"source": "a", "target": 3}\n', r"type\.jsonl:1: 'target' must be a string or a list of strings"),
    ("empty.jsonl", '{"source": "a", "target": []}\n', r"empty\.jsonl:1: 'target' must be a string or a list"),
    (
        "chat.jsonl",
        '{"messages": [{"role": "user"}]}\n',
        r"chat\.jsonl:1: messages\[0\] must have a role and a content",
    ),
    ("three.tsv", "a\tb\tc\n", r"three\.tsv:1: .*got 3 \(task\.references is the number of further ones\)"),
    ("text.de", "a\n", "whose targets train_target names"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD, ids=[row[0] for row in BAD])
def test_bad_files(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(InputError, match=message):
        Pairs(train=str(path)).read("train")


def test_a_file_without_a_usable_example(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("a\t\n\tb\n")
    task = Pairs(train=TSV, dev=str(path), test=str(tmp_path / "none.tsv"))
    with pytest.raises(InputError, match=r"no usable example for dev \(empty target: 1, empty source: 1\)"):
        task.read("dev")
    with pytest.raises(InputError, match=r"none\.tsv: there is no such file"):
        task.read("test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dev_target": "x"}, "dev_target needs dev"),
        ({"joint": True, "source_tokens": "words"}, "joint needs the same"),
        ({"source_tokens": "pattern"}, "set both or none"),
        ({"pattern": "."}, "set both or none"),
        ({"target_tokens": "pattern", "pattern": "("}, "pattern is not a regular expression"),
        ({"joint": True, "source_size": 5}, "joint vocabulary"),
    ],
)
def test_options_that_make_no_sense(options: dict, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Pairs(train=TSV, **options)


OPTIONS = [
    {},
    {"source_tokens": "words", "target_tokens": "pattern", "pattern": r"\w+|."},
    {"source_tokens": "characters", "target_tokens": "characters"},
    {"source_tokens": "bpe", "target_tokens": "bpe", "target_size": 300, "joint": True},
    {"source_tokens": "characters", "target_tokens": "bpe", "target_size": 300, "lowercase": True},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_codecs_survive_json_and_give_targets_back(options: dict) -> None:
    task = Pairs(train=TSV, **options)
    assert isinstance(task, Task)
    train = task.read("train")
    codec = task.fit(train)
    assert isinstance(codec, Codec)
    again = task.codec(json.loads(json.dumps(codec.to_json())))
    assert (again.source is again.target) == task.joint
    assert again.sizes == codec.sizes
    for example in [*train, *task.read("dev")]:
        encoded, other = codec.encode(example), again.encode(example)
        assert encoded.source.tolist() == other.source.tolist()
        assert encoded.target == other.target
        assert encoded.source[-1] == encoded.target[-1] == codec.symbols.eos
        assert max(encoded.source) < codec.sizes.source
    for example in train:
        ids = codec.encode(example).target[:-1]
        if task.min_count == 1:
            assert codec.decode(ids) == example.target
    assert codec.encode(Example("x", None)).target == []
    batch = FittedTask(task, codec).batch(train[:3], device="cpu")
    assert len(batch) == 3


def test_long_sources_are_cut_when_encoded() -> None:
    train = [Example("a b c d", "x")]
    words = Pairs(train=TSV, cut_source=2).fit(train)
    assert words.source is not None
    assert words.source.decode(words.encode(train[0]).source[:-1]) == "a b"
    characters = Pairs(train=TSV, cut_source=3, source_tokens="characters").fit(train)
    assert characters.source is not None
    assert characters.source.decode(characters.encode(train[0]).source[:-1]) == "a b"
    assert PairCodec.from_json(words.to_json()).cut_source == 2


def test_measures_make_metrics_in_their_order() -> None:
    task = Pairs(
        train=TSV,
        measures=("exact", "error_rate", "rouge", "bleu", "chrf"),
        source_tokens="characters",
        target_tokens="characters",
    )
    names = [metric.name for metric in task.metrics()]
    assert names == ["exact_error", "error_rate", "rouge_l", "rouge_1", "rouge_2", "bleu", "chrf"]
    rate = task.metrics()[1]
    assert rate.score(rate.statistics(["ab"], [["ac"]]).sum(axis=0)) == 50


def read_all(path: Path, **options: object) -> list[Example]:
    """The examples of a file, as those of a development split."""
    name = str(path)
    return Pairs(train=name, dev=name, test=name, **options).read("dev")  # type: ignore[arg-type]


def test_several_references(tmp_path: Path) -> None:
    """In training each is an example; metrics compare with all of them."""
    records = tmp_path / "a.jsonl"
    records.write_text('{"source": "a", "target": ["b", "c", "b", ""]}\n{"source": "d", "target": "e"}\n')
    columns = tmp_path / "a.tsv"
    columns.write_text("a\tb\tc\nd\te\t\n")
    listed = (("a", "b", "c"), ("d", "e"))
    tasks = [
        Pairs(train=str(records), dev=str(records), test=str(records)),
        Pairs(train=str(columns), dev=str(columns), test=str(columns), references=1),
        Pairs(train=listed, dev=listed, test=listed),
    ]
    for task in tasks:
        first, second = task.read("dev")
        assert first == Example("a", "b", ("b", "c"))
        assert second == Example("d", "e")
        assert list(task.read("train")) == [first, Example("a", "c", ("b", "c")), second]
    codec = tasks[0].fit(tasks[0].read("train"))
    assert {codec.token_names()[i] for i in codec.encode(first).references} >= {"b", "c"}
    bleu = tasks[0].metrics()[0]
    assert (bleu.statistics(["c"], [first.answers]) == bleu.statistics(["b"], [first.answers])).all()


def test_turns_and_chats(tmp_path: Path) -> None:
    turns = tmp_path / "turns.jsonl"
    turns.write_text('{"source": ["Hi", "Hello"], "target": "A room?"}\n')
    assert read_all(turns) == [Example("Hi <turn> Hello", "A room?")]
    messages = [
        ("system", "Be kind."),
        ("user", "Hi"),
        ("assistant", "Hello"),
        ("user", "A room?"),
        ("assistant", "Yes"),
    ]
    chat = [{"role": role, "content": content} for role, content in messages]
    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": chat}) + "\n")
    assert read_all(path) == [
        Example("system: Be kind. user: Hi", "Hello"),
        Example("system: Be kind. user: Hi <turn> assistant: Hello <turn> user: A room?", "Yes"),
    ]


def test_turns_of_a_dialogue_are_held_out_together(tmp_path: Path) -> None:
    path = tmp_path / "chats.jsonl"
    chats = [[{"role": "user", "content": f"{i}"}, {"role": "assistant", "content": "a"}] * 3 for i in range(30)]
    path.write_text("".join(json.dumps({"messages": chat}) + "\n" for chat in chats))
    parts = [Pairs(train=str(path), hold_out=0.2).read(split) for split in SPLITS]  # type: ignore[arg-type]
    first = [{example.source.split(" <turn> ")[0] for example in part} for part in parts]
    assert [len(part) for part in parts] == [54, 18, 18]
    assert sum(map(len, first)) == len(set.union(*first)) == 30


def test_smiles_are_cut_by_a_pattern(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("CCBr\tCC=O\nCCl\tC=O\nCBr\tCO\n")
    options = {"source_tokens": "pattern", "target_tokens": "pattern", "pattern": "Br|Cl|[A-Z]|=", "longest_source": 3}
    task = Pairs(train=str(path), dev=str(path), test=str(path), cut_source=2, **options)  # type: ignore[arg-type]
    train = task.read("train")
    assert train.dropped == {"source too long": 1}
    codec = task.fit(train)
    assert codec.source is not None
    assert set(codec.source.vocabulary.data) == {"C", "Br", "Cl"}
    assert codec.source.vocabulary.decode(codec.encode(Example("CCBrC", None)).source) == ["C", "C", "<eos>"]
    assert codec.decode(codec.encode(train[0]).target[:-1]) == "C=O"
    with pytest.raises(InputError, match="does not match all of 'Cx'"):
        codec.encode(Example("Cx", None))


def test_lists_in_place_of_files() -> None:
    rows = [(f"{i}", f"{i} {i}") for i in range(20)]
    task = unforced.task("pairs", train=rows, test=rows[:2], hold_out=0.1)
    assert [len(task.read(split)) for split in ("train", "dev", "test")] == [18, 2, 2]
    assert build(Pairs, to_mapping(task)) == task
    assert len(unforced.batch(task, rows[:3])) == 3
    lines = unforced.task("language", train=[f"line {i}" for i in range(20)])
    assert len(lines.read("dev")) == 1
    words = [(["Anna", "sleeps"], ["B-PER", "O"]), ("Otto sleeps", "B-PER O")]
    tags = unforced.task("tagging", train=words, dev=words, test=words)
    assert [example.source for example in tags.read("dev")] == [("Anna", "sleeps"), ("Otto", "sleeps")]
    assert [metric.name for metric in tags.metrics()] == ["f1"]
    for name, wrong in (("pairs", ["ab"]), ("tagging", [("a", "b", "c")])):
        with pytest.raises(InputError, match=r"task\.train\[0\] must be"):
            unforced.task(name, train=wrong, dev=wrong, test=wrong).read("train")
    with pytest.raises(InputError, match=r"task\.train has only 1 different examples"):
        unforced.task("pairs", train=[("a", "b")]).read("train")


def test_language_lines_and_hold_out_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join(f"line {i}\n\n" for i in range(20)))
    task = Language(train=str(path), hold_out=0.1)
    parts = {split: [e.target for e in task.read(split)] for split in SPLITS}
    assert parts["train"] + parts["dev"] + parts["test"] == [f"line {i}" for i in range(20)]
    assert [len(parts[split]) for split in SPLITS] == [16, 2, 2]
    assert task.read("dev").dropped == {"blank line": 20, "in another split": 18}
    assert [metric.name for metric in task.metrics()] == ["perplexity"]
    short = Language(train=str(path), dev=str(path), test=str(path), longest=1, tokens="words")
    with pytest.raises(InputError, match="no usable example for train"):
        short.read("train")


@pytest.mark.parametrize(("tokens", "glue"), [("words", " "), ("bpe", " "), ("characters", "")])
def test_language_blocks_keep_all_the_text_in_order(tokens: str, glue: str) -> None:
    task = Language(train=PLAIN, dev=PLAIN, test=PLAIN, block=7, tokens=tokens)  # type: ignore[arg-type]
    blocks = [e.target for e in task.read("train")]
    length = len if tokens == "characters" else lambda text: len(text.split())
    assert {length(block) for block in blocks[:-1]} == {7}
    assert length(blocks[-1]) <= 7
    assert glue.join(blocks) == " ".join(Path(PLAIN).read_text().split())


def test_language_codec_has_no_source() -> None:
    task = Language(train=PLAIN, tokens="characters", lowercase=True)
    assert isinstance(task, Task)
    train = task.read("train")
    codec = task.codec(json.loads(json.dumps(task.fit(train).to_json())))
    encoded = codec.encode(train[0])
    assert encoded.source is None
    assert codec.sizes.source is None
    assert codec.decode(encoded.target[:-1]) == train[0].target
    assert codec.collate([encoded], [0]).source is None
    assert codec.parse("\n") is None
    with pytest.raises(InputError, match="reads no input"):
        codec.parse("hello")
    assert codec.show(None) == ""
