"""A recipe with ``model = "hf:path"`` trains a Hugging Face model of a local folder.

Its run folder is like any other.
"""

import io
import json
import random
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from trainer_cases import tf

import unforced
from unforced.cli import main
from unforced.errors import InputError
from unforced.huggingface.codec import TokenizerCodec
from unforced.huggingface.model_spec import HuggingFace, PretrainedFolder, TokenizedTask
from unforced.objectives.smoothing.token_roles import TokenRoles
from unforced.recipes import recipe as recipes
from unforced.types import Example

tokenizers = pytest.importorskip("tokenizers")
WORDS = ["a", "b", "c", "d", "e", "f"]
NAMES = ["<pad>", "<s>", "</s>", "<unk>", "<mask>", *WORDS, "to", ":", "Ċ"]


def tokenizer(end: bool) -> Any:
    """White-space words; ``end`` appends the end symbol to every text, as T5's tokenizer does."""
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({name: id for id, name in enumerate(NAMES)}, "<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if end:
        inner.post_processor = tokenizers.processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return tf.PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>",
        mask_token="<mask>",
    )  # fmt: skip


def saved(folder: Path, kind: str) -> Path:
    """A tiny model with its tokenizer, as ``save_pretrained`` writes them."""
    torch.manual_seed(0)
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    size = len(NAMES) + 2  # more embeddings than tokens, as many models have
    if kind == "t5":
        config = tf.T5Config(
            vocab_size=size, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, dropout_rate=0.0,
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=2,
        )  # fmt: skip
        model: Any = tf.T5ForConditionalGeneration(config)
    elif kind == "gpt2":
        config = tf.GPT2Config(
            vocab_size=size, n_embd=32, n_layer=2, n_head=2, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, **special,
        )  # fmt: skip
        model = tf.GPT2LMHeadModel(config)
    else:
        config = tf.BertConfig(
            vocab_size=size, hidden_size=32, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=64, pad_token_id=0,
        )  # fmt: skip
        model = tf.BertForMaskedLM(config)
    model.save_pretrained(folder)
    tokenizer(end=kind == "t5").save_pretrained(folder)
    return folder


RECIPE = """
name = "swap"
model = "hf:{folder}/{kind}"
[task]
name = "pairs"
train = "{folder}/train.tsv"
measures = ["exact"]
[objective]
name = "cross_entropy"
[training]
epochs = "none"
steps = {steps}
learning_rate = 0.01
validate_every = {steps}
batch_tokens = 400
[decoding.greedy]
method = "greedy"
max_length = 6
[decoding.beam]
method = "beam"
beam = 2
max_length = 6
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, data, and a run of a T5 by a recipe."""
    folder = tmp_path_factory.mktemp("hf")
    for kind in ("t5", "gpt2", "bert"):
        saved(folder / kind, kind)
    rng = random.Random(0)
    pairs = [(a, b) for a in WORDS for b in WORDS]
    rng.shuffle(pairs)
    (folder / "train.tsv").write_text("".join(f"{a} {b}\t{b} {a}\n" for a, b in pairs))
    (folder / "text.txt").write_text("".join(f"{a} {b} {a}\n" for a, b in pairs))
    for kind, steps in (("t5", 60), ("gpt2", 4)):
        (folder / f"{kind}.toml").write_text(RECIPE.format(folder=folder, kind=kind, steps=steps))
    assert main(["train", str(folder / "t5.toml"), "--run", str(folder / "run"), "--quiet"]) == 0
    return folder


@pytest.fixture
def feed(monkeypatch: pytest.MonkeyPatch):
    return lambda data: monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def test_train_evaluate_decode(place: Path, feed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = place / "run"
    assert json.loads((run / "finished.json").read_text())["steps"] == 60
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    training = [event["loss"] for event in events if event["kind"] == "train"]
    assert training[-1] < 0.7 * training[0]
    assert main(["evaluate", str(run), "--quiet"]) == 0
    scores = json.loads((run / "scores" / "test-beam.json").read_text())
    assert len(scores["metrics"]) == 1
    capsys.readouterr()
    feed(b"a b\nf e\n")
    assert main(["decode", str(run), "--method", "greedy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2
    assert all(set(line.split()) <= set(NAMES) for line in lines)
    feed(b"a b\n")
    assert main(["decode", str(run), "beam=3", "--nbest", "3"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_decoding_is_that_of_generate(place: Path) -> None:
    model, fitted = unforced.load(place / "run")
    batch = unforced.batch(model, ["a b", "c d", "e f"])
    ours = unforced.decode(model, batch, method="beam", beam=3, max_length=6).ids(batch.symbols)
    own = tokenizer(end=True)
    inputs = own(["a b", "c d", "e f"], return_tensors="pt", padding=True, return_token_type_ids=False)
    found = model.model.generate(  # type: ignore[operator, union-attr]
        **inputs, num_beams=3, max_new_tokens=6, do_sample=False, suppress_tokens=list(batch.symbols.banned)
    )
    theirs = [[id for id in row if id not in (0, 2)] for row in found[:, 1:].tolist()]
    assert ours == theirs
    assert [fitted.codec.decode(ids) for ids in ours] == own.batch_decode(found, skip_special_tokens=True)


def test_the_recipe_reads_back(place: Path) -> None:
    loaded = recipes.load(place / "t5.toml")
    assert isinstance(loaded.task, TokenizedTask)
    assert loaded.model == HuggingFace(path=str(place / "t5"))
    assert recipes.load(place / "run").single() == loaded.single()
    other = recipes.load(place / "t5.toml", [f"model=hf:{place}/gpt2"])
    assert other.model.path == str(place / "gpt2")
    plain = recipes.load(place / "t5.toml", ["model=lstm"])
    assert not isinstance(plain.task, TokenizedTask)


@pytest.mark.parametrize("objective", ["scheduled_sampling", "soft_beam"])
def test_a_causal_model_continues_its_prompt(place: Path, tmp_path: Path, objective: str) -> None:
    unforced.train(place / "gpt2.toml", f"objective={objective}", run=tmp_path / "run", quiet=True)
    scores = unforced.evaluate(tmp_path / "run", "dev", "beam", quiet=True)
    assert set(scores) == {"beam"}
    codec = unforced.load(tmp_path / "run").task.codec
    made = unforced.batch(unforced.load(tmp_path / "run").model, [("a b", "b a"), ("c", "d e f")])
    assert isinstance(codec, TokenizerCodec)
    assert made.gold.tolist() == [[6, 5, 2, 0], [8, 9, 10, 2]]
    assert made.prefix[:, 0].tolist() == [6, 7]  # the prompt's last token
    assert made.source is not None
    assert made.source.tolist() == [[5], [0]]


def test_language_models(place: Path, tmp_path: Path) -> None:
    data = recipes.read(place / "gpt2.toml")
    data["task"] = {"name": "language", "train": f"{place}/text.txt"}
    unforced.train(recipes.Recipe.from_data(data), run=tmp_path / "run", quiet=True)
    scores = unforced.evaluate(tmp_path / "run", "test", "greedy", quiet=True)
    assert scores["greedy"]["perplexity"] > 1


def test_masked_models(place: Path, tmp_path: Path, feed: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A masked model learns by a recipe, and its run folder is scored with and sampled from."""
    data = recipes.read(place / "gpt2.toml")
    data["model"] = {"name": "huggingface", "path": f"{place}/bert"}
    data["task"] = {"name": "language", "train": f"{place}/text.txt"}
    data["objective"] = {"name": "masked_lm"}
    data["training"] |= {"steps": 40, "validate_every": 40, "validate": "mask_predict"}
    data["task"] |= {"measures": ["masked_nll"]}
    data["decoding"] = {"mask_predict": {"method": "mask_predict"}}
    run = tmp_path / "run"
    unforced.train(recipes.Recipe.from_data(data), run=run, quiet=True)
    sentences = ["a b a", "c d c", "e"]
    energies = {}
    for model in (place / "bert", run):
        capsys.readouterr()
        feed("\n".join(sentences).encode())
        assert main(["score", str(model)]) == 0
        lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
        assert [line[-1] for line in lines] == sentences
        assert [int(line[-2]) for line in lines] == [3, 3, 1]
        energies[model] = [float(line[2]) for line in lines]
    assert sum(energies[run][:2]) > sum(energies[place / "bert"][:2]) + 1  # nats: it has learnt what texts are like
    assert main(["evaluate", str(run), "--quiet"]) == 0
    assert main(["sample", str(run), "-o", str(tmp_path / "chains"), "--length", "3", "--sweeps", "4", "--quiet"]) == 0
    found = [json.loads(line) for line in (tmp_path / "chains" / "samples.jsonl").read_text().splitlines()]
    assert found
    assert all(set(each["output"].split()) <= set(NAMES) for each in found)


def test_texts_and_numbers(place: Path) -> None:
    codec = HuggingFace(path=str(place / "t5"), template="to : {source}", longest_source=4).codec()
    found = codec.encode(Example("a b c d", "b {source} a"))
    assert found.source.tolist() == [11, 12, 5, 2]
    assert found.target == [6, 3, 5, 2]
    assert codec.encode(Example("a", None)).target == []
    assert codec.decode([6, 5, 2]) == "b a"
    assert len(codec.token_names()) == codec.sizes.target == len(NAMES) + 2
    assert codec.token_names()[5] == "a"
    again = TokenizerCodec.from_json(json.loads(json.dumps(codec.to_json())))
    assert again.encode(Example("a b c d", "b a")).source.tolist() == [11, 12, 5, 2]
    assert again.to_json() == codec.to_json()
    small = HuggingFace(path=str(place / "t5")).codec(cut_source=2, lowercase=True)
    assert small.encode(Example("A b C", None)).source.tolist() == [5, 6, 2]
    masked = HuggingFace(path=str(place / "bert")).codec()
    made = masked.collate([masked.encode(Example(None, "a b")), masked.encode(Example(None, "c"))], [0, 1])
    assert made.prefix.tolist() == [[5, 6], [7, 0]]
    assert made.mask.tolist() == [[True, True], [True, False]]


def test_the_special_tokens_of_a_tokenizer(place: Path) -> None:
    """They are no words, whatever they are called, in a codec as in a wrapped model."""
    codec = HuggingFace(path=str(place / "t5")).codec()
    names = codec.token_names()
    special = {id for id, name in enumerate(names) if name in ("<pad>", "<s>", "</s>", "<unk>", "<mask>", "")}
    codec.tokenizer.add_tokens([tokenizers.AddedToken("to", special=True)])  # without a role, as chat models' turns are
    wanted, unknown = special | {names.index("to")}, names.index("<unk>")
    wrapped = unforced.wrap(place / "t5", tokenizer=codec.tokenizer)
    for known in (codec, wrapped.vocabulary):
        assert TokenRoles.of(known).special == wanted
        assert TokenRoles.of(known).fixed == wanted - {unknown}  # it stands for some word, and may give way to another
    codec.tokenizer.unk_token = codec.tokenizer.eos_token  # as GPT-2 has it
    assert codec.symbols.eos in TokenRoles.of(codec).fixed
    assert codec.encode(Example("a", "b", ("b",))).references == ()
    assert set(codec.encode(Example("a", "b", ("b", "c"))).references) == {names.index("b"), names.index("c")}


def test_objectives_are_fitted_to_a_wrapped_model(place: Path) -> None:
    """In a custom loop: its tokenizer's special tokens are no words, and n-grams are counted in labels."""
    codec = HuggingFace(path=str(place / "t5")).codec()
    model = tf.AutoModelForSeq2SeqLM.from_pretrained(place / "t5")
    wrapped = unforced.wrap(model, tokenizer=codec.tokenizer)
    plain = unforced.objective("sequence_smoothing", tau=1e6)
    assert unforced.fitted(plain, wrapped).roles == TokenRoles.of(wrapped.vocabulary)
    cider = unforced.objective("sequence_smoothing", reward="cider", tau=0.1, proposal_tau=0.3, samples=3)
    items = [{"labels": [5, 6, 7, 2]}, {"labels": [6, 7, -100, -100]}]
    assert unforced.fitted(cider, wrapped, items).documents == (2, {(6,): 2, (7,): 2, (6, 7): 2})
    with pytest.raises(InputError, match="none were given"):
        unforced.fitted(cider, wrapped)
    for wrong in (model, codec.tokenizer):
        with pytest.raises(InputError, match="has no vocabulary: pass a codec"):
            unforced.fitted(plain, wrong)


def test_complaints(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="is not a folder; models are read from local folders"):
        HuggingFace(path=str(tmp_path / "absent")).codec()
    with pytest.raises(InputError, match="template must contain"):
        HuggingFace(path="x", template="no place")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="cannot read"):
        HuggingFace(path=str(tmp_path / "empty")).codec()
    with pytest.raises(InputError, match="read only text"):
        TokenizedTask(unforced.task("palindromes"), HuggingFace(path="x")).fit([Example((1,), (2,))])
    with pytest.raises(InputError, match="needs sources, but this task has none"):
        unforced.fit(
            HuggingFace(path=str(place / "t5")), unforced.task("palindromes"), "cross_entropy", tmp_path / "run"
        )
    data = recipes.read(place / "t5.toml")
    data["task"] = {"name": "language", "train": f"{place}/text.txt"}
    with pytest.raises(InputError, match="needs sources, but this task has none"):
        unforced.train(recipes.Recipe.from_data(data), run=tmp_path / "none", quiet=True)
    (place / "gpt2" / "generation_config.json").unlink()
    assert HuggingFace(path=str(place / "gpt2")).codec().symbols.eos == 2


def test_incomplete_folders(place: Path, tmp_path: Path) -> None:
    def train(folder: Path, **options: Any) -> str:
        with pytest.raises(InputError) as found:
            unforced.train(place / "t5.toml", f"model=hf:{folder}", run=tmp_path / "run", quiet=True)
        assert not (tmp_path / "run" / "run.json").exists()
        return str(found.value)

    cut = saved(tmp_path / "cut", "t5")
    weights = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    assert "cannot read its model: " in train(cut)
    bare = saved(tmp_path / "bare", "t5")
    for file in bare.glob("tokenizer*"):
        file.unlink()
    assert train(bare) == f"{bare}: has no tokenizer: save one there with tokenizer.save_pretrained"
    pickled = saved(tmp_path / "pickled", "t5")
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    assert "has only pickled weights (.bin)" in train(pickled)
    poor = saved(tmp_path / "poor", "t5")
    tensors = load_file(poor / "model.safetensors")
    absent = "decoder.block.0.layer.0.SelfAttention.k.weight"
    del tensors[absent]
    save_file(tensors, poor / "model.safetensors", metadata={"format": "pt"})
    kind = "T5ForConditionalGeneration"
    assert f"holds {kind}, but a {kind} also needs {absent}" in train(poor)


def test_a_refused_run_leaves_its_folder_free(place: Path, tmp_path: Path) -> None:
    recipe, run = place / "gpt2.toml", tmp_path / "run"
    with pytest.raises(InputError, match="MaskedLM needs a model with scores"):
        unforced.train(recipe, "objective=masked_lm", run=run, quiet=True)
    assert not run.exists()
    unforced.train(recipe, run=run, quiet=True)
    with pytest.raises(InputError, match="is not empty"):
        unforced.train(recipe, run=run, quiet=True)


def test_code_of_a_folder_is_not_run(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = saved(tmp_path / "t5", "t5")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoConfig": "evil.Config", "AutoModelForSeq2SeqLM": "evil.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n")
    with pytest.raises(InputError, match="names code of its own"):
        HuggingFace(path=str(folder)).codec()
    assert not (tmp_path / "ran").exists()
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(tf.AutoConfig, "from_pretrained", lambda path, **how: seen.append(how))
    monkeypatch.setenv("UNFORCED_TRUST_REMOTE_CODE", "1")
    PretrainedFolder(str(folder)).config()
    assert seen == [{"local_files_only": True, "trust_remote_code": True}]
    monkeypatch.delenv("UNFORCED_TRUST_REMOTE_CODE")
    PretrainedFolder(str(place / "t5")).config()
    assert seen[1:] == [{"local_files_only": True, "trust_remote_code": False}]


def test_a_changed_tokenizer_is_seen(place: Path, tmp_path: Path) -> None:
    folder = saved(tmp_path / "t5", "t5")
    data = HuggingFace(path=str(folder)).codec().to_json()
    text = (folder / "tokenizer.json").read_text()
    assert '"f"' in text
    (folder / "tokenizer.json").write_text(text.replace('"f"', '"g"'))
    with pytest.raises(InputError, match="differs from the one of the training run"):
        TokenizerCodec.from_json(data)
