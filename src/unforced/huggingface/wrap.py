"""``wrap``: which protocol a Hugging Face model can serve, and a wrapper that does."""

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from unforced.errors import InputError
from unforced.huggingface import probe
from unforced.huggingface.decoder import WrappedCausal, WrappedEncoderDecoder
from unforced.huggingface.masked import WrappedMasked
from unforced.huggingface.parts import (
    ROUTES,
    Specials,
    decoder_symbols,
    is_encoder_decoder,
    masked_symbols,
    named,
    output_layer,
)


def wrap(
    hf_model: Any,
    *,
    tokenizer: Any = None,
    start: int | Sequence[int] | None = None,
    pad: int | None = None,
    eos: int | None = None,
    mask: int | None = None,
    banned: Iterable[int] = (),
    check: bool = True,
) -> Any:
    """A Hugging Face model as a ``StepDecoder`` (encoder-decoder and causal models) or a ``MaskedModel`` (masked models).

    Parameters are shared, not copied: ``wrap(m).model is m``. Special tokens are those of the ``tokenizer``, or else of the
    model's configuration; ``pad``, ``eos``, ``start`` (the decoder's first input) and ``mask`` (the mask token) go before both.
    ``start`` may be several ids, of which an output is always given all, such as the code of a language behind a start
    symbol. Padding may be EOS, but a soft beam needs another; where there is none, the start symbol is padding and never
    emitted. ``banned`` are further tokens never to be emitted, beside those that the model's own settings for ``generate``
    suppress. What else these settings say is not followed, and of several ids for EOS the first is taken; a warning names them.

    ``check`` runs a few tokens through the model, to see that what is taken apart here adds up to what the model itself
    gives. What a model can't do is an ``InputError`` that names it.
    """
    if not isinstance(hf_model, nn.Module) or not hasattr(hf_model, "config"):
        raise InputError(f"wrap takes a model of the transformers library, not {type(hf_model).__name__}")
    known = Specials(hf_model, tokenizer)
    if not is_encoder_decoder(hf_model) and not _generates(hf_model):
        masked = _masked(hf_model, known, pad, mask, banned)
        masked.tokenizer = tokenizer
        return masked
    given = (start,) if isinstance(start, int) else tuple(start or ())
    symbols = decoder_symbols(hf_model, known, given[-1] if given else None, pad, eos, banned)
    unheeded = [name for name in known.unheeded() if eos is None or not name.startswith("eos")]
    if start is not None:  # which says what outputs begin with
        unheeded = [name for name in unheeded if name != "forced_bos_token_id"]
    if unheeded:
        warnings.warn(
            f"decoders don't follow these settings of {named(hf_model)} for generate: {', '.join(unheeded)}",
            stacklevel=2,
        )
    if is_encoder_decoder(hf_model):
        wrapped: Any = WrappedEncoderDecoder(hf_model, symbols, given[:-1])
    else:
        wrapped = WrappedCausal(hf_model, symbols)
    wrapped.tokenizer = tokenizer
    if check:
        probe.check(wrapped)
    return wrapped


def _generates(model: Any) -> bool:
    return bool(getattr(model, "can_generate", lambda: False)())


def _masked(model: Any, known: Specials, pad: int | None, mask: int | None, banned: Iterable[int]) -> WrappedMasked:
    if output_layer(model) is None:
        raise InputError(f"{named(model)} has no output layer to score tokens with: load it by {ROUTES}")
    return WrappedMasked(model, *masked_symbols(model, known, pad, mask, banned))
