"""Energies of sequences from masked models, and samplers for their distributions.

A sampler is a frozen dataclass. For a model and a batch it returns a `Kernel` of two functions, ``init`` and ``step``.

>>> import torch
>>> from unforced.energy import MetropolisHastings, energy, sweep
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

from typing import TYPE_CHECKING

from unforced.lazy import lazy_exports

if TYPE_CHECKING:
    from unforced.energy.chain import Chain as Chain
    from unforced.energy.diagnostics import ChainDiagnostics as ChainDiagnostics
    from unforced.energy.diagnostics import Traces as Traces
    from unforced.energy.diagnostics import diagnose_chains as diagnose_chains
    from unforced.energy.energies import allowed as allowed
    from unforced.energy.energies import canvas as canvas
    from unforced.energy.energies import energy as energy
    from unforced.energy.energies import terms as terms
    from unforced.energy.energies import variables as variables
    from unforced.energy.gibbs import Gibbs as Gibbs
    from unforced.energy.mask_predict import MaskPredict as MaskPredict
    from unforced.energy.mask_predict import random_start as random_start
    from unforced.energy.mask_predict import warm_start as warm_start
    from unforced.energy.metropolis_hastings import MetropolisHastings as MetropolisHastings
    from unforced.energy.samplers import SweepInfo as SweepInfo
    from unforced.energy.samplers import sweep as sweep
    from unforced.protocols import Sampler as Sampler
    from unforced.types import ChainInfo as ChainInfo
    from unforced.types import ChainState as ChainState
    from unforced.types import Kernel as Kernel
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
