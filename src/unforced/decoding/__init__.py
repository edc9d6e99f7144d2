"""Decoders: greedy search, sampling, beam search and differentiable beam search.

A decoder is a frozen dataclass that is called with a model and a batch.

>>> import torch
>>> from unforced.decoding import Beam
>>> from unforced.models.toy import Toy
>>> from unforced.types import Batch, Sizes, Symbols
>>> model = Toy(scale=0).build(Sizes(target=5))  # all tokens are equally probable
>>> nothing = torch.zeros(1, 1, dtype=torch.long)
>>> batch = Batch.of_gold(nothing, nothing > 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1)))
>>> Beam(beam=2, nbest=2, min_length=2, max_length=3)(model, batch).tokens
tensor([[[3, 3, 2],
         [3, 3, 3]]])
"""

from typing import TYPE_CHECKING

from unforced.lazy import lazy_exports

if TYPE_CHECKING:
    from unforced.decoding.beam import Beam as Beam
    from unforced.decoding.enumeration import enumerate_sequences as enumerate_sequences
    from unforced.decoding.gold_history import GoldHistory as GoldHistory
    from unforced.decoding.greedy import Greedy as Greedy
    from unforced.decoding.sampling import Sample as Sample
    from unforced.decoding.soft_beam import SoftBeamSearch as SoftBeamSearch
    from unforced.energy.chain import Chain as Chain
    from unforced.energy.mask_predict import MaskPredict as MaskPredict
    from unforced.protocols import Decoder as Decoder
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
