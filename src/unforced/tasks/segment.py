"""Ways to cut text into tokens and to put it together again.

Each segmenter has ``split`` and ``join``. What they promise of ``join(split(text))``:
``Characters`` and ``Pieces`` give any text back, ``Words`` gives it back with single spaces between the words.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, Protocol

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from unforced.errors import InputError
from unforced.tasks.vocabulary import Vocabulary
from unforced.types import Example

Tokens = Literal["words", "characters", "bpe"]
BYTES = len(pre_tokenizers.ByteLevel.alphabet())
REPLACEMENT = "\ufffd"


class Segmenter(Protocol):
    def split(self, text: str) -> list[str]: ...

    def join(self, tokens: Sequence[str]) -> str: ...

    def to_json(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class Words:
    """What stands between white space."""

    def split(self, text: str) -> list[str]:
        return text.split()

    def join(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "words"}


@dataclass(frozen=True)
class Characters:
    """Code points; a reserved name in an output (an unknown character) shows as the replacement character."""

    def split(self, text: str) -> list[str]:
        return list(text)

    def join(self, tokens: Sequence[str]) -> str:
        return "".join(token if len(token) == 1 else REPLACEMENT for token in tokens)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "characters"}


@dataclass(frozen=True)
class Pieces:
    """Byte pair encoding over UTF-8 bytes (Sennrich et al. 2016), as the ``tokenizers`` library does it.

    A space goes before the text, so that a word is cut alike at the start of a text and within it.
    ``model`` is the library's own JSON. It has no special tokens: the vocabulary's reserved ids are apart from it.

    >>> pieces = Pieces.learn(["low lower lowest", "new newer newest"], size=270)
    >>> pieces.split("lowest")
    ['Ġlo', 'west']
    >>> pieces.join(pieces.split("  <eos> größer\\t"))
    '  <eos> größer\\t'
    """

    model: str

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> Pieces:
        """``size`` pieces (the 256 bytes among them), fewer if the texts have no more pairs to merge."""
        if size < BYTES:
            raise InputError(
                f"A BPE vocabulary has at least {BYTES} pieces, one for each byte; {size} are too few."
            )
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=2,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator((" " + text for text in texts), trainer)
        return cls(tokenizer.to_str())

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        try:
            return Tokenizer.from_str(self.model)
        except Exception as error:  # the library raises bare Exception
            raise InputError(f"The BPE model can't be read ({error}).") from None

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """All pieces, in the order of the library's ids."""
        vocabulary = self._tokenizer.get_vocab()
        return tuple(sorted(vocabulary, key=vocabulary.__getitem__))

    def split(self, text: str) -> list[str]:
        return self._tokenizer.encode(" " + text).tokens

    def join(self, tokens: Sequence[str]) -> str:
        return _BYTES.decode(list(tokens)).removeprefix(" ")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "bpe", "model": json.loads(self.model)}


_BYTES = decoders.ByteLevel()


def segmenter_from_json(data: dict[str, Any]) -> Segmenter:
    """The segmenter that ``to_json`` described."""
    match data:
        case {"kind": "words"}:
            return Words()
        case {"kind": "characters"}:
            return Characters()
        case {"kind": "bpe", "model": dict(model)}:
            return Pieces(json.dumps(model, ensure_ascii=False))
    raise InputError(f"There is no segmenter like {str(data)[:80]!r}.")


@dataclass(frozen=True)
class TextCoder:
    """Text <-> token ids: a segmenter and the vocabulary of its tokens.

    >>> coder = TextCoder.learn(["a b", "b c"], "words")
    >>> coder.encode("b a d", eos=True), coder.decode([4, 5])
    ([4, 5, 3, 2], 'b a')
    """

    segmenter: Segmenter
    vocabulary: Vocabulary
    lowercase: bool = False

    @classmethod
    def learn(
        cls,
        texts: Iterable[str],
        tokens: Tokens,
        *,
        size: int | None = None,
        min_count: int = 1,
        lowercase: bool = False,
    ) -> TextCoder:
        """``size`` is the most tokens a vocabulary of words or characters may have, and the number of BPE pieces.

        BPE knows every byte, so its vocabulary needs no symbol for unknown tokens and ``min_count`` says nothing.
        """
        texts = [text.lower() for text in texts] if lowercase else list(texts)
        if tokens == "bpe":
            pieces = Pieces.learn(texts, 8000 if size is None else size)
            return cls(pieces, Vocabulary(pieces.tokens, unknown=False), lowercase)
        segmenter: Segmenter = Words() if tokens == "words" else Characters()
        sequences = (segmenter.split(text) for text in texts)
        vocabulary = Vocabulary.learn(sequences, min_count=min_count, max_size=size)
        return cls(segmenter, vocabulary, lowercase)

    def encode(self, text: str, eos: bool) -> list[int]:
        text = text.lower() if self.lowercase else text
        return self.vocabulary.encode(self.segmenter.split(text), eos)

    def references(self, example: Example) -> tuple[int, ...]:
        """The ids that occur in an example's references, in ascending order; none if the target is all there is."""
        if set(example.references) <= {example.target}:
            return ()
        return tuple(sorted({id for text in example.references for id in self.encode(text, eos=False)}))

    def decode(self, ids: Sequence[int]) -> str:
        return self.segmenter.join(self.vocabulary.decode(ids))

    def to_json(self) -> dict[str, Any]:
        data = {"segmenter": self.segmenter.to_json(), "lowercase": self.lowercase}
        if not isinstance(self.segmenter, Pieces):  # whose model holds the tokens already
            data["vocabulary"] = self.vocabulary.to_json()
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TextCoder:
        try:
            segmenter, lowercase = segmenter_from_json(data["segmenter"]), bool(data["lowercase"])
            if isinstance(segmenter, Pieces):
                return cls(segmenter, Vocabulary(segmenter.tokens, unknown=False), lowercase)
            return cls(segmenter, Vocabulary.from_json(data["vocabulary"]), lowercase)
        except (KeyError, TypeError) as error:
            raise InputError(f"The codec's description of text is incomplete ({error}).") from None
