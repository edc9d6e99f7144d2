"""Masked models that read and write text, from a run folder or a folder saved by ``transformers``."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor

from unforced.energy import energies
from unforced.energy.mask_predict import output_lengths
from unforced.energy.pseudo_log_likelihood import Over, WordMasks
from unforced.errors import InputError
from unforced.huggingface.batches import masked_batch
from unforced.huggingface.codec import pad_rows
from unforced.huggingface.masked import WrappedMasked
from unforced.huggingface.model_spec import PretrainedFolder
from unforced.huggingface.vocabulary import ModelVocabulary
from unforced.huggingface.wrap import wrap
from unforced.protocols import FittedTask, MaskedModel, Split
from unforced.tasks.codecs import PairCodec
from unforced.tasks.tokenization import Characters, Pieces, TextCoder
from unforced.training.loading import fastest_device, load
from unforced.training.run_folder import RunFolder
from unforced.types import Batch, Encoded, Example

UNLIMITED = 10**9  # tokenizers without a limit report a larger number
UNUSED = re.compile(r"\[unused\d+\]")  # names of ids that stand for nothing in the vocabularies of BERT


class Sentence(NamedTuple):
    """A sentence as tokens."""

    text: str
    encoded: Encoded  # the target has all ids of the model's input, special tokens included
    words: Sequence[int | None] | None  # the number of each id's word, if known


@dataclass(frozen=True, kw_only=True)
class Reader:
    """A masked model with functions from text to batches, and from tokens to text."""

    name: str  # for error messages
    model: Any
    size: int  # of the vocabulary
    takes_source: bool  # whether outputs depend on sources
    over: Over  # which tokens the model's probabilities are over
    read: Callable[[str], Sentence]  # parse a sentence, or a source, a tab and a sentence; raise InputError if invalid
    collate: Callable[[Sequence[Sentence]], Batch]  # build a batch on the model's device
    placeholder: Callable[[int | None], Batch]  # one example without a source, with an output of this many variables
    show: Callable[[Sequence[int]], str]  # the text of a sequence of variables
    token_names: Callable[[Sequence[int]], list[str]]
    task: FittedTask | None = None  # the data that the model was trained on

    @property
    def device(self) -> torch.device:
        return _device(self.model)

    def examples(self, split: Split, count: int) -> list[Sentence]:
        """Return the first examples of a split; unknown tokens stay unknown."""
        if self.task is None:
            raise InputError(f"{self.name}: has no data: pass sentences (--input) or a length (--length)")
        codec, examples = self.task.codec, self.task.task.read(split)[:count]
        return [Sentence(codec.show(example.target), codec.encode(example), None) for example in examples]

    def answers(self, split: Split, count: int) -> list[Sequence[Any]] | None:
        """Return the references of the same examples; None for a model without sources."""
        if self.task is None or not self.takes_source:
            return None
        return [example.answers for example in self.task.task.read(split)[:count]]

    def metrics(self) -> Sequence[Any]:
        """Return the metrics of the task, if there is one."""
        return () if self.task is None else self.task.task.metrics()

    def sources(self, lines: Sequence[str]) -> Batch:
        """Parse lines as sources and return a batch without outputs."""
        assert self.task is not None
        codec = self.task.codec
        return self.task.batch([Example(codec.parse(line), None) for line in lines], device=self.device)

    def fit_lengths(self, batch: Batch, length: int | None) -> Batch:
        """Make room for outputs of ``length`` tokens, or of the most probable length under the model."""
        if length is not None:
            return energies.canvas(batch, torch.full((len(batch),), length, device=self.device))
        with torch.no_grad():
            return energies.canvas(batch, output_lengths(self.model, batch, "sampling").squeeze(1))

    def find_tokens(self, patterns: Sequence[str]) -> list[int]:
        """Return the ids of tokens, given by name or by regular expressions that match whole names."""
        names, found = self.token_names(range(self.size)), set()
        for pattern in patterns:
            ids = [i for i, name in enumerate(names) if name == pattern]
            if not ids:
                try:
                    ids = [i for i, name in enumerate(names) if re.fullmatch(pattern, name)]
                except re.error as error:
                    raise InputError(f"{pattern!r} is neither a token nor a regular expression: {error}") from None
            if not ids:
                raise InputError(f"{pattern!r} is not in the vocabulary, nor does a token match it as an expression")
            found.update(ids)
        return sorted(found)

    def words(self, sentences: Sequence[Sentence], batch: Batch) -> WordMasks:
        """Return which tokens of a batch of sentences belong to one word."""
        rows = torch.full(batch.gold.shape, -1, dtype=torch.long)
        for row, sentence in zip(rows, sentences):
            if sentence.words is None:
                raise InputError(f"{self.name}: its tokenizer does not know which tokens form a word")
            numbers = [-1 if word is None else word for word in sentence.words]
            row[: len(numbers)] = torch.tensor(numbers, dtype=torch.long)
        return WordMasks(rows.to(batch.gold.device))


def open_model(path: str | Path, checkpoint: str = "best") -> Reader:
    """Load the masked model in a run folder, or in a folder saved by ``transformers`` with a tokenizer."""
    folder = Path(path)
    if not RunFolder(folder).exists():
        if not (folder / "config.json").is_file():
            raise InputError(f"{folder}: is neither a run folder nor a folder saved by transformers")
        if checkpoint != "best":
            raise InputError(f"{folder}: is not a run folder, so it has no checkpoint {checkpoint}")
        saved = PretrainedFolder(str(folder))
        names = saved.config().architectures or []
        if names and not any(part in name for name in names for part in ("MaskedLM", "PreTraining")):
            raise InputError(f"{folder}: holds a {names[0]}, which is not a masked model")
        wrapped = wrap(saved.model("masked"), tokenizer=saved.tokenizer())
        return huggingface_reader(str(folder), wrapped, wrapped.vocabulary)
    model, task = load(folder, checkpoint, device=fastest_device())
    if not isinstance(model, MaskedModel):
        raise InputError(
            f"{folder}: holds a {type(model).__name__}, which is not a masked model: "
            "use a model such as masked, conditional_masked or field"
        )
    if isinstance(model, WrappedMasked):
        codec: Any = task.codec
        return huggingface_reader(str(folder), model, codec, task)
    return run_reader(str(folder), model, task)


# ---- models of this package ----


def run_reader(name: str, model: Any, task: FittedTask) -> Reader:
    """Read and write text with the codec of a run."""
    codec, device = task.codec, _device(model)
    takes_source = codec.sizes.source is not None

    def read(line: str) -> Sentence:
        source, target = None, line
        if takes_source:
            first, tab, target = line.partition("\t")
            if not tab:
                raise InputError("the line has no tab: this model needs a source, a tab and a target")
            source = codec.parse(first)
        text = target.strip()
        if not text:
            raise InputError("the line is blank, and an empty sentence has no energy")
        words = None
        if isinstance(codec, PairCodec):
            coder = codec.target
            cut = text.lower() if coder.lowercase else text
            unknown = [piece for piece in coder.segmenter.split(cut) if piece not in coder.vocabulary]
            if unknown:
                raise InputError(f"{unknown[0]!r} is not in the model's vocabulary")
            words = words_of(coder, cut)
        return Sentence(text, codec.encode(Example(source, text)), words)

    def collate(sentences: Sequence[Sentence]) -> Batch:
        encoded = [sentence.encoded for sentence in sentences]
        return codec.collate(encoded, range(len(encoded))).to(device)

    def placeholder(length: int | None) -> Batch:
        batch = task.batch([Example(None, None)], device=device)
        if batch.length is not None:
            fixed = int(batch.length[0])
            if length not in (None, fixed):
                raise InputError(f"{name}: its outputs have {fixed} tokens, not {length}")
            length = fixed
        return reader.fit_lengths(batch, length)

    names = codec.token_names()
    reader = Reader(
        name=name,
        model=model,
        size=codec.sizes.target,
        takes_source=takes_source,
        over="allowed",  # as the objectives for masked models train them
        read=read,
        collate=collate,
        placeholder=placeholder,
        show=lambda ids: codec.show(codec.decode(ids)),
        token_names=lambda ids: [names[i] for i in ids],
        task=task,
    )
    return reader


def words_of(coder: TextCoder, text: str) -> list[int | None]:
    """Return the number of the word of each token of a text.

    Words are separated by white space; with byte pair encoding also by punctuation, which pieces never cross.

    >>> words_of(TextCoder.learn(["ab c"], "characters"), "ab c")
    [0, 0, 1, 2]
    """
    if isinstance(coder.segmenter, Pieces):
        return _byte_pairs(coder.segmenter.model).encode(" " + text).word_ids
    if not isinstance(coder.segmenter, Characters):
        return list(range(len(coder.segmenter.split(text))))
    numbers: list[int | None] = []
    number, after_blank = -1, True
    for letter in text:
        blank = letter.isspace()  # a word of its own
        number += blank or after_blank
        after_blank = blank
        numbers.append(number)
    return numbers


@lru_cache(maxsize=2)
def _byte_pairs(model: str) -> Tokenizer:
    return Tokenizer.from_str(model)


# ---- models of Hugging Face ----


def huggingface_reader(
    name: str, model: WrappedMasked, vocabulary: ModelVocabulary, task: FittedTask | None = None
) -> Reader:
    """Read and write text with a tokenizer of ``transformers``; ``task`` is that of a run, if there is one.

    Banned are ids without a token and reserved tokens such as ``[unused0]``.
    """
    model = model.to(fastest_device()).eval()
    tokenizer, names = vocabulary.tokenizer, vocabulary.token_names()
    limit = int(getattr(tokenizer, "model_max_length", None) or UNLIMITED)
    longest = limit if limit < UNLIMITED else vocabulary.positions
    empty = [i for i, token in enumerate(names) if not token or UNUSED.fullmatch(token)]
    banned = tuple(sorted({*vocabulary.symbols.banned, *empty}))
    symbols = vocabulary.symbols._replace(banned=banned)

    def read(line: str) -> Sentence:
        text = line.strip()
        if not text:
            raise InputError("the line is blank, and an empty sentence has no energy")
        # a text that is too long is reported below
        output = tokenizer(text, verbose=False, return_special_tokens_mask=True)
        ids: list[int] = list(output["input_ids"])
        if tokenizer.unk_token_id is not None and tokenizer.unk_token_id in ids:
            span = output.token_to_chars(0, ids.index(tokenizer.unk_token_id)) if tokenizer.is_fast else None
            part = "a word" if span is None else repr(text[span.start : span.end])
            raise InputError(f"{part} is not in the model's vocabulary")
        special = [i for i, added in zip(ids, output["special_tokens_mask"]) if i in banned and not added]
        if special:
            raise InputError(f"the line has the special token {names[special[0]]}")
        if longest is not None and len(ids) > longest:
            raise InputError(f"the line has {len(ids)} tokens, but the model accepts at most {longest}")
        return Sentence(text, Encoded(None, ids), output.word_ids(0) if tokenizer.is_fast else None)

    def collate(sentences: Sequence[Sentence]) -> Batch:
        tokens, mask = pad_rows([sentence.encoded.target for sentence in sentences], symbols.pad)
        return masked_batch(symbols, tokens, mask, None, torch.arange(len(sentences))).to(_device(model))

    def placeholder(length: int | None) -> Batch:
        if length is None:
            raise InputError(f"{name}: does not predict lengths: pass a length, or sentences")
        ids = list(tokenizer(" ".join([tokenizer.mask_token] * length), verbose=False)["input_ids"])
        if ids.count(model.mask_token) != length:
            raise InputError(f"{name}: its tokenizer does not preserve {length} mask tokens")
        if longest is not None and len(ids) > longest:
            raise InputError(f"{name}: accepts at most {longest} tokens including special tokens, got {len(ids)}")
        free = energies.first_allowed(symbols)
        return collate([Sentence("", Encoded(None, [free if i == model.mask_token else i for i in ids]), None)])

    return Reader(
        name=name,
        model=model,
        size=len(names),
        takes_source=False,
        over="all",
        read=read,
        collate=collate,
        placeholder=placeholder,
        show=lambda ids: str(tokenizer.decode(list(ids))),
        token_names=lambda ids: [names[i] for i in ids],
        task=task,
    )


def _device(model: Any) -> torch.device:
    weights: Tensor = next(model.parameters())
    return weights.device
