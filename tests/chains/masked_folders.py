"""Folders with untrained masked models: run folders, and a folder saved by ``transformers``."""

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from unforced.recipes.recipe import Recipe
from unforced.training import checkpoints
from unforced.training.checkpoints import Checkpoint, model_tensors, step_name
from unforced.training.loading import build_network
from unforced.training.run_folder import RunFolder
from unforced.training.run_identity import data_facts

SENTENCES = ["a cat sleeps", "the dog sleeps", "the cat sees a dog", "a dog", "the old cat sees the old dog"]
PAIRS = [("ab", "c d"), ("ba", "d c"), ("aab", "c c d"), ("b", "d"), ("abab", "c d c d"), ("bb", "d d")]
SMALL = {"width": 8, "heads": 2, "feedforward": 12, "dropout": 0.0}


def random_weights(model: nn.Module, scale: float = 0.4) -> nn.Module:
    """Set random weights for which scores differ and chains move."""
    rng = torch.Generator().manual_seed(11)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(scale * torch.randn(parameter.shape, generator=rng))
    return model


def write_run(folder: Path, task: dict[str, Any], model: dict[str, Any], scale: float = 0.4) -> Path:
    """A run folder whose only checkpoint has random weights."""
    recipe = Recipe.from_data(
        {
            "name": "random",
            "task": task,
            "model": model,
            "objective": {"name": "cross_entropy"},
            "training": {"epochs": 1},
            "decoding": {"greedy": {"method": "greedy"}},
        }
    ).single()
    codec = recipe.task.fit(recipe.task.read("train"))
    network = random_weights(build_network(recipe.model, codec), scale)
    info = {"seed": 1, "facts": data_facts(codec, [], network)}
    RunFolder(folder).create(recipe=recipe.to_toml(), info=info, codec=codec.to_json())
    checkpoint = Checkpoint(model_tensors(network), {}, {}, {"step": 1})
    checkpoints.publish(folder / "checkpoints", step_name(1), checkpoint)
    return folder


def language_run(root: Path, tokens: str = "words", name: str = "masked") -> Path:
    text = root / "text.txt"
    text.write_text("\n".join(SENTENCES * 3) + "\n")
    task = {"name": "language", "train": str(text), "tokens": tokens}
    if tokens == "bpe":
        task["size"] = 262
    model = {"name": "masked", "layers": 1, **SMALL} if name == "masked" else {"name": name, "hidden": 5}
    return write_run(root / f"{name}-{tokens}", task, model)


def palindrome_run(root: Path, scale: float = 0.4) -> Path:
    task = {"name": "palindromes", "alphabet": 3, "length": 4, "size": 20, "held_out": 5}
    return write_run(root / f"field-{scale}", task, {"name": "field", "hidden": 5, "embedding": 4}, scale=scale)


def conditional_run(root: Path) -> Path:
    pairs = root / "pairs.tsv"
    pairs.write_text("".join(f"{source}\t{target}\n" for source, target in PAIRS * 2))
    task = {"name": "pairs", "train": str(pairs), "source_tokens": "characters", "target_tokens": "words"}
    model = {"name": "conditional_masked", "encoder_layers": 1, "decoder_layers": 1, "longest": 6, **SMALL}
    return write_run(root / "conditional", task, model)


def all_folders(base: Path) -> Path:
    """Return a folder below ``base`` with one model of each kind; it is made once."""
    folder = base / "masked"
    if folder.exists():
        return folder
    folder.mkdir()
    language_run(folder)
    language_run(folder, "bpe")
    palindrome_run(folder)
    conditional_run(folder)
    huggingface_folder(folder / "bert")
    return folder


SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
VOCABULARY = [*SPECIAL, "the", "cat", "dog", "sleep", "##s", "##ing", "un", "##force", "##d", "."]


def huggingface_folder(folder: Path, *, positions: int = 32, words: Sequence[str] = VOCABULARY, **save: Any) -> Path:
    """A small BERT with random weights and a WordPiece tokenizer."""
    tf = pytest.importorskip("transformers")
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    pieces = Tokenizer(models.WordPiece({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    pieces.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    pieces.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=pieces, model_max_length=positions, **names)
    config = tf.BertConfig(
        vocab_size=len(words),
        hidden_size=12,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=positions,
        pad_token_id=0,
    )
    torch.manual_seed(3)
    network = random_weights(tf.BertForMaskedLM(config))
    network.save_pretrained(folder, **save)
    tokenizer.save_pretrained(folder)
    return folder


def feed(monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> None:
    """Replace standard input by a text."""
    data = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(data)))


def json_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]
