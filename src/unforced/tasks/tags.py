"""The codec of tagging: as many tags as words, and no end symbol."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np

from unforced.errors import InputError
from unforced.tasks.collate import collate
from unforced.tasks.vocabulary import Vocabulary
from unforced.types import Batch, Encoded, Example, Sizes, Symbols

Unseen = Literal["error", "wrong"]


class TagCodec:
    """Sequences of words to sequences of tags; ``Batch.length`` is the number of words.

    Rare words share the unknown word's id. The tags' vocabulary has such an id too, which is banned from outputs: it
    stands for tags that training never had where ``unseen`` is "wrong".

    >>> words = Vocabulary.learn([["Anna", "schläft"]], eos=False)
    >>> tags = Vocabulary.learn([["B-PER", "O"]], eos=False)
    >>> codec = TagCodec(words, tags)
    >>> codec.encode(Example(("Otto", "schläft"), ("B-PER", "O")))
    Encoded(source=array([2, 4]), target=[3, 4], references=())
    >>> codec.decode([3, 4])
    ('B-PER', 'O')
    """

    def __init__(
        self, words: Vocabulary, tags: Vocabulary, lowercase: bool = False, unseen: Unseen = "error"
    ) -> None:
        if words.unk is None or tags.unk is None or tags.eos:
            raise InputError(
                "Tagging needs vocabularies with an unknown symbol, and tags without an end symbol."
            )
        self.words = words
        self.tags = tags
        self.lowercase = lowercase
        self.unseen = unseen
        pad, bos = tags.symbols.pad, tags.symbols.bos
        self.symbols = Symbols(pad=pad, bos=bos, eos=None, banned=(pad, bos, tags.unk))
        self.sizes = Sizes(target=len(tags), source=len(words))

    def encode(self, example: Example) -> Encoded:
        words = [word.lower() for word in example.source] if self.lowercase else example.source
        if not len(words):
            raise InputError("A sentence has no words.")
        source = np.asarray(self.words.encode(words, eos=False), dtype=np.int64)
        if example.target is None:
            return Encoded(source, [])
        if len(example.target) != len(words):
            raise InputError(
                f"A sentence has {len(words)} words but {len(example.target)} tags: {_start(words)}"
            )
        if self.unseen == "error":
            self._check(example)
        return Encoded(source, self.tags.encode(example.target, eos=False))

    def _check(self, example: Example) -> None:
        for tag in example.target:
            if tag not in self.tags:
                raise InputError(
                    f"The tag {tag!r} never occurs in the training data but does in {_start(example.source)}: "
                    'mend the data, or set unseen_tags = "wrong" to let it count as an error of every model.'
                )

    def collate(self, encoded: Sequence[Encoded], ids: Sequence[int]) -> Batch:
        return collate(encoded, ids, self.symbols, fixed_length=True)

    def decode(self, ids: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.tags.decode(ids))

    def parse(self, line: str) -> tuple[str, ...]:
        """Words with white space between them."""
        words = tuple(line.split())
        if not words:
            raise InputError("The line is blank, and a sentence needs at least one word.")
        return words

    def show(self, output: Sequence[str] | None) -> str:
        """Tags (or words) with spaces between them."""
        return "" if output is None else " ".join(output)

    def token_names(self) -> tuple[str, ...]:
        return self.tags.tokens

    def to_json(self) -> dict[str, Any]:
        return {
            "words": self.words.to_json(),
            "tags": self.tags.to_json(),
            "lowercase": self.lowercase,
            "unseen": self.unseen,
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Self:
        missing = {"words", "tags", "lowercase", "unseen"} - data.keys()
        if missing:
            raise InputError(f"The codec has no {', '.join(sorted(missing))}.")
        words, tags = Vocabulary.from_json(data["words"]), Vocabulary.from_json(data["tags"])
        return cls(words, tags, bool(data["lowercase"]), "wrong" if data["unseen"] == "wrong" else "error")


def _start(words: Sequence[str]) -> str:
    """The first words of a sentence, quoted, so that it can be found."""
    return repr(" ".join(words[:8]) + (" …" if len(words) > 8 else ""))
