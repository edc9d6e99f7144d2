"""Energies of sequences from masked models, and samplers for their distributions.

A sampler is a frozen dataclass. For a model and a batch it returns a `Kernel` of two functions, ``init`` and ``step``.

>>> import torch
>>> from unforced.types import Batch, Symbols
>>> class Uniform:
...     def scores(self, batch, tokens, masked):
...         return torch.zeros(*tokens.shape, 5)
>>> gold = torch.tensor([[3, 4, 2], [3, 2, 0]])
>>> batch = Batch.of_gold(gold, gold != 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1)))
>>> energy(Uniform(), batch, gold)
tensor([1.3863, 0.6931])
>>> kernel = MetropolisHastings().kernel(Uniform(), batch)
>>> state, report = sweep(kernel, torch.Generator().manual_seed(1), kernel.init(gold))
>>> report.proposed
tensor([2, 1])
"""

from unforced.energy.chain import Chain
from unforced.energy.energies import allowed, canvas, energy, terms, variables
from unforced.energy.gibbs import Gibbs
from unforced.energy.mask_predict import MaskPredict, random_start, warm_start
from unforced.energy.metropolis_hastings import MetropolisHastings
from unforced.energy.samplers import SweepInfo, sweep
from unforced.protocols import Sampler
from unforced.types import ChainInfo, ChainState, Kernel

__all__ = [
    "Chain",
    "ChainInfo",
    "ChainState",
    "Gibbs",
    "Kernel",
    "MaskPredict",
    "MetropolisHastings",
    "Sampler",
    "SweepInfo",
    "allowed",
    "canvas",
    "energy",
    "random_start",
    "sweep",
    "terms",
    "variables",
    "warm_start",
]
