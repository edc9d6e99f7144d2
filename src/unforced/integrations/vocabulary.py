"""What objectives ask a codec about the vocabulary, answered by a tokenizer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from unforced.models.huggingface.specials import special_ids
from unforced.models.huggingface.tokens import WrappedModel
from unforced.types import Encoded, Sizes

IGNORED = -100


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
    return Encoded(None if source is None else np.asarray(source).ravel(), target[target != IGNORED].tolist())


def scored_tokens(wrapped: WrappedModel) -> int:
    """How many tokens the model scores."""
    layer: Any = wrapped.model.get_output_embeddings()  # type: ignore[operator]
    weight = getattr(layer, "weight", None)
    if weight is not None and weight.dim() == 2:
        return len(weight)
    config: Any = wrapped.model.config
    text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    return int(text.vocab_size)
