"""Random splits and subsets that are pure functions of (seed, key): no state, no order, the same on every machine."""

from __future__ import annotations

from hashlib import blake2b

from unforced.types import Example, Examples


def fraction(key: str, seed: int = 0) -> float:
    """A number in [0, 1), uniform over keys.

    >>> fraction("word") == fraction("word"), fraction("word") == fraction("word", seed=1)
    (True, False)
    """
    digest = blake2b(f"{seed}\t{key}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def limited(examples: list[Example], dropped: dict[str, int], limit: int | None) -> Examples:
    """The first ``limit`` examples (all if None), with those beyond counted among the dropped."""
    if limit is not None and len(examples) > limit:
        reason = "beyond the limit"
        dropped = {**dropped, reason: dropped.get(reason, 0) + len(examples) - limit}
        examples = examples[:limit]
    return Examples(examples, dropped)
