"""Text and data sets for transformers models: a tokenizer as a codec, and labelled items as examples."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unforced.errors import InputError
from unforced.huggingface.batches import NOT_SCORED, causal_batch, masked_batch, with_limits
from unforced.huggingface.model_spec import PretrainedFolder
from unforced.huggingface.vocabulary import ModelKind, ModelVocabulary
from unforced.types import Batch, Encoded, Example


class TokenizerCodec(ModelVocabulary):
    """Text in and out by the tokenizer of a folder, as batches for the kind of model in it.

    Encoder-decoder models read ``template`` with the source in it; labels are what the tokenizer makes of a target.
    Causal models continue the template with the target; a text without a source follows the start symbol. Masked
    models read texts without sources, with all special tokens.
    """

    def __init__(
        self,
        folder: PretrainedFolder,
        kind: ModelKind,
        template: str,
        start: tuple[int, ...] = (),
        longest: tuple[int | None, int | None] = (None, None),
        cut_source: int | None = None,
        lowercase: bool = False,
    ) -> None:
        configurations, tokenizer = folder.configurations(), folder.tokenizer()
        try:
            super().__init__(configurations, kind, tokenizer, start=start)
        except InputError as error:
            raise InputError(f"{folder.path}: {error}") from None
        self.folder, self.template, self.start = folder, template, start
        self.longest, self.cut_source, self.lowercase = longest, cut_source, lowercase

    # ---- encode ----

    def encode(self, example: Example) -> Encoded:
        target = [] if example.target is None else self._target(example.target)
        answers = () if set(example.references) <= {example.target} else example.references
        references = sorted({id for text in answers for id in self._reference(text)})
        if self.kind == "masked":
            if example.source is not None:
                raise InputError("a masked model reads texts without sources: use the task language")
            return Encoded(None, target, tuple(references))
        return Encoded(np.asarray(self._source(example.source), dtype=np.int64), target, tuple(references))

    def _ids(self, longest: int | None, **text: Any) -> list[int]:
        cut = {} if longest is None else {"truncation": True, "max_length": longest}
        return [int(id) for id in self.tokenizer(**text, **cut)["input_ids"]]

    def _source(self, text: str | None) -> list[int]:
        if text is None:
            if self.kind == "encoder_decoder":
                raise InputError("an encoder-decoder model needs sources, but this task has none")
            return [self.symbols.bos]
        text = text.lower() if self.lowercase else text
        if self.cut_source is not None and len(words := text.split()) > self.cut_source:
            text = " ".join(words[: self.cut_source])
        ids = self._ids(self.longest[0], text=self.template.replace("{source}", text))
        if self.kind == "causal" and ids and ids[-1] == self.symbols.eos:
            ids = ids[:-1]  # some tokenizers end every text
        return ids or [self.symbols.bos]

    def _target(self, text: str) -> list[int]:
        limit = self.longest[1]
        if self.kind == "masked":
            return self._ids(limit, text=text)
        if self.kind == "causal":
            ids = self._ids(None if limit is None else limit - 1, text=text, add_special_tokens=False)
        else:
            ids = self._ids(limit, text_target=text)
            given = list(self.start[1:])
            ids = ids[len(given) :] if given and ids[: len(given)] == given else ids
        eos = self.symbols.eos
        return ids if eos is None or ids[-1:] == [eos] else [*ids, eos]

    def _reference(self, text: str) -> list[int]:
        """Return the ids of another acceptable target, without special tokens."""
        if self.kind != "encoder_decoder":
            return self._ids(self.longest[1], text=text, add_special_tokens=False)
        return [id for id in self._ids(self.longest[1], text_target=text) if id not in self.special_ids]

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        if not encoded:
            raise InputError("a batch needs at least one example")
        numbers, pad = torch.as_tensor(ids, dtype=torch.long), self.symbols.pad
        if self.kind == "masked":
            tokens, mask = pad_rows([each.target for each in encoded], pad)
            return masked_batch(self.symbols, tokens, mask, None, numbers)
        if self.kind == "encoder_decoder":
            source, source_mask = pad_rows([each.source for each in encoded], pad)
            gold, mask = pad_rows([each.target for each in encoded], pad)
            batch = Batch.of_gold(gold, mask, self.symbols, source=source, source_mask=source_mask, ids=numbers)
        else:
            tokens, mask = pad_rows([[*each.source, *each.target] for each in encoded], pad)
            prompts = torch.tensor([len(each.source) for each in encoded]).unsqueeze(1)
            scored = mask & (torch.arange(tokens.shape[1]) >= prompts)
            labels = tokens.masked_fill(~scored, NOT_SCORED) if bool(scored.any()) else None
            batch = causal_batch(self.symbols, tokens, mask, labels, numbers)
        batch = with_limits(batch, self)
        if not any(each.references for each in encoded):
            return batch
        references, _ = pad_rows([each.references or each.target for each in encoded], pad)
        return replace(batch, references=references)

    # ---- decode ----

    def decode(self, ids: Sequence[int]) -> str:
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True)
        return text.strip()

    def parse(self, line: str) -> str | None:
        """Return the line; for a causal model a blank line stands for a text without a source."""
        text = line.strip()
        if text or self.kind == "causal":
            return text or None
        raise InputError("the line is blank, but this model needs a source")

    def show(self, output: str | None) -> str:
        return "" if output is None else " ".join(output.splitlines())

    # ---- save ----

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
        """Return the codec that `to_json` described; raise `InputError` if the tokenizer in its folder has changed."""
        folder = PretrainedFolder(data["path"], data["download"])
        start, longest = tuple(data["start"]), (data["longest"][0], data["longest"][1])
        codec = cls(folder, data["kind"], data["template"], start, longest, data["cut_source"], data["lowercase"])
        if codec.digest() != data["tokens"]:
            raise InputError(f"{folder.path}: the tokenizer differs from the one of the training run")
        return codec

    def digest(self) -> str:
        """Return a short hash of the vocabulary."""
        names = sorted((id, name) for name, id in self.tokenizer.get_vocab().items())
        return hashlib.sha256(json.dumps([names, tuple(self.symbols)]).encode()).hexdigest()[:16]


def pad_rows(rows: Sequence[Sequence[int]], pad: int) -> tuple[Tensor, Tensor]:
    """Pad ragged ids to [B,T] ids and a [B,T] bool mask, with T at least 1.

    >>> pad_rows([[5, 6], []], 0)
    (tensor([[5, 6],
            [0, 0]]), tensor([[ True,  True],
            [False, False]]))
    """
    width = max(1, *(len(row) for row in rows))
    ids = torch.tensor([[*map(int, row), *[pad] * (width - len(row))] for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    return ids, torch.arange(width) < lengths.unsqueeze(1)


class LabelledExamples(Sequence[Encoded]):
    """The items of a Trainer's data set as encoded examples, read on access."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __bool__(self) -> bool:
        return True  # an iterable data set has no length

    def __getitem__(self, number: Any) -> Any:
        return encode_item(self.dataset[number])

    def __iter__(self) -> Iterator[Encoded]:
        if hasattr(self.dataset, "__iter__"):
            return map(encode_item, self.dataset)
        return (self[i] for i in range(len(self)))


def encode_item(item: Any) -> Encoded:
    """Return the labels of a data set's item, or its input ids if it has none."""
    labels = item["labels"] if "labels" in item else item["input_ids"]
    target = np.asarray(labels, dtype=np.int64).ravel()
    source = item.get("input_ids") if hasattr(item, "get") else None
    return Encoded(None if source is None else np.asarray(source).ravel(), target[target != NOT_SCORED].tolist())
