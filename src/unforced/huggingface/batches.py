"""Turn the output of a data collator into a ``Batch``: ``input_ids``, ``attention_mask``, and ``labels`` or −100."""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.decoding.search import limits
from unforced.errors import InputError
from unforced.huggingface.decoder import WrappedCausal, WrappedEncoderDecoder
from unforced.huggingface.masked import WrappedMasked
from unforced.huggingface.vocabulary import ModelVocabulary
from unforced.ops.masks import length_mask
from unforced.ops.random_streams import GAMMA, mix64
from unforced.types import Batch, Symbols

NOT_SCORED = -100  # the label of a position that is not scored


def make_batch(
    model: Any,
    input_ids: Any,
    attention_mask: Any = None,
    labels: Any = None,
    *,
    decoder_input_ids: Any = None,
    token_type_ids: Any = None,
    ids: Any = None,
) -> Batch:
    """Return a ``Batch`` on a wrapped model's device, from tensors or lists; without labels, a batch to decode.

    - Encoder-decoder models: ``input_ids`` are the sources and labels the outputs. Another main input of the encoder
      (pixels, audio features) may replace ``input_ids``.
    - Causal models: labels are the input ids, or −100 where a token is given and not learned. The scored tokens are the
      gold, and everything before them is the prompt. The first token of a row is never scored. A row with several
      runs of scored tokens (a dialogue) becomes one example per run. Rows without scored tokens are left out if
      others have some. Padding may be on either side.
    - Masked models: the gold are the labels, and the input ids where there is no label. Positions with a label count.

    Args:
        token_type_ids: Must be 0 everywhere, as for a single text.
        ids: The numbers of the examples in their split.
    """
    given = (input_ids, attention_mask, labels, decoder_input_ids, token_type_ids, ids)
    device = next(model.parameters()).device if isinstance(model, nn.Module) else None
    try:
        tensors = [None if value is None else torch.as_tensor(value, device=device) for value in given]
    except (TypeError, ValueError) as error:
        raise InputError(f"a batch needs tensors, or lists of equal length: {error}") from None
    inputs, attention_mask, labels, decoder_input_ids, token_type_ids, ids = tensors
    assert inputs is not None
    if token_type_ids is not None and bool(token_type_ids.any()):
        raise InputError("token_type_ids must be 0: pairs of texts are not supported")
    attended = None if attention_mask is None else attention_mask.bool()
    if isinstance(model, WrappedEncoderDecoder):
        batch = _encoder_decoder_batch(model, inputs, attended, labels, decoder_input_ids, ids)
        return with_limits(batch, model.vocabulary)
    if inputs.dim() != 2 or inputs.is_floating_point():
        raise InputError(f"input_ids must be token ids [B,T], not {inputs.dtype} of shape {tuple(inputs.shape)}")
    for name, tensor in (("attention_mask", attended), ("labels", labels)):
        if tensor is not None and tensor.shape != inputs.shape:
            raise InputError(f"{name} has the shape {tuple(tensor.shape)}, but input_ids {tuple(inputs.shape)}")
    attended = torch.ones_like(inputs, dtype=torch.bool) if attended is None else attended
    if isinstance(model, WrappedCausal):
        return with_limits(causal_batch(model.symbols, inputs, attended, labels, ids), model.vocabulary)
    if isinstance(model, WrappedMasked):
        return masked_batch(model.symbols, inputs, attended, labels, ids)
    raise InputError(f"make_batch needs a model from unforced.wrap, got {type(model).__name__}")


def _encoder_decoder_batch(
    model: WrappedEncoderDecoder,
    inputs: Tensor,
    attended: Tensor | None,
    labels: Tensor | None,
    decoder_input_ids: Tensor | None,
    ids: Tensor | None,
) -> Batch:
    symbols, prompt = model.symbols, model.vocabulary.prompt
    rest: dict[str, Any] = {"source": inputs, "source_mask": attended, "ids": ids}
    if labels is not None and prompt:  # cut off the start tokens that the decoder is fed
        start = labels.new_tensor([*prompt[1:], symbols.bos])
        if bool((labels[:, : len(start)] == start).all()):
            labels = labels[:, len(start) :]
    if labels is None or not labels.shape[1]:
        gold = torch.full((len(inputs), 1), symbols.pad, dtype=torch.long, device=inputs.device)
        return Batch.of_gold(gold, torch.zeros_like(gold, dtype=torch.bool), symbols, **rest)
    mask = labels != NOT_SCORED
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise InputError("labels of an encoder-decoder may be −100 only at the end: pad them at the right")
    size = max(1, int(mask.sum(dim=1).max()))
    gold = labels.masked_fill(~mask, symbols.pad)[:, :size]
    batch = Batch.of_gold(gold, mask[:, :size], symbols, **rest)
    shift = getattr(model.model, "prepare_decoder_input_ids_from_labels", None)
    if decoder_input_ids is None and shift is not None and not prompt:
        with suppress(AttributeError, ValueError):  # a configuration without a start symbol
            decoder_input_ids = shift(labels=labels)
    if decoder_input_ids is None:
        return batch
    prefix = decoder_input_ids[:, :size]
    if prefix.shape != batch.prefix.shape or (prefix != batch.prefix)[:, 1:][batch.mask[:, 1:]].any():
        raise InputError("decoder_input_ids must be the labels, shifted by one position")
    return replace(batch, prefix=torch.cat([prefix[:, :1], batch.prefix[:, 1:]], dim=1))


def with_limits(batch: Batch, vocabulary: ModelVocabulary) -> Batch:
    """Return the batch with default limits of its outputs that keep to the positions of the model's decoder."""
    if vocabulary.positions is None or batch.symbols.eos is None:
        return batch
    given: Any = len(vocabulary.prompt)
    if vocabulary.kind == "causal" and batch.source_mask is not None:
        given = batch.source_mask.sum(dim=1)
    return replace(batch, length=limits(batch).clamp(max=vocabulary.positions - given))


def causal_batch(
    symbols: Symbols, input_ids: Tensor, attended: Tensor, labels: Tensor | None, ids: Tensor | None
) -> Batch:
    """Return a batch for a causal model, from tensors [B,T]."""
    order = attended.byte().argsort(dim=1, descending=True, stable=True)
    tokens, lengths = input_ids.gather(1, order), attended.sum(dim=1)  # padding at the right
    if not tokens.shape[1] or not bool(lengths.all()):
        raise InputError("a prompt is empty: it needs at least one token, such as the start symbol")
    rows, first, ends = torch.arange(len(tokens), device=tokens.device), lengths, lengths
    if labels is not None:
        rows, first, ends = _scored_runs(tokens, labels, attended, order, lengths)
    gold_mask = length_mask(ends - first, max(1, int((ends - first).max())))
    at = first.unsqueeze(1) + torch.arange(gold_mask.shape[1], device=tokens.device)
    gold = tokens[rows].gather(1, at.clamp(max=tokens.shape[1] - 1)).masked_fill(~gold_mask, symbols.pad)
    width = int(first.max()) - 1  # prompts without their last tokens, padded at the left
    at = first.unsqueeze(1) - 1 - width + torch.arange(width, device=tokens.device)
    prompts = tokens[rows].gather(1, at.clamp(min=0)).masked_fill(at < 0, symbols.pad)
    ids = None if ids is None else ids[rows]
    batch = Batch.of_gold(gold, gold_mask, symbols, source=prompts, source_mask=at >= 0, ids=ids)
    last = tokens[rows].gather(1, first.unsqueeze(1) - 1)
    return replace(batch, prefix=torch.cat([last, batch.prefix[:, 1:]], dim=1))


def _scored_runs(
    tokens: Tensor, labels: Tensor, attended: Tensor, order: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the runs of scored tokens: their rows, starts and ends, [N] each."""
    if bool(((labels != NOT_SCORED) & ~attended).any()):
        raise InputError("some labels are at positions that attention_mask hides: set the labels of padding to −100")
    labels = labels.gather(1, order)
    scored = labels != NOT_SCORED
    scored[:, 0] = False  # nothing precedes it
    if bool((labels != tokens)[scored].any()):
        raise InputError("the labels of a causal model must be its input_ids, or −100 where nothing is scored")
    edges = F.pad(scored.long(), (1, 1)).diff(dim=1)  # [B,T+1]: 1 at the start of a run, −1 after its end
    rows, first = (edges == 1).nonzero(as_tuple=True)
    if not len(rows):
        return torch.arange(len(tokens), device=tokens.device), lengths, lengths
    return rows, first, (edges == -1).nonzero(as_tuple=True)[1]


def masked_batch(
    symbols: Symbols, input_ids: Tensor, attended: Tensor, labels: Tensor | None, ids: Tensor | None
) -> Batch:
    """Return a batch for a masked model, from tensors [B,T]."""
    if labels is None:
        special = torch.tensor(symbols.banned, dtype=torch.long, device=input_ids.device)
        gold, mask = input_ids, attended & ~torch.isin(input_ids, special)
    else:
        mask = labels != NOT_SCORED
        gold = torch.where(mask, labels, input_ids)
    parts = {"source": input_ids, "source_mask": attended, "length": attended.sum(dim=1), "ids": ids}
    return Batch(prefix=input_ids, gold=gold, mask=mask, symbols=symbols, **parts)


# ---- Example ids ----
#
# Data sets of a Trainer do not number their examples. A hash of an example's content takes the place of its number, so
# that what an objective draws for an example does not depend on micro-batches, processes and padding.


def with_content_ids(batch: Batch) -> Batch:
    """Return the batch with ``ids`` that depend on each example's tokens only."""
    total = content_hash(batch.gold, batch.mask) + mix64(batch.prefix[:, 0])
    if batch.source is not None:
        source = batch.source
        if source.is_floating_point():
            source = source.float().flatten(1).contiguous().view(torch.int32).long()
        source = source.reshape(len(source), -1)
        mask = batch.source_mask
        if mask is None or mask.shape != source.shape:
            mask = torch.ones_like(source, dtype=torch.bool)
        total = mix64(total) + content_hash(source, mask)
    return replace(batch, ids=mix64(total))


def content_hash(tokens: Tensor, mask: Tensor) -> Tensor:
    """Return a hash [B] of the tokens [B,T] under the mask, which depends on their order but not on padding.

    >>> left, right = torch.tensor([[0, 5, 6]]), torch.tensor([[5, 6, 0]])
    >>> bool(content_hash(left, left > 0) == content_hash(right, right > 0))
    True
    >>> bool(content_hash(left, left > 0) == content_hash(left.flip(1), left.flip(1) > 0))
    False
    """
    positions = mask.long().cumsum(dim=1)
    return (mix64(mix64(tokens) + positions * GAMMA) * mask).sum(dim=1)
