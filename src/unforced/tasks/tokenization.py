"""Vocabularies, and text cut into words, characters, byte pairs or matches of a pattern."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any, Literal

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from unforced.errors import InputError
from unforced.types import Example, Symbols

# Tokens and their ids


@dataclass(frozen=True)
class Vocabulary:
    """Ids 0 ``<pad>``, 1 ``<bos>``, then optionally ``<eos>`` and ``<unk>``, then the tokens of the data.

    Tokens of the data that look like a reserved name get an id of their own.

    >>> vocabulary = Vocabulary.learn([["b", "a"], ["b", "<eos>"]])
    >>> vocabulary.tokens
    ('<pad>', '<bos>', '<eos>', '<unk>', 'b', '<eos>', 'a')
    >>> vocabulary.encode(["a", "b", "?", "<eos>"], eos=True)
    [6, 4, 3, 5, 2]
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
        """Return the tokens that occur at least ``min_count`` times, at most ``max_size`` (reserved names excluded).

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
        """The id of unknown tokens, None if there is none."""
        return len(self.reserved) - 1 if self.unknown else None

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: i for i, token in enumerate(self.data, len(self.reserved))}

    def __len__(self) -> int:
        return len(self.tokens)

    def __contains__(self, token: object) -> bool:
        return token in self._ids

    def encode(self, tokens: Sequence[str], eos: bool) -> list[int]:
        """Return the ids of tokens, followed by the end symbol if ``eos``."""
        ids = []
        for token in tokens:
            id = self._ids.get(token, self.unk)
            if id is None:
                raise InputError(f"the token {token!r} is not in the vocabulary")
            ids.append(id)
        return [*ids, 2] if eos else ids

    def decode(self, ids: Iterable[int]) -> list[str]:
        """Return the names of ids."""
        return [self.tokens[i] for i in ids]

    def to_json(self) -> dict[str, Any]:
        return {"tokens": list(self.data), "eos": self.eos, "unknown": self.unknown}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Vocabulary":
        return cls(tuple(data["tokens"]), data["eos"], data["unknown"])


# Text and its tokens

Tokens = Literal["bpe", "words", "characters", "pattern"]
BYTES = len(pre_tokenizers.ByteLevel.alphabet())
REPLACEMENT = "\ufffd"


class Words:
    """Words, separated by white space."""

    def split(self, text: str) -> list[str]:
        return text.split()

    def join(self, tokens: Sequence[str]) -> str:
        return " ".join(tokens)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "words"}


class Characters:
    """Code points; a reserved name in an output, such as an unknown character, becomes U+FFFD."""

    def split(self, text: str) -> list[str]:
        return list(text)

    def join(self, tokens: Sequence[str]) -> str:
        return "".join(token if len(token) == 1 else REPLACEMENT for token in tokens)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "characters"}


@dataclass(frozen=True)
class Pieces:
    """Byte pair encoding of UTF-8 (Sennrich et al. 2016) with the ``tokenizers`` library.

    A space is put before the text, so that a word is cut the same way at the start of a text and inside.

    >>> pieces = Pieces.learn(["low lower lowest", "new newer newest"], size=270)
    >>> pieces.split("lowest")
    ['Ġlo', 'west']
    >>> pieces.join(pieces.split("  <eos> größer\\t"))
    '  <eos> größer\\t'
    """

    model: str  # JSON of the library, without special tokens

    @classmethod
    def learn(cls, texts: Iterable[str], size: int) -> "Pieces":
        """Learn ``size`` pieces, the 256 bytes included; fewer if there are no more pairs to merge."""
        if size < BYTES:
            raise InputError(f"a BPE vocabulary needs at least {BYTES} pieces, one for each byte, got {size}")
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=size, min_frequency=2, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
        )
        tokenizer.train_from_iterator((" " + text for text in texts), trainer)
        return cls(tokenizer.to_str())

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer.from_str(self.model)

    @cached_property
    def tokens(self) -> tuple[str, ...]:
        """All pieces, in the order of the library's ids."""
        vocabulary = self._tokenizer.get_vocab()
        return tuple(sorted(vocabulary, key=vocabulary.__getitem__))

    def split(self, text: str) -> list[str]:
        tokens: list[str] = self._tokenizer.encode(" " + text).tokens
        return tokens

    def join(self, tokens: Sequence[str]) -> str:
        text: str = decoders.ByteLevel().decode(list(tokens))
        return text.removeprefix(" ")

    def to_json(self) -> dict[str, Any]:
        return {"kind": "bpe", "model": json.loads(self.model)}


@dataclass(frozen=True)
class Pattern:
    """Matches of a regular expression, which must cover the text; for SMILES and other formal languages.

    >>> Pattern(r"Br|Cl|[A-Za-z]|[=()]").split("CC(=O)Cl")
    ['C', 'C', '(', '=', 'O', ')', 'Cl']
    """

    pattern: str

    def split(self, text: str) -> list[str]:
        tokens = [match[0] for match in re.finditer(self.pattern, text)]
        if "".join(tokens) != text:
            raise InputError(f"the pattern {self.pattern!r} does not match all of {text!r}")
        return tokens

    def join(self, tokens: Sequence[str]) -> str:
        return "".join(tokens)

    def to_json(self) -> dict[str, Any]:
        return {"kind": "pattern", "pattern": self.pattern}


Segmenter = Words | Characters | Pieces | Pattern


@dataclass(frozen=True)
class TextCoder:
    """Text to token ids and back: a segmenter, and the vocabulary of its tokens.

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
        pattern: str | None = None,
    ) -> "TextCoder":
        """Learn a vocabulary of at most ``size`` tokens, reserved names excluded; "pattern" needs ``pattern``.

        With "bpe", ``size`` is the number of pieces (default 8,000). Its vocabulary has every byte, so it needs no
        symbol for unknown tokens and ignores ``min_count``.
        """
        texts = [text.lower() for text in texts] if lowercase else list(texts)
        if tokens == "bpe":
            pieces = Pieces.learn(texts, 8000 if size is None else size)
            return cls(pieces, Vocabulary(pieces.tokens, unknown=False), lowercase)
        plain: dict[str, Segmenter] = {"words": Words(), "characters": Characters()}
        segmenter = Pattern(pattern or "") if tokens == "pattern" else plain[tokens]
        sequences = (segmenter.split(text) for text in texts)
        return cls(segmenter, Vocabulary.learn(sequences, min_count=min_count, max_size=size), lowercase)

    def encode(self, text: str, eos: bool) -> list[int]:
        text = text.lower() if self.lowercase else text
        return self.vocabulary.encode(self.segmenter.split(text), eos)

    def references(self, example: Example) -> tuple[int, ...]:
        """Return the ids that occur in the references of an example, ascending; none if the target is the only one."""
        if set(example.references) <= {example.target}:
            return ()
        return tuple(sorted({id for text in example.references for id in self.encode(text, eos=False)}))

    def decode(self, ids: Sequence[int]) -> str:
        return self.segmenter.join(self.vocabulary.decode(ids))

    def to_json(self) -> dict[str, Any]:
        data = {"segmenter": self.segmenter.to_json(), "lowercase": self.lowercase}
        if not isinstance(self.segmenter, Pieces):  # their model has the tokens
            data["vocabulary"] = self.vocabulary.to_json()
        return data

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "TextCoder":
        kind = data["segmenter"]["kind"]
        if kind == "bpe":
            pieces = Pieces(json.dumps(data["segmenter"]["model"], ensure_ascii=False))
            return cls(pieces, Vocabulary(pieces.tokens, unknown=False), data["lowercase"])
        plain: dict[str, Segmenter] = {"words": Words(), "characters": Characters()}
        segmenter = Pattern(data["segmenter"]["pattern"]) if kind == "pattern" else plain[kind]
        return cls(segmenter, Vocabulary.from_json(data["vocabulary"]), data["lowercase"])
