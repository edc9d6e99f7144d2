"""Numbers for examples that have none: a hash of what is in them.

A data set of the user's own gives batches without the examples' numbers. What an objective draws for an example
(``unforced.ops.random_streams``) must still be the same in any micro-batch, process and padding, so the example's content stands in.
"""

from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.errors import InputError
from unforced.huggingface.decoder import WrappedCausal, WrappedEncoderDecoder, WrappedModel
from unforced.huggingface.masked import WrappedMasked
from unforced.ops.masks import length_mask
from unforced.ops.random_streams import GAMMA, mix64
from unforced.types import Batch, Symbols


def numbered(batch: Batch) -> Batch:
    """The batch with ``ids`` that are a function of each example's own tokens; padding changes nothing."""
    total = content(batch.gold, batch.mask) + mix64(batch.prefix[:, 0])
    if batch.source is not None:
        source = batch.source
        if source.is_floating_point():
            source = source.float().flatten(1).contiguous().view(torch.int32).long()
        source = source.reshape(len(source), -1)
        there = batch.source_mask
        if there is None or there.shape != source.shape:
            there = torch.ones_like(source, dtype=torch.bool)
        total = mix64(total) + content(source, there)
    return replace(batch, ids=mix64(total))


def content(tokens: Tensor, there: Tensor) -> Tensor:
    """A hash [B] of the tokens [B,T] that are ``there``, in their order, wherever between padding they stand.

    >>> left, right = torch.tensor([[0, 5, 6]]), torch.tensor([[5, 6, 0]])
    >>> bool(content(left, left > 0) == content(right, right > 0))
    True
    >>> bool(content(left, left > 0) == content(left.flip(1), left.flip(1) > 0))
    False
    """
    places = there.long().cumsum(dim=1)
    return (mix64(mix64(tokens) + places * GAMMA) * there).sum(dim=1)


# Batches of what a data collator gives: ``input_ids``, ``attention_mask`` and ``labels`` with −100 where nothing is
# scored.

IGNORED = -100  # the label of a position that is not scored


def batch(
    model: Any,
    input_ids: Any,
    attention_mask: Any = None,
    labels: Any = None,
    *,
    decoder_input_ids: Any = None,
    token_type_ids: Any = None,
    ids: Any = None,
) -> Batch:
    """A ``Batch`` for a wrapped model, of tensors or of lists that make some. Without labels it is one to decode.

    - Encoder-decoder models: ``input_ids`` are the sources and labels the outputs. Any other main input of the encoder
      (pixels, audio features) may stand for ``input_ids``.
    - Causal models: labels are the input ids, or −100 where a token is given and not learnt. What is scored becomes the
      gold, all before it the prompt. The first token of a row has nothing before it and is never scored. A row whose
      scored tokens lie in several pieces (the turns of a dialogue) becomes an example for each, with all before it as
      its prompt; one without any is left out if others have some. Padding may be on either side.
    - Masked models: the gold are the labels, and the input ids where there is none; what counts is what has a label.
      ``prefix`` are the input ids.

    ``token_type_ids``, which many tokenizers give, must all be 0: one text. ``ids`` are the examples' numbers in their split.
    """
    given = (input_ids, attention_mask, labels, decoder_input_ids, token_type_ids, ids)
    try:
        input_ids, attention_mask, labels, decoder_input_ids, kinds, ids = map(_tensor, given)
    except (TypeError, ValueError) as error:
        raise InputError(f"a batch is made of tensors, or of lists of one length: {error}") from None
    if kinds is not None and bool(kinds.any()):
        raise InputError("token_type_ids tell two texts apart, and models are given one: leave them out")
    tensors = (("attention_mask", attention_mask), ("labels", labels))
    if isinstance(model, WrappedEncoderDecoder):
        _check_shapes(input_ids, tensors[:1])
        return _encoder_decoder(model, input_ids, attention_mask, labels, decoder_input_ids, ids)
    _check_shapes(input_ids, tensors)
    if input_ids.dim() != 2 or input_ids.is_floating_point():
        raise InputError(f"input_ids must be token ids [B,T], not {input_ids.dtype} of shape {tuple(input_ids.shape)}")
    everything = torch.ones_like(input_ids, dtype=torch.bool)
    attended = everything if attention_mask is None else attention_mask.bool()
    if isinstance(model, WrappedCausal | WrappedMasked):
        _check_ids("input_ids", input_ids, model)
    if isinstance(model, WrappedCausal):
        return causal_batch(model.symbols, input_ids, attended, labels, ids)
    if isinstance(model, WrappedMasked):
        return masked_batch(model.symbols, input_ids, attended, labels, ids)
    raise InputError(f"batches are made for a model that wrap(…) gave, not for {type(model).__name__}")


def _tensor(given: Any) -> Tensor | None:
    return None if given is None else torch.as_tensor(given)


def _check_shapes(input_ids: Tensor, tensors: Any) -> None:
    for name, tensor in tensors:
        if tensor is not None and tensor.shape != input_ids.shape[: tensor.dim()]:
            raise InputError(
                f"{name} is {tuple(tensor.shape)} but input_ids are {tuple(input_ids.shape)}: they must agree"
            )


def _check_ids(name: str, ids: Tensor, model: WrappedModel) -> None:
    """Raise ``InputError`` where ids have no embedding."""
    if ids.numel() and (int(ids.min()) < 0 or (model.tokens and int(ids.max()) >= model.tokens)):
        raise InputError(f"{name} must lie between 0 and {(model.tokens or 0) - 1}, the last token of the model")


def _nothing(rows: Tensor, symbols: Symbols) -> tuple[Tensor, Tensor]:
    """Gold and mask of a batch to decode."""
    gold = torch.full((len(rows), 1), symbols.pad, dtype=torch.long, device=rows.device)
    return gold, torch.zeros_like(gold, dtype=torch.bool)


def _encoder_decoder(
    model: WrappedEncoderDecoder,
    inputs: Tensor,
    attention_mask: Tensor | None,
    labels: Tensor | None,
    decoder_input_ids: Tensor | None,
    ids: Tensor | None,
) -> Batch:
    symbols = model.symbols
    rest: dict[str, Any] = {
        "source": inputs,
        "source_mask": None if attention_mask is None else attention_mask.bool(),
        "ids": ids,
    }
    if labels is None:
        return Batch.of_gold(*_nothing(inputs, symbols), symbols, **rest)
    if labels.dim() != 2 or len(labels) != len(inputs):
        raise InputError(f"labels must be [B,T] with B = {len(inputs)}, not {tuple(labels.shape)}")
    if model.prompt:
        given = labels.new_tensor([*model.prompt[1:], symbols.bos])
        begins = (labels[:, : len(given)] == given).all(dim=1)
        if bool(begins.any()) and not bool(begins.all()):
            raise InputError(f"some labels begin with {given.tolist()}, which the decoder is given, and others don't")
        if bool(begins.any()):
            labels = labels[:, len(given) :]
    mask = labels != IGNORED
    if bool((mask[:, 1:] & ~mask[:, :-1]).any()):
        raise InputError("labels may be −100 behind the end of an output only, but have it before a scored token")
    size = max(1, int(mask.sum(dim=1).max())) if mask.numel() else 1
    if not labels.shape[1]:
        return Batch.of_gold(*_nothing(inputs, symbols), symbols, **rest)
    gold = labels.masked_fill(~mask, symbols.pad)
    _check_ids("labels", gold, model)
    made = Batch.of_gold(gold[:, :size], mask[:, :size], symbols, **rest)
    shift = getattr(model.model, "prepare_decoder_input_ids_from_labels", None)
    if decoder_input_ids is None and shift is not None and not model.prompt:
        with suppress(AttributeError, ValueError):  # where the configuration has no start symbol
            decoder_input_ids = shift(labels=labels)
    if decoder_input_ids is None:
        return made
    prefix = decoder_input_ids[:, :size]
    if prefix.shape != made.prefix.shape or (prefix != made.prefix)[:, 1:][made.mask[:, 1:]].any():
        raise InputError("decoder_input_ids must be the labels, shifted by one position")
    return replace(made, prefix=torch.cat([prefix[:, :1], made.prefix[:, 1:]], dim=1))


def causal_batch(
    symbols: Symbols, input_ids: Tensor, attended: Tensor, labels: Tensor | None, ids: Tensor | None
) -> Batch:
    """A batch for a causal model, of tensors [B,T]."""
    order = attended.byte().argsort(dim=1, descending=True, stable=True)
    tokens, lengths = input_ids.gather(1, order), attended.sum(dim=1)  # padding at the end
    if not tokens.shape[1] or not bool(lengths.all()):
        raise InputError("a prompt needs at least one token: put the start symbol there where there is no other")
    if labels is None:
        rows = torch.arange(len(tokens), device=tokens.device)
        first, ends = lengths, lengths
    else:
        rows, first, ends = _pieces(tokens, labels, attended, order, lengths)
    gold_mask = length_mask(ends - first, max(1, int((ends - first).max())))
    at = first.unsqueeze(1) + torch.arange(gold_mask.shape[1], device=tokens.device)
    gold = tokens[rows].gather(1, at.clamp(max=tokens.shape[1] - 1)).masked_fill(~gold_mask, symbols.pad)
    width = int(first.max()) - 1  # prompts but for their last tokens, padded at the left
    at = first.unsqueeze(1) - 1 - width + torch.arange(width, device=tokens.device)
    prompts = tokens[rows].gather(1, at.clamp(min=0)).masked_fill(at < 0, symbols.pad)
    made = Batch.of_gold(
        gold, gold_mask, symbols, source=prompts, source_mask=at >= 0, ids=None if ids is None else ids[rows]
    )
    last = tokens[rows].gather(1, first.unsqueeze(1) - 1)
    return replace(made, prefix=torch.cat([last, made.prefix[:, 1:]], dim=1))


def _pieces(
    tokens: Tensor, labels: Tensor, attended: Tensor, order: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The runs of scored tokens: their rows, where they begin and where they end, [N] each."""
    wanted = labels.gather(1, order)
    if bool(((labels != IGNORED) & ~attended).any()):
        raise InputError("labels score positions that attention_mask leaves out: give padding the label −100")
    scored = wanted != IGNORED
    scored[:, 0] = False  # nothing stands before it
    if bool((wanted != tokens)[scored].any()):
        raise InputError("the labels of a causal model must be its input_ids, or −100 where nothing is scored")
    edges = F.pad(scored.long(), (1, 1)).diff(dim=1)  # [B,T+1]: 1 where a run begins, −1 behind its end
    rows, first = (edges == 1).nonzero(as_tuple=True)
    ends = (edges == -1).nonzero(as_tuple=True)[1]
    if not len(rows):
        return torch.arange(len(tokens), device=tokens.device), lengths, lengths
    return rows, first, ends


def masked_batch(
    symbols: Symbols, input_ids: Tensor, attended: Tensor, labels: Tensor | None, ids: Tensor | None
) -> Batch:
    """A batch for a masked model, of tensors [B,T]."""
    if labels is None:
        special = torch.tensor(symbols.banned, dtype=torch.long, device=input_ids.device)
        gold, mask = input_ids, attended & ~torch.isin(input_ids, special)
    else:
        mask = labels != IGNORED
        gold = torch.where(mask, labels, input_ids)
    return Batch(
        prefix=input_ids,
        gold=gold,
        mask=mask,
        symbols=symbols,
        source=input_ids,
        source_mask=attended,
        length=attended.sum(dim=1),
        ids=ids,
    )
