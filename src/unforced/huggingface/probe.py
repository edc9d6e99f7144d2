"""Whether a wrapped model gives what the model itself gives: a few tokens, taken apart and whole."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.errors import InputError
from unforced.huggingface.decoder import Shared, WrappedCausal
from unforced.huggingface.parts import Output, in_short, named
from unforced.models.modes import evaluation_mode
from unforced.types import DecoderState

TOKENS = 5


def check(wrapped: Any) -> None:
    """Raise ``InputError`` naming the first ability that a wrapped decoder turns out to lack.

    Two abilities it can do without, and is told so: to go on over several positions at once, and left padding.
    """
    if any(parameter.is_meta for parameter in wrapped.parameters()):
        return
    with _quietly(wrapped):
        ids = _ordinary(wrapped)
        whole, state = _whole(wrapped, ids)
        inputs = wrapped.embed(ids)
        once = _scores(wrapped, state, inputs, [TOKENS])
        _agree(wrapped, once, whole, "take embeddings (inputs_embeds) for tokens and score features apart")
        steps = _scores(wrapped, state, inputs, [1] * TOKENS)
        _agree(wrapped, steps, whole, f"go on from its cache ({wrapped.parts.cache})")
        noise = max(10 * _apart(steps, whole), _precision(whole))
        wrapped.strides = _apart(_scores(wrapped, state, inputs, [1, 2, 2]), whole) <= noise
        if isinstance(wrapped, WrappedCausal):
            pads = torch.tensor([2, 0], device=ids.device)
            rows = wrapped.embed(torch.cat([ids.roll(2, dims=1), ids]))  # the first two of row 0 are padding
            found = _scores(wrapped, DecoderState(None, Shared(pads=pads)), rows, [3, 2])
            wrapped.pads_left = max(_apart(found[:1, 2:], whole[:, :-2]), _apart(found[1:], whole)) <= noise


def check_soft(wrapped: Any) -> None:
    """Raise ``InputError`` unless a masked model takes the embeddings of tokens as it takes tokens, hidden ones among them."""
    with _quietly(wrapped):
        ids = _ordinary(wrapped)
        ids[:, TOKENS // 2] = wrapped.mask_token
        whole = wrapped.model(input_ids=ids, return_dict=True).logits
        inputs = wrapped.embed_mix(F.one_hot(ids, wrapped.tokens or whole.shape[-1]).to(whole.dtype))
        found = wrapped.model(inputs_embeds=inputs, return_dict=True).logits
        _agree(wrapped, found, whole, "take embeddings (inputs_embeds) for tokens")


def _whole(wrapped: Any, ids: Tensor) -> tuple[Tensor, DecoderState]:
    """The scores [1,T,V] that the model itself gives to tokens, and the wrapper's state before them."""
    model = wrapped.model
    if isinstance(wrapped, WrappedCausal):
        return model(input_ids=ids, return_dict=True).logits, DecoderState(None, Shared())
    encoder = model.get_encoder()
    if getattr(encoder, "main_input_name", "input_ids") == "input_ids":
        memory = encoder(input_ids=ids.flip(1), return_dict=True)[0]
    else:
        parameter = next(encoder.parameters())
        memory = torch.ones(1, 3, encoder.config.hidden_size, dtype=parameter.dtype, device=ids.device)
    scores = model(encoder_outputs=Output((memory,)), decoder_input_ids=ids, return_dict=True).logits
    return scores, DecoderState(None, Shared(memory=memory))


def _scores(wrapped: Any, state: DecoderState, inputs: Tensor, sizes: list[int]) -> Tensor:
    """The scores of inputs that are fed in pieces of these sizes."""
    found = []
    for piece in inputs.split(sizes, dim=1):
        features, state = wrapped.advance(state, piece)
        found.append(wrapped.score(features))
    return torch.cat(found, dim=1)


def _ordinary(wrapped: Any) -> Tensor:
    """[1,T] tokens without a meaning of their own, all different if the vocabulary allows it."""
    special = {wrapped.symbols.pad, wrapped.symbols.bos, wrapped.symbols.eos, *wrapped.symbols.banned}
    size = wrapped.tokens or 64
    plain = [number for number in range(min(size, 64 + len(special))) if number not in special] or [0]
    chosen = [plain[n * 7 % len(plain)] for n in range(TOKENS)]
    return torch.tensor([chosen], device=next(wrapped.parameters()).device)


def _apart(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return float((found.double() - expected.double()).abs().max())


def _precision(scores: Tensor) -> float:
    """What rounding may make of scores; many models compute parts of them in single precision, whatever their own."""
    near = max(torch.finfo(scores.dtype).eps, torch.finfo(torch.float32).eps)
    return 16 * near * max(float(scores.abs().max()), 1e-6)


def _agree(wrapped: Any, found: Tensor, expected: Tensor, ability: str) -> None:
    near = min(64 * _precision(expected), 0.2 * float(expected.abs().max()))
    if not _apart(found, expected) <= near:
        raise InputError(f"{named(wrapped.model)} can't be wrapped: it does not {ability} as this library needs it")


@contextmanager
def _quietly(wrapped: Any) -> Iterator[None]:
    """Without gradients, dropout and traces; what fails is an ``InputError``."""
    try:
        with evaluation_mode(wrapped), torch.random.fork_rng(devices=[]):
            yield
    except (TypeError, ValueError, AttributeError, LookupError, RuntimeError) as error:
        raise InputError(
            f"{named(wrapped.model)} can't be wrapped: a trial run failed ({type(error).__name__}: {in_short(error)})"
        ) from error
