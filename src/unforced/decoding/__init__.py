"""Decoding: one search loop, and selectors that decide.

>>> from unforced.decoding import METHODS
>>> sorted(METHODS)
['beam', 'greedy', 'sample']
"""

from __future__ import annotations

from dataclasses import fields as fields_of
from difflib import get_close_matches
from typing import Any, Protocol, runtime_checkable

import torch

from unforced.decoding.beam import Beam
from unforced.decoding.exact import enumerate_sequences
from unforced.decoding.greedy import Greedy
from unforced.decoding.sampling import Sample
from unforced.errors import InputError
from unforced.models.protocol import StepDecoder
from unforced.types import Batch, Hypotheses

__all__ = ["METHODS", "Beam", "Decoder", "Greedy", "Sample", "decode", "enumerate_sequences"]


@runtime_checkable
class Decoder(Protocol):
    """A frozen dataclass whose fields are a decoder's options; the catalogue lists these."""

    def __call__(
        self, model: StepDecoder, batch: Batch, *, rng: torch.Generator | None = None
    ) -> Hypotheses: ...


METHODS: dict[str, Any] = {"greedy": Greedy, "sample": Sample, "beam": Beam}


def decode(
    model: StepDecoder,
    batch: Batch,
    method: str = "beam",
    *,
    rng: torch.Generator | None = None,
    **fields: Any,
) -> Hypotheses:
    """Decode a batch by a method's name; ``fields`` are the method's options.

    ``decode(model, batch, "beam", beam=3)`` is ``Beam(beam=3)(model, batch)``. Sampling needs ``rng``.

    >>> from unforced.models.toy import Toy
    >>> from unforced.types import Sizes, Symbols
    >>> model = Toy(scale=0).build(Sizes(target=5))  # all tokens are equally probable
    >>> nothing = torch.zeros(1, 1, dtype=torch.long)
    >>> batch = Batch.of_gold(nothing, nothing > 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1)))
    >>> decode(model, batch, "beam", beam=2, nbest=2, min_length=2, max_length=3).tokens
    tensor([[[3, 3, 2],
             [3, 3, 3]]])
    """
    decoder = _known(method, METHODS, "decoding method")
    names = [field.name for field in fields_of(decoder)]
    for name in fields:
        _known(name, dict.fromkeys(names), f"option of {method}")
    return decoder(**fields)(model, batch, rng=rng)


def _known(name: str, table: dict[str, Any], what: str) -> Any:
    if name not in table:
        near = get_close_matches(name, table, n=1)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(sorted(table))}"
        raise InputError(f"unknown {what} {name!r} ({hint})")
    return table[name]
