"""``unforced score``: sentences in, energies and pseudo-log-likelihoods out."""

import shutil
from pathlib import Path

import pytest
import torch
from masked_folders import SENTENCES, VOCABULARY, all_folders, feed, json_lines, write_run

from unforced import api
from unforced.chains.readers import open_model, words_of
from unforced.cli import main
from unforced.energy import energies
from unforced.energy.pseudo_log_likelihood import token_scores
from unforced.errors import InputError
from unforced.tasks.tokenization import TextCoder
from unforced.training.evaluation import gold_likelihoods
from unforced.training.loading import load
from unforced.types import Example


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return all_folders(tmp_path_factory.getbasetemp())


LINES = {
    "masked-words": ["a cat sleeps", "the old dog sees a cat", "dog"],
    "masked-bpe": ["a cat sleeps", "sleepless dogs", "the"],
    "field-0.4": ["abca", "cccc", "aaaa"],
    "conditional": ["ab\tc d", "bbb\td", "a\tc c d d"],
    "bert": ["the cat sleeps .", "unforced dogs", "dog"],
}


# the letters of palindromes form no words
CASES = [(name, later) for name in LINES for later in (False, True) if not (later and name == "field-0.4")]


@pytest.mark.parametrize(("name", "later"), CASES)
def test_lines_are_scored_like_single_sentences(name: str, later: bool, root: Path, monkeypatch, capsys) -> None:
    reader = open_model(root / name)
    feed(monkeypatch, "\n".join(LINES[name]) + "\n")
    assert main(["score", str(root / name), "--json", "--batch", "2", *(["--whole-words"] if later else [])]) == 0
    found = json_lines(capsys.readouterr().out)
    assert [row["sentence"] for row in found] == [line.split("\t")[-1] for line in LINES[name]]
    for line, row in zip(LINES[name], found):
        sentence = reader.read(line)
        batch = reader.collate([sentence])
        words = reader.words([sentence], batch) if later else None
        scores = token_scores(reader.model, batch, words, reader.over)
        log_probs = scores.log_probs[energies.variables(batch)].tolist()
        assert row["energy_raw"] == pytest.approx(float(scores.energy("raw")), abs=1e-4)
        assert row["energy_local"] == pytest.approx(float(scores.energy("local")), abs=1e-4)
        assert row["pseudo_log_likelihood"] == pytest.approx(sum(log_probs), abs=1e-4)
        assert [score for _, score in row["tokens"]] == pytest.approx(log_probs, abs=1e-4)
        if name != "bert" and not later:
            assert row["pseudo_log_likelihood"] == -row["energy_local"]


def test_whole_words_need_words(root: Path, monkeypatch, capsys) -> None:
    feed(monkeypatch, "abca\n")
    assert main(["score", str(root / "field-0.4"), "--whole-words"]) == 2
    assert "does not know which tokens form a word" in capsys.readouterr().err


def test_output_columns(root: Path, monkeypatch, capsys) -> None:
    expected = api.score(root / "bert", ["the cat", "dogs"])
    feed(monkeypatch, b"the cat\r\ndogs")
    assert main(["score", str(root / "bert")]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [row[3:] for row in rows] == [["2", "the cat"], ["2", "dogs"]]
    for row, score in zip(rows, expected):
        values = (score.energy_raw, score.energy_local, score.pseudo_log_likelihood)
        assert [float(cell) for cell in row[:3]] == pytest.approx(values, abs=1e-3)
    assert [name for name, _ in expected[1].tokens] == ["dog", "##s"]
    for kind, column in (("raw", 0), ("local", 1)):
        feed(monkeypatch, "the cat\n")
        assert main(["score", str(root / "bert"), "--energy", kind]) == 0
        cells = capsys.readouterr().out.rstrip("\n").split("\t")
        assert cells == [rows[0][column], *rows[0][2:]]


def test_scores_equal_a_plain_loop_over_transformers(root: Path) -> None:
    """The oracle calls the model of transformers directly, without the wrapper."""
    tf = pytest.importorskip("transformers")
    network = tf.AutoModelForMaskedLM.from_pretrained(root / "bert").eval()
    ids = [2, 5, 6, 8, 9, 3]  # [CLS] the cat sleep ##s [SEP]
    allowed = [i for i in range(len(VOCABULARY)) if i > 4]
    raw = local = likelihood = 0.0
    for t in range(1, 5):
        hidden = torch.tensor([[*ids[:t], 4, *ids[t + 1 :]]])
        with torch.no_grad():
            scores = network(input_ids=hidden).logits[0, t].double()
        raw -= float(scores[ids[t]])
        local -= float(scores[ids[t]] - scores[allowed].logsumexp(0))
        likelihood += float(scores.log_softmax(0)[ids[t]])
    (found,) = api.score(root / "bert", ["the cat sleeps"])
    assert found[1:4] == pytest.approx((raw, local, likelihood), abs=1e-4)


@pytest.mark.parametrize(
    ("name", "text", "message", "before"),
    [
        ("masked-words", "a cat\n\na dog\n", "standard input:2: the line is blank", 1),
        ("masked-words", "a cat\na zebra sleeps\n", "standard input:2: 'zebra' is not in the model's vocabulary", 1),
        ("masked-words", b"a cat\n\xff\n", "standard input:2: the line is not UTF-8", 1),
        ("conditional", "ab\tc d\nab c\n", "standard input:2: the line has no tab", 1),
        ("bert", "the zebra sleeps\n", "standard input:1: 'zebra' is not in the model's vocabulary", 0),
        ("bert", "the [MASK] sleeps\n", "standard input:1: the line has the special token [MASK]", 0),
        ("bert", "[SEP]\n", "standard input:1: the line has the special token [SEP]", 0),
        ("bert", "[MASK] the cat\n", "standard input:1: the line has the special token [MASK]", 0),
        ("bert", "the " * 40 + "\n", "standard input:1: the line has 42 tokens, but the model accepts at most 32", 0),
    ],
)  # fmt: skip
def test_invalid_lines(name, text, message, before, root, monkeypatch, capsys) -> None:
    feed(monkeypatch, text)
    assert main(["score", str(root / name)]) == 2
    out, err = capsys.readouterr()
    assert message in err
    assert err.count("\n") == 1
    assert len(out.splitlines()) == before


def test_lines_that_cannot_be_scored_are_skipped(root: Path, monkeypatch, capsys) -> None:
    """There is one line of output for each line of input, so that files stay aligned."""
    text, words = "the cat\nzebra\n\ndogs\n", ["score", str(root / "bert"), "--skip", "--batch", "2"]
    feed(monkeypatch, text)
    assert main(words) == 0
    out, err = capsys.readouterr()
    rows = [line.split("\t") for line in out.splitlines()]
    assert [row[4] for row in rows] == text.splitlines()
    assert [row[0] == "" for row in rows] == [False, True, True, False]
    assert rows[1] == ["", "", "", "0", "zebra"]
    assert "lines scored: 2" in err
    assert "skipped 2 of 4 lines; standard input:2: 'zebra' is not in the model's vocabulary" in err
    feed(monkeypatch, text)
    assert main([*words, "--json", "--quiet"]) == 0
    out, err = capsys.readouterr()
    assert "scored" not in err
    found = json_lines(out)
    assert ["error" in row for row in found] == [False, True, True, False]
    assert found[2]["error"].startswith("standard input:3: the line is blank")
    feed(monkeypatch, "zebra\n\n")
    assert main(words) == 2
    assert "none of the lines could be scored; standard input:1: 'zebra'" in capsys.readouterr().err


def test_likelihoods_without_a_token_are_refused(root: Path) -> None:
    model, fitted = load(root / "masked-words")
    with pytest.raises(InputError, match="no token of the targets can be scored"):
        gold_likelihoods(model, fitted, [Example(None, "")], of="masked")


@pytest.mark.parametrize("name", LINES)
def test_batches_are_on_the_models_device(name: str, root: Path, monkeypatch) -> None:
    monkeypatch.setattr("unforced.chains.readers.fastest_device", lambda: torch.device("meta"))
    reader = open_model(root / name)
    sentences = [reader.read(line) for line in LINES[name][:2]]
    batches = [reader.collate(sentences)]
    if reader.takes_source:
        batches.append(reader.sources(["ab", "b"]))
    for batch in batches:
        tensors = [leaf for leaf in vars(batch).values() if isinstance(leaf, torch.Tensor)]
        assert all(leaf.is_meta for leaf in tensors)
    if name != "field-0.4":
        assert reader.words(sentences, batches[0]).numbers.is_meta


def test_progress_without_a_terminal(root: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("unforced.training.progress.EVERY", 0.0)
    feed(monkeypatch, "the cat\ndogs\n")
    assert main(["score", str(root / "bert")]) == 0
    assert "scored 1 of 2 lines, 0 s left" in capsys.readouterr().err


def test_folders_without_a_masked_model(root: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    tf = pytest.importorskip("transformers")
    text = tmp_path / "text.txt"
    text.write_text("\n".join(SENTENCES * 3) + "\n")
    causal = {"name": "causal", "width": 8, "heads": 2, "layers": 1, "feedforward": 12}
    write_run(tmp_path / "causal", {"name": "language", "train": str(text)}, causal)
    shutil.copytree(root / "bert", tmp_path / "gpt2")
    tf.GPT2LMHeadModel(tf.GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=15)).save_pretrained(tmp_path / "gpt2")
    shutil.copytree(root / "bert", tmp_path / "foreign")
    small = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    tf.BertForMaskedLM(tf.BertConfig(vocab_size=591, **small)).save_pretrained(tmp_path / "foreign")
    messages = {
        "foreign": "the tokenizer has only 15 tokens, but BertForMaskedLM scores 591",
        "causal": "which is not a masked model",
        "gpt2": "holds a GPT2LMHeadModel, which is not a masked model",
        "absent": "is neither a run folder nor a folder saved by transformers",
    }
    for name, message in messages.items():
        for words in (["score"], ["sample", "-o", str(tmp_path / "out"), "--length", "2"]):
            feed(monkeypatch, "the cat\n")
            assert main([*words, str(tmp_path / name)]) == 2, name
            out, err = capsys.readouterr()
            assert message in err.splitlines()[-1], name
            assert out == ""


def test_words_of() -> None:
    coder = TextCoder.learn(["low lower lowest, new newer newest"] * 3, "bpe", size=270)
    text = "lowest, newness"
    pieces = coder.segmenter.split(text)
    found = words_of(coder, text)
    assert len(found) == len(pieces) == len(coder.encode(text, eos=False))
    by_word: dict[int | None, str] = {}
    for word, piece in zip(found, pieces):
        by_word[word] = by_word.get(word, "") + piece
    assert list(by_word.values()) == ["Ġlowest", ",", "Ġnewness"]
    assert words_of(TextCoder.learn(["a b"], "words"), "a b a") == [0, 1, 2]
    assert words_of(TextCoder.learn(["a b"], "characters"), " ab  a") == [0, 1, 1, 2, 3, 4]
