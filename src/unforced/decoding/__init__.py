"""Decoding: one search loop, and selectors that decide.

A decoder is called with a model and a batch; ``unforced.decode`` makes one by its name.

>>> import torch
>>> from unforced.models.toy import Toy
>>> from unforced.types import Batch, Sizes, Symbols
>>> model = Toy(scale=0).build(Sizes(target=5))  # all tokens are equally probable
>>> nothing = torch.zeros(1, 1, dtype=torch.long)
>>> batch = Batch.of_gold(nothing, nothing > 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1)))
>>> Beam(beam=2, nbest=2, min_length=2, max_length=3)(model, batch).tokens
tensor([[[3, 3, 2],
         [3, 3, 3]]])
"""

from unforced.decoding.beam import Beam
from unforced.decoding.enumeration import enumerate_sequences
from unforced.decoding.greedy import Greedy
from unforced.decoding.sampling import Sample
from unforced.protocols import Decoder

__all__ = ["Beam", "Decoder", "Greedy", "Sample", "enumerate_sequences"]
