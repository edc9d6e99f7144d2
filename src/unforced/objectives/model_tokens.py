"""The model's own tokens as inputs: which positions get one, and which token."""

from typing import Literal

import torch
from torch import Tensor

from unforced.ops import random_streams
from unforced.protocols import StepDecoder
from unforced.types import Batch, Loss

Pick = Literal["sample", "argmax"]
COINS, PICKS = 0, 1  # the random streams of an example
CHUNK = 512  # positions that are projected to the vocabulary at once, to limit memory


def draw_replaced(keys: Tensor, batch: Batch, gold: float) -> Tensor:
    """Draw which target tokens are replaced by the model's tokens as inputs, each with probability 1 − ``gold``.

    Returns a mask [B,T], true at t if ``prefix[:, t + 1]`` is replaced. The last token of an example is never an input.
    """
    t = torch.arange(batch.mask.shape[1], device=keys.device)
    coins = random_streams.uniform(random_streams.branch(keys, COINS).unsqueeze(1), t) >= gold
    followed = torch.zeros_like(batch.mask)
    followed[:, :-1] = batch.mask[:, :-1] & batch.mask[:, 1:]
    return coins & followed


def pick_tokens(
    model: StepDecoder, features: Tensor, uniforms: Tensor, banned: Tensor, pick: Pick, temperature: float = 1.0
) -> Tensor:
    """Return the model's tokens [N] at features [N,H]: the best, or those drawn with the uniform numbers [N]."""
    tokens = []
    for chunk, numbers in zip(features.split(CHUNK), uniforms.split(CHUNK)):
        scores = model.score(chunk).index_fill(-1, banned, -torch.inf)
        if pick == "argmax":
            tokens.append(scores.argmax(dim=-1))
        else:
            exact = torch.promote_types(scores.dtype, torch.float32)
            scores = scores if temperature == 1 else scores.to(exact) / temperature
            tokens.append(random_streams.draw(torch.softmax(scores, dim=-1, dtype=exact), numbers))
    return torch.cat(tokens)


def add_fed_metric(loss: Loss, batch: Batch, replaced: Tensor) -> Loss:
    """Add the metric ``fed``: the share of inputs after the start symbol that are the model's tokens."""
    last = batch.mask.any(dim=1).sum()  # the last tokens, which are never inputs
    count = (batch.mask.sum() - last).float()
    return loss._replace(metrics={**loss.metrics, "fed": (replaced.sum().float(), count)})
