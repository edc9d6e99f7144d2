"""Word dropout (Bowman et al. 2016): cross-entropy with noisy inputs."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from unforced.decoding.teacher_forcing import gold_scores
from unforced.objectives.cross_entropy import negative_log_likelihood
from unforced.ops import random_streams
from unforced.options import Options, Probability
from unforced.protocols import StepDecoder
from unforced.types import Batch, Loss, Progress

REPLACED, CHOSEN = 0, 1  # numbers of the random streams: which tokens are replaced, and by which


@dataclass(frozen=True)
class WordDropout(Options):
    """Minimise −Σ_t log p(y*_t | ỹ_<t, x), where ỹ is the target y* with noise.

    Each ỹ_t is y*_t with probability 1 − ``rate``, else a token drawn from the same target.
    The decoder therefore learns to predict the target after wrong inputs.
    """

    rate: Probability = 0.1  # probability that an input token is replaced

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        keys = random_streams.keys(batch, rng)  # [B]: numbers depend on the example, not on the batch
        prefix, replaced = self.add_noise(batch, keys)
        loss = negative_log_likelihood(*gold_scores(model, replace(batch, prefix=prefix)))
        share = (replaced.sum().float(), batch.mask[:, 1:].sum().float())  # sum and count: batches add up
        return loss._replace(metrics={**loss.metrics, "replaced": share})

    def add_noise(self, batch: Batch, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return the noisy prefix [B,T], and a mask [B,T-1] of the tokens after the start symbol that changed."""
        steps = torch.arange(batch.prefix.shape[1] - 1, device=keys.device)
        coins = random_streams.uniform(random_streams.branch(keys, REPLACED)[:, None], steps)  # [B,T-1]
        picks = random_streams.uniform(random_streams.branch(keys, CHOSEN)[:, None], steps)
        lengths = batch.mask.sum(dim=1, keepdim=True) - 1  # without the last token, which is never an input
        tokens = batch.gold.gather(1, (picks * lengths).long())
        replaced = (coins < self.rate) & batch.mask[:, 1:]
        inputs = torch.where(replaced, tokens, batch.prefix[:, 1:])
        return torch.cat([batch.prefix[:, :1], inputs], dim=1), replaced
