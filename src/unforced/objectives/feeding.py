"""What the forms of scheduled sampling share: whose tokens are fed, which tokens the model picks, and how it is asked."""

from typing import Literal

import torch
from torch import Tensor

from unforced.ops import random_streams
from unforced.protocols import StepDecoder
from unforced.types import Batch, Loss, Symbols

Pick = Literal["sample", "argmax"]
COINS, PICKS = 0, 1  # the random streams of an example
CHUNK = 512  # positions that are projected together: more would only cost memory


def coins(keys: Tensor, batch: Batch, gold: float) -> Tensor:
    """For each token that is fed after the start symbol, whether it is the model's: a coin each.

    [B,T] bool, true at t where ``prefix[:, t + 1]``, which is the gold at t, gives way to the model's pick at t; with
    probability 1 − ``gold``, and never behind the end or for the last token, which nobody is fed.
    """
    t = torch.arange(batch.mask.shape[1], device=keys.device)
    tossed = random_streams.uniform(random_streams.branch(keys, COINS).unsqueeze(1), t) >= gold
    followed = torch.zeros_like(batch.mask)
    followed[:, :-1] = batch.mask[:, :-1] & batch.mask[:, 1:]
    return tossed & followed


def emittable(scores: Tensor, symbols: Symbols) -> Tensor:
    """The scores with −inf for tokens that no model may emit."""
    if not symbols.banned:
        return scores
    banned = torch.tensor(sorted(set(symbols.banned)), device=scores.device)
    return scores.index_fill(-1, banned, float("-inf"))


def pick(
    model: StepDecoder, features: Tensor, uniforms: Tensor, symbols: Symbols, how: Pick, temperature: float = 1.0
) -> Tensor:
    """The model's tokens [N] at features [N,H]: the best, or those that uniform numbers [N] draw.

    Features are projected a few at a time, so that the scores of all never exist together.
    """
    found = []
    for some, numbers in zip(features.split(CHUNK), uniforms.split(CHUNK)):
        scores = emittable(model.score(some), symbols)
        if how == "argmax":
            found.append(scores.argmax(dim=-1))
        else:
            exact = torch.promote_types(scores.dtype, torch.float32)
            scores = scores if temperature == 1 else scores.to(exact) / temperature
            found.append(random_streams.draw(torch.softmax(scores, dim=-1, dtype=exact), numbers))
    return torch.cat(found)


def fed(loss: Loss, batch: Batch, replaced: Tensor) -> Loss:
    """The loss with one metric more: the share of tokens fed after the start symbol that are the model's."""
    last = batch.mask.any(dim=1).sum()  # nobody is fed the last token
    count = (batch.mask.sum() - last).float()
    return loss._replace(metrics={**loss.metrics, "fed": (replaced.sum().float(), count)})
