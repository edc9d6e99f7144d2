"""What objectives ask a codec about the vocabulary, answered by a tokenizer."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from unforced.errors import InputError
from unforced.huggingface.batches import IGNORED, causal_batch, masked_batch
from unforced.huggingface.decoder import WrappedModel
from unforced.huggingface.model_spec import Folder
from unforced.huggingface.parts import Specials, decoder_symbols, masked_symbols, special_ids
from unforced.types import Batch, Encoded, Example, Sizes

IGNORED_LABEL = -100


class TokenizerVocabulary:
    """A tokenizer, or its absence, as the part of a codec that ``fitted(codec, examples)`` looks at."""

    def __init__(self, wrapped: WrappedModel, tokenizer: Any = None) -> None:
        self.size = scored_tokens(wrapped)
        self.sizes = Sizes(self.size, self.size)
        self.tokenizer = tokenizer
        banned = {*wrapped.symbols.banned, *special_ids(tokenizer)} - {wrapped.symbols.eos}
        self.symbols = wrapped.symbols._replace(banned=tuple(sorted(banned)))
        self.unknown_id: int | None = getattr(tokenizer, "unk_token_id", None)

    def token_names(self) -> tuple[str, ...]:
        """The name of each id that has a score; those that the tokenizer doesn't know are empty."""
        if self.tokenizer is None:
            return ("",) * self.size
        known = min(len(self.tokenizer), self.size)
        names = self.tokenizer.convert_ids_to_tokens(list(range(known)))
        return (*("" if name is None else str(name) for name in names), *[""] * (self.size - known))


class LabelledExamples(Sequence[Encoded]):
    """A data set's examples as objectives know them, read when they are asked for."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __bool__(self) -> bool:
        return True  # a data set that streams doesn't know how many it has

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[i] for i in range(*number.indices(len(self)))]
        return encoded(self.dataset[number])

    def __iter__(self) -> Iterator[Encoded]:
        if hasattr(self.dataset, "__iter__"):
            return map(encoded, self.dataset)
        return (self[i] for i in range(len(self)))  # what has items need not say where they end


def encoded(item: Any) -> Encoded:
    """An item of a data set: its labels, or its input ids where it has none."""
    labels = item["labels"] if "labels" in item else item["input_ids"]
    target = np.asarray(labels, dtype=np.int64).ravel()
    source = item.get("input_ids") if hasattr(item, "get") else None
    return Encoded(None if source is None else np.asarray(source).ravel(), target[target != IGNORED_LABEL].tolist())


def scored_tokens(wrapped: WrappedModel) -> int:
    """How many tokens the model scores."""
    layer: Any = wrapped.model.get_output_embeddings()  # type: ignore[operator]
    weight = getattr(layer, "weight", None)
    if weight is not None and weight.dim() == 2:
        return len(weight)
    config: Any = wrapped.model.config
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    return int(text.vocab_size)


# A task's text through a model's own tokenizer: what stands between a recipe and a Hugging Face model.

Kind = Literal["encoder_decoder", "causal", "masked"]


class TokenizerCodec:
    """Text in and out by the tokenizer of a folder, as batches for the kind of model that is there.

    Encoder-decoder models read ``template`` with the source in it, and labels are what the tokenizer makes of a target. Causal
    models continue the template with the target; a text without a source follows the start symbol. Masked models read
    texts without sources, with all special tokens.
    """

    def __init__(
        self,
        folder: Folder,
        kind: Kind,
        template: str,
        start: tuple[int, ...] = (),
        longest: tuple[int | None, int | None] = (None, None),
        cut_source: int | None = None,
        lowercase: bool = False,
    ) -> None:
        self.folder, self.kind, self.template, self.start = folder, kind, template, start
        self.longest, self.cut_source, self.lowercase = longest, cut_source, lowercase
        self.tokenizer: Any = folder.tokenizer()
        self.described: Any = folder.described()
        known = Specials(self.described, self.tokenizer)
        if kind == "masked":
            self.symbols, _ = masked_symbols(self.described, known)
        else:
            self.symbols = decoder_symbols(self.described, known, start[-1] if start else None)
        size = int(self.described.text_config.vocab_size)
        if len(self.tokenizer) > size:
            raise InputError(
                f"{folder.path}: the tokenizer has {len(self.tokenizer)} tokens, but the model only {size}"
            )
        self.sizes = Sizes(size, size)

    # ---- to numbers ----

    def encode(self, example: Example) -> Encoded:
        target = [] if example.target is None else self._target(example.target)
        answers = () if set(example.references) <= {example.target} else example.references
        references = sorted({id for text in answers for id in self._answer(text)})
        if self.kind == "masked":
            if example.source is not None:
                raise InputError("a masked model reads texts without sources, as the task language gives them")
            return Encoded(None, target, tuple(references))
        return Encoded(np.asarray(self._source(example.source), dtype=np.int64), target, tuple(references))

    def _ids(self, text: str, longest: int | None, special: bool) -> list[int]:
        cut = {} if longest is None else {"truncation": True, "max_length": longest}
        return [int(id) for id in self.tokenizer(text, add_special_tokens=special, **cut)["input_ids"]]

    def _source(self, text: str | None) -> list[int]:
        if text is None:
            if self.kind == "encoder_decoder":
                raise InputError("an encoder-decoder model needs sources, and this task has none")
            return [self.symbols.bos]
        text = text.lower() if self.lowercase else text
        if self.cut_source is not None and len(words := text.split()) > self.cut_source:
            text = " ".join(words[: self.cut_source])
        ids = self._ids(self.template.replace("{source}", text), self.longest[0], True)
        if self.kind == "causal" and ids and ids[-1] == self.symbols.eos:
            ids = ids[:-1]  # of tokenizers that end every text
        return ids or [self.symbols.bos]

    def _target(self, text: str) -> list[int]:
        limit = self.longest[1]
        if self.kind == "masked":
            return self._ids(text, limit, True)
        if self.kind == "causal":
            ids = self._ids(text, None if limit is None else limit - 1, False)
        else:
            ids = self._labels(text)
            given = list(self.start[1:])
            ids = ids[len(given) :] if given and ids[: len(given)] == given else ids
        eos = self.symbols.eos
        return ids if eos is None or ids[-1:] == [eos] else [*ids, eos]

    def _answer(self, text: str) -> list[int]:
        """The ids of one more target, without special ones."""
        if self.kind != "encoder_decoder":
            return self._ids(text, self.longest[1], False)
        return [id for id in self._labels(text) if id not in self.special_ids]

    def _labels(self, text: str) -> list[int]:
        cut = {} if self.longest[1] is None else {"truncation": True, "max_length": self.longest[1]}
        return [int(id) for id in self.tokenizer(text_target=text, **cut)["input_ids"]]

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        if not encoded:
            raise InputError("a batch needs at least one example")
        numbers = torch.as_tensor(ids, dtype=torch.long)
        pad = self.symbols.pad
        if self.kind == "masked":
            tokens, there = padded([each.target for each in encoded], pad)
            return masked_batch(self.symbols, tokens, there, None, numbers)
        if self.kind == "encoder_decoder":
            source, source_mask = padded([each.source for each in encoded], pad)
            gold, mask = padded([each.target for each in encoded], pad)
            made = Batch.of_gold(gold, mask, self.symbols, source=source, source_mask=source_mask, ids=numbers)
        else:
            rows = [[*each.source, *each.target] for each in encoded]
            tokens, there = padded(rows, pad)
            firsts = torch.tensor([len(each.source) for each in encoded]).unsqueeze(1)
            scored = there & (torch.arange(tokens.shape[1]) >= firsts)
            labels = tokens.masked_fill(~scored, IGNORED) if bool(scored.any()) else None
            made = causal_batch(self.symbols, tokens, there, labels, numbers)
        if not any(each.references for each in encoded):
            return made
        answers, _ = padded([each.references or each.target for each in encoded], pad)
        return Batch(**{**vars(made), "references": answers})

    # ---- and back ----

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text.strip()

    def parse(self, line: str) -> str | None:
        """The line itself; a blank one asks a causal model for a text without a source."""
        text = line.strip()
        if text or self.kind == "causal":
            return text or None
        raise InputError("The line is blank, and there is no output for an empty source.")

    def show(self, output: str | None) -> str:
        return "" if output is None else " ".join(output.splitlines())

    def token_names(self) -> tuple[str, ...]:
        """The name of each id that has a score; those that the tokenizer doesn't know are empty."""
        names = self.tokenizer.convert_ids_to_tokens(list(range(len(self.tokenizer))))
        names = ["" if name is None else str(name) for name in names]
        return (*names, *[""] * (self.sizes.target - len(names)))

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that the tokenizer keeps for other things than text."""
        return special_ids(self.tokenizer)

    @property
    def unknown_id(self) -> int | None:
        """The id that stands for words which the tokenizer doesn't know, if there is one."""
        found: int | None = self.tokenizer.unk_token_id
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "path": self.folder.path,
            "download": self.folder.download,
            "kind": self.kind,
            "template": self.template,
            "start": list(self.start),
            "longest": list(self.longest),
            "cut_source": self.cut_source,
            "lowercase": self.lowercase,
            "tokens": self.digest(),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "TokenizerCodec":
        """The codec again; the tokenizer is read from its folder and must be the one it was."""
        try:
            folder = Folder(data["path"], bool(data["download"]))
            start, longest, cut = tuple(data["start"]), tuple(data["longest"]), data["cut_source"]
            made = cls(folder, data["kind"], data["template"], start, longest, cut, bool(data["lowercase"]))
            tokens = data["tokens"]
        except (KeyError, TypeError) as error:
            raise InputError(f"The codec's description of a tokenizer is incomplete ({error}).") from None
        if made.digest() != tokens:
            raise InputError(f"{folder.path}: the tokenizer there is not the one that this was trained with")
        return made

    def digest(self) -> str:
        """A short hash of the vocabulary."""
        names = sorted((id, name) for name, id in self.tokenizer.get_vocab().items())
        return hashlib.sha256(json.dumps([names, tuple(self.symbols)]).encode()).hexdigest()[:16]


def padded(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Ragged ids -> [B,T] ids and [B,T] bool, with T at least one.

    >>> padded([[5, 6], []], 0)
    (tensor([[5, 6],
            [0, 0]]), tensor([[ True,  True],
            [False, False]]))
    """
    width = max(1, *(len(row) for row in rows))
    ids = torch.tensor([[*map(int, row), *[pad] * (width - len(row))] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(width) < lengths.unsqueeze(1)
