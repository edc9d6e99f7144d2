"""Token strings and their ids."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal, Protocol

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from unforced.errors import InputError
from unforced.types import Example, Symbols


@dataclass(frozen=True)
class Vocabulary:
    """Ids 0 ``<pad>``, 1 ``<bos>``, then ``<eos>`` and ``<unk>`` where wanted, then the tokens of the data.

    Strings of the data that look like a reserved name get an id of their own, so the two never collide.

    >>> vocabulary = Vocabulary.learn([["b", "a"], ["b", "<eos>"]])
    >>> vocabulary.tokens
    ('<pad>', '<bos>', '<eos>', '<unk>', 'b', '<eos>', 'a')
    >>> vocabulary.encode(["a", "b", "?", "<eos>"], eos=True)
    [6, 4, 3, 5, 2]
    >>> vocabulary.decode([6, 4])
    ['a', 'b']
    >>> vocabulary.symbols
    Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
    """

    data: tuple[str, ...]  # the tokens of the data, in the order of their ids
    eos: bool = True
    unknown: bool = True

    @classmethod
    def learn(
        cls,
        sequences: Iterable[Iterable[str]],
        *,
        min_count: int = 1,
        max_size: int | None = None,
        eos: bool = True,
        unknown: bool = True,
    ) -> "Vocabulary":
        """The tokens seen at least ``min_count`` times, at most ``max_size`` of them (reserved names not counted).

        The most frequent come first, equally frequent ones in alphabetical order.
        """
        counts = Counter(chain.from_iterable(sequences))
        kept = [token for token, n in counts.items() if n >= min_count]
        kept.sort(key=lambda token: (-counts[token], token))
        return cls(tuple(kept[:max_size]), eos, unknown)

    @cached_property
    def reserved(self) -> tuple[str, ...]:
        """The names of the first ids."""
        return ("<pad>", "<bos>", *(["<eos>"] if self.eos else []), *(["<unk>"] if self.unknown else []))

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """The name of each id."""
        return self.reserved + self.data

    @cached_property
    def symbols(self) -> Symbols:
        return Symbols(pad=0, bos=1, eos=2 if self.eos else None, banned=(0, 1))

    @cached_property
    def unk(self) -> int | None:
        """The id that stands for unknown tokens."""
        return len(self.reserved) - 1 if self.unknown else None

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.data, len(self.reserved))}

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._ids

    def encode(self, tokens: Sequence[str], eos: bool) -> list[int]:
        """The tokens' ids, with the end symbol behind them if ``eos``."""
        if eos and not self.eos:
            raise InputError("This vocabulary has no end symbol.")
        ids = [self._ids.get(token, self.unk) for token in tokens]
        if None in ids:
            raise InputError(f"The token {tokens[ids.index(None)]!r} is not in the vocabulary.")
        return [*ids, 2] if eos else ids  # type: ignore[list-item, return-value]

    def decode(self, ids: Iterable[int]) -> list[str]:
        """The ids' names; callers have cut the end symbol and padding off."""
        return [self.tokens[i] for i in ids]

    def to_json(self) -> dict[str, Any]:
        return {"tokens": list(self.data), "eos": self.eos, "unknown": self.unknown}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Vocabulary":
        try:
            tokens, eos, unknown = tuple(data["tokens"]), data["eos"], data["unknown"]
        except (KeyError, TypeError):
            raise InputError("A vocabulary needs the keys 'tokens', 'eos' and 'unknown'.") from None
        if not all(isinstance(t, str) for t in tokens) or len(set(tokens)) != len(tokens):
            raise InputError("The tokens of a vocabulary must be different strings.")
        return cls(tokens, bool(eos), bool(unknown))


# Ways to cut text into tokens and to put it together again.

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
    def learn(cls, texts: Iterable[str], size: int) -> "Pieces":
        """``size`` pieces (the 256 bytes among them), fewer if the texts have no more pairs to merge."""
        if size < BYTES:
            raise InputError(f"A BPE vocabulary has at least {BYTES} pieces, one for each byte; {size} are too few.")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=size, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
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
    ) -> "TextCoder":
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
    def from_json(cls, data: dict[str, Any]) -> "TextCoder":
        try:
            segmenter, lowercase = segmenter_from_json(data["segmenter"]), bool(data["lowercase"])
            if isinstance(segmenter, Pieces):
                return cls(segmenter, Vocabulary(segmenter.tokens, unknown=False), lowercase)
            return cls(segmenter, Vocabulary.from_json(data["vocabulary"]), lowercase)
        except (KeyError, TypeError) as error:
            raise InputError(f"The codec's description of text is incomplete ({error}).") from None
