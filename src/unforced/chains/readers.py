"""Masked models and the sentences they read, from a run folder or a folder that ``transformers`` saved."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from unforced.energy import energies
from unforced.energy.energies import Over
from unforced.errors import InputError
from unforced.huggingface.batches import make_batch
from unforced.huggingface.masked import WrappedMasked
from unforced.huggingface.model_spec import PretrainedFolder
from unforced.huggingface.wrap import wrap
from unforced.protocols import Codec, FittedTask, Split, SupportsLengths
from unforced.tasks.tokenization import Characters, Pieces, TextCoder
from unforced.training.loading import fastest_device, load
from unforced.training.run_folder import RunFolder
from unforced.types import Batch, Encoded, Example

UNLIMITED = 10**9  # tokenizers that know no longest text say a number beyond this


class Sentence(NamedTuple):
    """A sentence in tokens."""

    text: str
    encoded: Encoded  # its ids are the target, with all that stands around them in the model's input
    words: Sequence[int | None] | None  # the number of the word that each id belongs to, where that is known


class Reader(ABC):
    """A masked model with what turns lines into its batches, and its tokens back into text."""

    name: str  # what complaints call it
    model: Any
    size: int  # tokens that have scores
    takes_source: bool  # whether outputs belong to sources
    over: Over  # which tokens the model's probabilities are among

    @abstractmethod
    def read(self, line: str) -> Sentence:
        """A line as a sentence, or a source, a tab and a sentence; raises ``InputError`` where it can't be one."""

    @abstractmethod
    def collate(self, sentences: Sequence[Sentence]) -> Batch:
        """The sentences as a batch on the model's device."""

    @abstractmethod
    def blank(self, length: int | None) -> Batch:
        """One example without a source whose output has ``length`` tokens, all still to be found."""

    @abstractmethod
    def show(self, ids: Sequence[int]) -> str:
        """The text of a sequence of variables."""

    @abstractmethod
    def token_names(self, ids: Sequence[int]) -> list[str]: ...

    def examples(self, split: Split, count: int) -> list[Sentence]:
        """The first sentences of a part of the data."""
        raise InputError(f"{self.name}: comes without data: give sentences (--input) or a length (--length)")

    def answers(self, split: Split, count: int) -> list[Sequence[Any]] | None:
        """What the outputs of those examples may be, where they have sources."""
        return None

    def metrics(self) -> Sequence[Any]:
        """How outputs are judged, where there is a task."""
        return ()

    def sources(self, lines: Sequence[str]) -> Batch:
        """Lines as sources of outputs that are still to be found."""
        raise InputError(f"{self.name}: its sentences have no sources")

    def fit_lengths(self, batch: Batch, length: int | None) -> Batch:
        """The same sources with room for outputs of ``length`` tokens, or as many as the model guesses."""
        if length is not None:
            return energies.canvas(batch, torch.full((len(batch),), length, device=self.device))
        with torch.no_grad():
            scores = self.model.length_scores(batch) if isinstance(self.model, SupportsLengths) else None
        if scores is None:
            raise InputError(f"{self.name}: the model does not predict lengths: set a length")
        return energies.canvas(batch, scores.topk(1, dim=1).indices.squeeze(1) + 1)

    def word_numbers(self, sentences: Sequence[Sentence], batch: Batch) -> Tensor:
        """[B,T] the number of the word that each token belongs to, −1 for none."""
        rows = torch.full(batch.gold.shape, -1, dtype=torch.long)
        for row, sentence in zip(rows, sentences):
            if sentence.words is None:
                raise InputError(f"{self.name}: its tokenizer does not say which pieces make up a word")
            numbers = [-1 if word is None else word for word in sentence.words]
            row[: len(numbers)] = torch.tensor(numbers, dtype=torch.long)
        return rows.to(batch.gold.device)

    @property
    def device(self) -> torch.device:
        weights: Tensor = next(self.model.parameters())
        return weights.device


def open_model(path: str | Path, checkpoint: str = "best") -> Reader:
    """The masked model in a run folder, or in a folder with config.json, weights as safetensors and a tokenizer."""
    folder = Path(path)
    if not RunFolder(folder).exists():
        if not (folder / "config.json").is_file():
            raise InputError(f"{folder}: is neither a run folder nor one that transformers saved")
        if checkpoint != "best":
            raise InputError(f"{folder}: is no run folder, so it has no checkpoint {checkpoint}")
        network, tokenizer = _from_folder(folder)
        return HuggingFaceReader(str(folder), wrap(network, tokenizer=tokenizer), tokenizer)
    model, task = load(folder, checkpoint, device=fastest_device())
    if not callable(getattr(model, "scores", None)):
        raise InputError(
            f"{folder}: holds a {type(model).__name__}, which is no masked model: "
            "energies need one such as masked, conditional_masked or field"
        )
    if isinstance(model, WrappedMasked):
        codec: Any = task.codec
        return HuggingFaceReader(str(folder), model, codec.tokenizer, task)
    return RunReader(str(folder), model, task)


class RunReader(Reader):
    """The model of a run folder."""

    over: Over = "allowed"  # as the objectives for masked models train them

    def __init__(self, name: str, model: nn.Module, task: FittedTask) -> None:
        self.name, self.model, self.task = name, model, task
        self.codec: Codec = task.codec
        self.size = self.codec.sizes.target
        self.takes_source = self.codec.sizes.source is not None

    def read(self, line: str) -> Sentence:
        source, target = None, line
        if self.takes_source:
            first, tab, target = line.partition("\t")
            if not tab:
                raise InputError("the line has no tab: this model wants a source, a tab and a target")
            source = self.codec.parse(first)
        if not target.strip():
            raise InputError("the line is blank, and an empty sentence has no energy")
        return self._sentence(source, target.strip())

    def _sentence(self, source: Any, text: str) -> Sentence:
        coder = getattr(self.codec, "target", None)
        if not isinstance(coder, TextCoder):
            return Sentence(text, self.codec.encode(Example(source, text)), None)
        cut = text.lower() if coder.lowercase else text
        unknown = [piece for piece in coder.segmenter.split(cut) if piece not in coder.vocabulary]
        if unknown:
            raise InputError(f"{unknown[0]!r} is not in the model's vocabulary")
        return Sentence(text, self.codec.encode(Example(source, text)), words_of(coder, cut))

    def collate(self, sentences: Sequence[Sentence]) -> Batch:
        encoded = [sentence.encoded for sentence in sentences]
        return self.codec.collate(encoded, range(len(encoded))).to(self.device)

    def sources(self, lines: Sequence[str]) -> Batch:
        if not self.takes_source:
            return super().sources(lines)
        encoded = [self.codec.encode(Example(self.codec.parse(line), None)) for line in lines]
        return self.codec.collate(encoded, range(len(encoded))).to(self.device)

    def blank(self, length: int | None) -> Batch:
        batch = self.codec.collate([self.codec.encode(Example(None, None))], [0]).to(self.device)
        if batch.length is not None:
            fixed = int(batch.length[0])
            if length not in (None, fixed):
                raise InputError(f"{self.name}: its strings have {fixed} tokens, not {length}")
            length = fixed
        return self.fit_lengths(batch, length)

    def examples(self, split: Split, count: int) -> list[Sentence]:
        return _examples(self.task, split, count)

    def answers(self, split: Split, count: int) -> list[Sequence[Any]] | None:
        if not self.takes_source:
            return None
        return [example.answers for example in self.task.task.read(split)[:count]]

    def metrics(self) -> Sequence[Any]:
        return self.task.task.metrics()

    def show(self, ids: Sequence[int]) -> str:
        return self.codec.show(self.codec.decode(ids))

    def token_names(self, ids: Sequence[int]) -> list[str]:
        names = self.codec.token_names()
        return [names[i] for i in ids]


def _examples(task: FittedTask, split: Split, count: int) -> list[Sentence]:
    """The first examples of a split; what is unknown in them stays unknown."""
    codec = task.codec
    return [
        Sentence(codec.show(example.target), codec.encode(example), None) for example in task.task.read(split)[:count]
    ]


def words_of(coder: TextCoder, text: str) -> list[int | None]:
    """The number of the word that each of a text's tokens belongs to.

    White space separates words; with byte pair encoding punctuation does as well, for pieces never join them.

    >>> words_of(TextCoder.learn(["ab c"], "characters"), "ab c")
    [0, 0, 1, 2]
    """
    if isinstance(coder.segmenter, Pieces):
        return _byte_pairs(coder.segmenter.model).encode(" " + text).word_ids
    if not isinstance(coder.segmenter, Characters):
        return list(range(len(coder.segmenter.split(text))))
    numbers: list[int | None] = []
    number, before = -1, True
    for letter in text:
        blank = letter.isspace()  # a word of its own
        number += blank or before
        before = blank
        numbers.append(number)
    return numbers


@lru_cache(maxsize=2)
def _byte_pairs(model: str) -> Tokenizer:
    return Tokenizer.from_str(model)


class HuggingFaceReader(Reader):
    """A masked model of ``transformers`` with its tokenizer; with a task where a run has trained it."""

    takes_source = False
    over: Over = "all"

    def __init__(self, name: str, model: WrappedMasked, tokenizer: Any, task: FittedTask | None = None) -> None:
        self.name, self.tokenizer, self.task = name, tokenizer, task
        self.model = model.to(fastest_device()).eval()
        network: Any = model.model
        self.size = int(network.get_output_embeddings().weight.shape[0])
        said = int(getattr(tokenizer, "model_max_length", None) or UNLIMITED)
        places = getattr(network.config, "max_position_embeddings", None)
        self.longest: int | None = said if said < UNLIMITED else places

    def read(self, line: str) -> Sentence:
        text = line.strip()
        if not text:
            raise InputError("the line is blank, and an empty sentence has no energy")
        made = self.tokenizer(text, verbose=False)  # too long a text is told below
        ids: list[int] = list(made["input_ids"])
        unknown = getattr(self.tokenizer, "unk_token_id", None)
        if unknown is not None and unknown in ids:
            raise InputError(f"{self._part(made, ids.index(unknown), text)} is not in the model's vocabulary")
        free = [place for place, i in enumerate(ids) if i not in self.model.symbols.banned]
        if not free:
            raise InputError("the line has nothing but special tokens")
        inner = ids[free[0] : free[-1] + 1]
        special = next((i for i in inner if i in self.model.symbols.banned), None)
        if special is not None:
            raise InputError(f"the line has the special token {self.token_names([special])[0]}")
        if self.longest is not None and len(ids) > self.longest:
            raise InputError(f"the line has {len(ids)} pieces where the model takes at most {self.longest}")
        words = made.word_ids(0) if getattr(self.tokenizer, "is_fast", False) else None
        return Sentence(text, Encoded(None, ids), words)

    @staticmethod
    def _part(made: Any, place: int, text: str) -> str:
        """What was read at a place, as far as the tokenizer tells."""
        span = made.token_to_chars(0, place) if getattr(made, "is_fast", False) else None
        return "a word" if span is None else repr(text[span.start : span.end])

    def collate(self, sentences: Sequence[Sentence]) -> Batch:
        rows = [list(sentence.encoded.target) for sentence in sentences]
        longest = max(map(len, rows))
        pad = self.model.symbols.pad
        ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
        attended = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
        numbers = torch.arange(len(rows), device=self.device)
        return make_batch(self.model, ids.to(self.device), attended.to(self.device), ids=numbers)

    def examples(self, split: Split, count: int) -> list[Sentence]:
        return super().examples(split, count) if self.task is None else _examples(self.task, split, count)

    def blank(self, length: int | None) -> Batch:
        if length is None:
            raise InputError(f"{self.name}: guesses no lengths: give one, or sentences")
        masks = " ".join([self.tokenizer.mask_token] * length)
        ids: list[int] = list(self.tokenizer(masks, verbose=False)["input_ids"])
        if ids.count(self.model.mask_token) != length:
            raise InputError(f"{self.name}: its tokenizer does not take {length} mask tokens as they are")
        if self.longest is not None and len(ids) > self.longest:
            raise InputError(
                f"{self.name}: takes at most {self.longest} pieces with those around a text, not {len(ids)}"
            )
        filler = next(i for i in range(self.size) if i not in self.model.symbols.banned)
        filled = [filler if i == self.model.mask_token else i for i in ids]
        return self.collate([Sentence("", Encoded(None, filled), None)])

    def show(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids)))

    def token_names(self, ids: Sequence[int]) -> list[str]:
        return [str(name) for name in self.tokenizer.convert_ids_to_tokens(list(ids))]


def _from_folder(folder: Path) -> tuple[Any, Any]:
    """Model and tokenizer of a folder that ``save_pretrained`` wrote for a masked model."""
    place = PretrainedFolder(str(folder))
    names = getattr(place.config(), "architectures", None) or []
    if names and not any(part in name for name in names for part in ("MaskedLM", "PreTraining")):
        raise InputError(f"{folder}: holds a {names[0]}, which is no masked model")
    return place.model("masked"), place.tokenizer()
