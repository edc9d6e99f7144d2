"""Score given outputs: feed each token's predecessors and read the model's scores of the tokens."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from unforced.ops import state_rows
from unforced.ops.masks import length_mask, scatter_mask, widened
from unforced.protocols import StepDecoder, SupportsAdvanceAt, require
from unforced.types import Batch, DecoderState

CHUNK = 2048  # tokens that are projected to the vocabulary at a time


def gold_scores(model: StepDecoder, batch: Batch, state: DecoderState | None = None) -> tuple[Tensor, Tensor]:
    """Return the scores [N,V] and the targets [N] at the N positions of ``batch.mask``, with ``batch.prefix`` as input.

    ``state`` is the result of ``model.start(batch)`` if that has been called already.
    """
    require(model, "teacher forcing", "start", "embed", "advance", "score")
    state = model.start(batch) if state is None else state
    features, _ = model.advance(state, model.embed(batch.prefix))
    return model.score(features[batch.mask]), batch.gold[batch.mask]


def output_features(
    model: StepDecoder,
    batch: Batch,
    state: DecoderState,
    outputs: Tensor,
    where: Tensor,
    examples: Tensor | None = None,
) -> Tensor:
    """Return the features [N,H] that predict the tokens of ``outputs`` [R,T] at the N positions of the mask ``where``.

    Row r is an output of example ``examples[r]``, or of example r without ``examples``. ``state`` is the result of
    ``model.start(batch)``.
    """
    first = batch.prefix[:, :1]
    if examples is not None:
        first, state = first[examples], state_rows.keep(state, examples)
    features, _ = model.advance(state, model.embed(torch.cat([first, outputs[:, :-1]], dim=1)))
    return features[where]


def score_outputs(
    model: StepDecoder,
    batch: Batch,
    outputs: Tensor,
    lengths: Tensor,
    examples: Tensor | None = None,
    state: DecoderState | None = None,
) -> Tensor:
    """Return log p(y | x) [R] of outputs [R,T] with ``lengths`` [R] tokens each, end symbol included.

    Row r is an output of example ``examples[r]``; without ``examples`` each example has R/B adjacent rows. Outputs of
    up to 1, 2, 4, 8, … tokens are fed together, so that a few long outputs do not pad all others.
    """
    state = model.start(batch) if state is None else state
    if examples is None:
        examples = torch.arange(len(outputs), device=outputs.device) // (len(outputs) // max(1, len(batch)))
    sizes = torch.tensor([(max(n, 1) - 1).bit_length() for n in lengths.tolist()])
    order, sums = [], []
    for size in sizes.unique().tolist():
        rows = (sizes == size).nonzero().squeeze(1).to(outputs.device)
        mask = length_mask(lengths[rows], max(1, int(lengths[rows].max())))
        tokens = outputs[rows, : mask.shape[1]].masked_fill(~mask, batch.symbols.pad)
        features = output_features(model, batch, state, tokens, mask, examples[rows])
        sums.append(scatter_mask(token_log_probs(model, features, tokens[mask]), mask).sum(dim=1))
        order.append(rows)
    return torch.cat(sums)[torch.cat(order).argsort()] if sums else torch.zeros(0, device=outputs.device)


def token_log_probs(model: StepDecoder, features: Tensor, tokens: Tensor) -> Tensor:
    """Return log p [N] of tokens [N] at features [N,H], in float32 at least.

    More than ``CHUNK`` tokens are projected in parts, and again in the backward pass, so that their scores [N,V] never
    are in memory at once.
    """

    def log_probs(features: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        return (-F.cross_entropy(widened(model.score(features)), tokens, reduction="none"),)

    return score_in_chunks(log_probs, features, tokens)[0]


def score_in_chunks(
    compute: Callable[[Tensor, Tensor], tuple[Tensor, ...]], features: Tensor, tokens: Tensor, limit: int = CHUNK
) -> tuple[Tensor, ...]:
    """Return ``compute(features [N,H], tokens [N])``, in chunks if that is long.

    The chunks are checkpointed, and used for more than ``limit`` tokens.
    """
    if len(tokens) <= limit:
        return compute(features, tokens)
    parts = zip(features.split(CHUNK), tokens.split(CHUNK))
    chunks = [checkpoint(compute, *part, use_reentrant=False) for part in parts]
    return tuple(torch.cat(values) for values in zip(*chunks))


def advance_at(model: StepDecoder, state: DecoderState, inputs: Tensor, where: Tensor) -> Tensor:
    """Return the features [N,H] of ``model.advance`` at the N positions where the mask ``where`` [R,T] is true."""
    if isinstance(model, SupportsAdvanceAt):
        return model.advance_at(state, inputs, where)
    return model.advance(state, inputs)[0][where]
