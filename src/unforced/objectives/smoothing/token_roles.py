"""Which ids of a vocabulary stand for words, and which may be emitted at all."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from unforced.protocols import TokenizerIds
from unforced.types import Symbols

UNKNOWN = "<unk>"
RESERVED = ("<pad>", "<bos>", "<eos>", UNKNOWN)  # names that the first ids of a vocabulary may have


class TokenRoles(NamedTuple):
    """The ids of a vocabulary that are not ordinary words.

    >>> from types import SimpleNamespace
    >>> names = ("<pad>", "<bos>", "<eos>", "<unk>", "a", "")
    >>> codec = SimpleNamespace(symbols=Symbols(0, 1, 2), sizes=SimpleNamespace(target=6), token_names=lambda: names)
    >>> roles = TokenRoles.of(codec)
    >>> sorted(roles.unused), sorted(roles.special), sorted(roles.fixed)
    ([0, 1, 5], [0, 1, 2, 3, 5], [0, 1, 2, 5])
    """

    size: int  # number of ids
    unused: frozenset[int]  # never part of an output; see `unused_ids`
    special: frozenset[int]  # not words: unused ids, the end symbol, the unknown word, special tokens of a tokenizer
    fixed: frozenset[int]  # special ids except the unknown word, which takes the place of a word

    @classmethod
    def of(cls, codec: Any) -> "TokenRoles":
        """Return the roles of a codec's target ids."""
        symbols, names = codec.symbols, codec.token_names()
        unused, special = unused_ids(symbols, names), {symbols.pad, symbols.bos, symbols.eos}
        unknown: set[int | None] = set()
        for id, name in enumerate(names[: len(RESERVED)]):
            if name not in RESERVED or name in names[:id]:
                break
            special.add(id)
            if name == UNKNOWN:
                unknown.add(id)
        if isinstance(codec, TokenizerIds):
            special |= set(codec.special_ids)
            unknown.add(codec.unknown_id)
        words = unknown - {symbols.pad, symbols.bos, symbols.eos}  # GPT-2 has one id for all of these
        ids = frozenset(id for id in unused | special if id is not None)
        return cls(codec.sizes.target, unused, ids, ids - words)


def unused_ids(symbols: Symbols, names: Sequence[str] = ()) -> frozenset[int]:
    """Return the ids that no output contains: banned ones, padding, the start symbol, and ids without a name.

    Padding and the start symbol are used if they are also the end symbol. If no id has a name, names are unknown.
    """
    nameless = {id for id, name in enumerate(names) if not name} if any(names) else set()
    return frozenset(nameless | set(symbols.banned) | ({symbols.pad, symbols.bos} - {symbols.eos}))
