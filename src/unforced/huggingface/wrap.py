"""``wrap``: give a transformers model the protocols of this library."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.huggingface.decoder import SharedState, WrappedCausal, WrappedDecoder, WrappedEncoderDecoder
from unforced.huggingface.masked import WrappedMasked
from unforced.huggingface.model_spec import HuggingFace
from unforced.huggingface.parts import (
    AUTO_CLASSES,
    ONLY,
    FeaturesOutput,
    base_model,
    class_name,
    is_encoder_decoder,
    one_line,
    output_layer,
)
from unforced.huggingface.vocabulary import ModelKind, ModelVocabulary
from unforced.ops import state_rows
from unforced.types import Batch, DecoderState


def wrap(
    hf_model: Any,
    *,
    tokenizer: Any = None,
    start: int | Sequence[int] | None = None,
    pad: int | None = None,
    eos: int | None = None,
    mask: int | None = None,
    banned: Iterable[int] = (),
) -> Any:
    """Wrap a transformers model as a ``StepDecoder`` (encoder-decoder, causal) or a ``MaskedModel`` (masked).

    Parameters are shared, not copied: ``wrap(m).model is m``. Special tokens come from the arguments, else from the
    tokenizer, else from the model's configurations. Of these, decoders follow only special tokens and suppressed
    tokens; of several end tokens they use the first.

    Args:
        hf_model: The model, with its output layer; or a folder that ``save_pretrained`` wrote, with its tokenizer.
        tokenizer: Its tokenizer.
        start: The decoder's first input, or several, such as a start symbol and the code of a language.
        pad: The padding token. It may be EOS, except for soft beams. Without one the start symbol is used.
        eos: The token that ends an output.
        mask: The token that hides another one in a masked model.
        banned: Further tokens that are never emitted.

    Raises:
        InputError: If the model lacks something, which the message names.
    """
    if isinstance(hf_model, str | os.PathLike):
        spec = HuggingFace(path=os.fspath(hf_model))
        tokenizer = tokenizer or spec.folder.tokenizer()
        hf_model = spec.folder.model(spec.loaded_kind())
    if not isinstance(hf_model, nn.Module) or not hasattr(hf_model, "config"):
        raise InputError(f"wrap needs a model of the transformers library, got {type(hf_model).__name__}")
    if getattr(getattr(hf_model, "active_peft_config", None), "is_prompt_learning", False):
        raise InputError(
            "prompt tuning adds virtual tokens that only the model's own forward function sees: use cross_entropy, "
            "or another adapter such as LoRA"
        )
    kind = model_kind(hf_model)
    if kind == "masked" and output_layer(hf_model) is None:
        raise InputError(f"{class_name(hf_model)} has no output layer that scores tokens: load it with {AUTO_CLASSES}")
    vocabulary = ModelVocabulary(hf_model, kind, tokenizer, start=start, pad=pad, eos=eos, mask=mask, banned=banned)
    classes = {"encoder_decoder": WrappedEncoderDecoder, "causal": WrappedCausal, "masked": WrappedMasked}
    wrapped: Any = classes[kind](hf_model, vocabulary)
    if not any(parameter.is_meta for parameter in wrapped.parameters()):
        with _trial(wrapped):
            (_check_masked if kind == "masked" else _check_decoder)(wrapped)
    return wrapped


def model_kind(model: Any) -> ModelKind:
    """Return how a model of transformers is used."""
    if is_encoder_decoder(model):
        return "encoder_decoder"
    return "causal" if getattr(model, "can_generate", lambda: False)() else "masked"


# ---- Trial runs ----

TRIAL_TOKENS = 5
FAILURES = (TypeError, ValueError, AttributeError, LookupError, RuntimeError, AssertionError)


@contextmanager
def _trial(wrapped: Any) -> Iterator[None]:
    """Run without gradients and dropout, and leave no trace; raise `InputError` if something fails."""
    training = [module for module in wrapped.modules() if module.training]
    try:
        wrapped.eval()
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    except FAILURES as error:
        raise InputError(
            f"{class_name(wrapped.model)} cannot be wrapped: a trial run failed ({type(error).__name__}: "
            f"{one_line(error)})"
        ) from error
    finally:
        for module in training:
            module.training = True


def _check_decoder(wrapped: WrappedDecoder) -> None:
    """Compare the wrapper's scores with the model's own.

    A few abilities are optional and noted: going step by step, over several positions at once, left padding, and
    inputs that are mixtures.
    """
    name, ids = class_name(wrapped.model), _trial_tokens(wrapped)
    expected, state = _own_scores(wrapped, ids)
    inputs = wrapped.embed(ids)
    try:
        at_once = _stepwise_scores(wrapped, state, inputs, [TRIAL_TOKENS])
    except FAILURES as error:
        raise InputError(
            f"{name} does not take embeddings (inputs_embeds) alone: {ONLY} ({one_line(error)})"
        ) from error
    if not _equal(at_once, expected):
        raise InputError(
            f"{name} does not take embeddings (inputs_embeds), or does not score features separately: {ONLY}"
        )
    if not _equal(_stepwise_scores(wrapped, state, inputs[:, :-2], [TRIAL_TOKENS - 2]), expected[:, :-2]):
        raise InputError(
            f"the scores of {name} depend on later tokens: load it with is_decoder=True if it is a decoder"
        )
    fault = _step_fault(wrapped, state, inputs, expected)
    if fault and "position_ids" in wrapped.parts.accepts:
        padding = getattr(wrapped.embedding, "padding_idx", None) or 0
        for first in (0, padding + 1):  # RoBERTa counts positions from its padding token on
            wrapped.first_position = first
            if not _step_fault(wrapped, state, inputs, expected):
                fault = ""
                break
        else:
            wrapped.first_position = None
    wrapped.stepless = fault
    noise = max(10 * _distance(at_once, expected), _rounding(expected))
    if not wrapped.stepless:
        pieces = _stepwise_scores(wrapped, state, inputs, [1, 2, 2])
        wrapped.takes_strides = _distance(pieces, expected) <= noise
    if isinstance(wrapped, WrappedCausal):
        pads = torch.tensor([2, 0], device=ids.device)
        rows = wrapped.embed(torch.cat([ids.roll(2, dims=1), ids]))  # the first two tokens of row 0 are padding
        sizes = [TRIAL_TOKENS] if wrapped.stepless else [3, 2]
        found = _stepwise_scores(wrapped, DecoderState(None, SharedState(pads=pads)), rows, sizes)
        distances = _distance(found[:1, 2:], expected[:, :-2]), _distance(found[1:], expected)
        wrapped.takes_left_padding = max(distances) <= noise
    try:
        wrapped.advance(state, (inputs + inputs.flip(1)) / 2)
    except FAILURES:
        wrapped.takes_mixtures = False


def _step_fault(wrapped: WrappedDecoder, state: DecoderState, inputs: Tensor, expected: Tensor) -> str:
    """Return what keeps a model from going step by step, or ""; note whether its steps have gradients."""
    start = state
    if not wrapped.parts.cache:
        return "takes no cache (past_key_values)"
    try:
        features, state = wrapped.advance(state, inputs[:, :1].clone())
        if state.shared.lost:
            return str(state.shared.lost)
        twice = inputs[:, 1:].repeat(2, 1, 1)
        steps = _stepwise_scores(wrapped, state_rows.repeat(state, 2), twice, [1] * (TRIAL_TOKENS - 1))
    except (*FAILURES, InputError) as error:
        return f"fails to continue from its cache ({one_line(error)})"
    if not _equal(wrapped.score(features), expected[:, :1]) or not _equal(steps, expected[:, 1:].repeat(2, 1, 1)):
        return "does not continue from its cache"
    if any(hasattr(layer, "recurrent_states") for layer in getattr(state.shared.layout, "layers", ())):
        with torch.enable_grad():
            soft = inputs.clone().requires_grad_()
            try:
                torch.autograd.grad(_stepwise_scores(wrapped, start, soft, [1] * TRIAL_TOKENS).sum(), soft)
            except FAILURES:
                wrapped.steps_have_gradients = False
    return ""


def _check_masked(wrapped: WrappedMasked) -> None:
    """Find out whether features of the model's body can be scored separately."""
    ids = _trial_tokens(wrapped)
    masked = torch.zeros_like(ids, dtype=torch.bool)
    batch = Batch.of_gold(ids, ~masked, wrapped.symbols)
    expected = wrapped.scores(batch, ids, masked)
    prefix = str(getattr(wrapped.model, "base_model_prefix", ""))
    if not prefix or not isinstance(getattr(wrapped.model, prefix, None), nn.Module):
        return
    wrapped.body = prefix
    try:
        separate = wrapped.score(wrapped.features(batch, ids, masked))
    except FAILURES:
        separate = expected[:0]
    if not _distance(separate, expected) <= 16 * _rounding(expected):
        wrapped.body = ""


def _own_scores(wrapped: WrappedDecoder, ids: Tensor) -> tuple[Tensor, DecoderState]:
    """Return the scores [1,T,V] that the model itself gives to tokens, and the wrapper's state before them."""
    model: Any = wrapped.model
    if not isinstance(wrapped, WrappedEncoderDecoder):
        return model(input_ids=ids, return_dict=True).logits, DecoderState(None, SharedState())
    inputs: dict[str, Any] = {"input_ids": ids.flip(1)}
    if base_model(model).main_input_name != "input_ids":
        parameter = next(model.get_encoder().parameters())
        memory = torch.ones(1, 3, model.get_encoder().config.hidden_size, dtype=parameter.dtype, device=ids.device)
        inputs = {"encoder_outputs": FeaturesOutput((memory,))}
    scores = model(**inputs, decoder_input_ids=ids, return_dict=True).logits
    return scores, DecoderState(None, wrapped.encode(inputs, ids[:, :1]))


def has_usual_loss(wrapped: WrappedDecoder) -> bool:
    """Return whether a model's own loss is cross-entropy with labels that it shifts.

    The answer is true where this cannot be seen.
    """
    model: Any = wrapped.model
    if is_encoder_decoder(model) or any(parameter.is_meta for parameter in model.parameters()):
        return True
    with _trial(wrapped):
        ids = _trial_tokens(wrapped)
        output = model(input_ids=ids, labels=ids, return_dict=True)
        usual = torch.nn.functional.cross_entropy(output.logits[0, :-1].float(), ids[0, 1:])
        return _distance(output.loss, usual) <= 1e-3 * float(usual)


def _stepwise_scores(wrapped: WrappedDecoder, state: DecoderState, inputs: Tensor, sizes: list[int]) -> Tensor:
    """Return the scores of inputs that are fed in pieces of these sizes."""
    found = []
    for piece in torch.split(inputs.clone(), sizes, dim=1):  # some models scale their inputs in place
        features, state = wrapped.advance(state, piece)
        found.append(wrapped.score(features))
    return torch.cat(found, dim=1)


def _trial_tokens(wrapped: Any) -> Tensor:
    """Return ids [1,T] that are not special, and different if the vocabulary is large enough."""
    special = {wrapped.symbols.pad, wrapped.symbols.bos, wrapped.symbols.eos, *wrapped.symbols.banned}
    weight = getattr(wrapped.embedding, "weight", None)
    size = 64 if weight is None else len(weight)
    plain = [id for id in range(min(size, 64 + len(special))) if id not in special] or [0]
    chosen = [plain[n * 7 % len(plain)] for n in range(TRIAL_TOKENS)]
    return torch.tensor([chosen], device=next(wrapped.parameters()).device)


def _distance(found: Tensor, expected: Tensor) -> float:
    if found.shape != expected.shape:
        return float("inf")
    return float((found.double() - expected.double()).abs().max())


def _rounding(scores: Tensor) -> float:
    """Return a bound of rounding errors; many models compute parts in single precision, whatever their own."""
    near = max(torch.finfo(scores.dtype).eps, torch.finfo(torch.float32).eps)
    return 16 * near * max(float(scores.abs().max()), 1e-6)


def _equal(found: Tensor, expected: Tensor) -> bool:
    return _distance(found, expected) <= min(64 * _rounding(expected), 0.2 * float(expected.abs().max()))
