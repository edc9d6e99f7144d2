"""Token strings and their ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

from unforced.errors import InputError
from unforced.types import Symbols


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
    ) -> Vocabulary:
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
    def from_json(cls, data: dict[str, Any]) -> Vocabulary:
        try:
            tokens, eos, unknown = tuple(data["tokens"]), data["eos"], data["unknown"]
        except (KeyError, TypeError):
            raise InputError("A vocabulary needs the keys 'tokens', 'eos' and 'unknown'.") from None
        if not all(isinstance(t, str) for t in tokens) or len(set(tokens)) != len(tokens):
            raise InputError("The tokens of a vocabulary must be different strings.")
        return cls(tokens, bool(eos), bool(unknown))
