"""Where the parts of a model are, by the library's generic interfaces: the body that makes features, the layer that scores them."""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from unforced.errors import InputError
from unforced.types import Symbols

CACHES = ("past_key_values", "cache_params")  # what forward functions call the cache
ROUTES = "AutoModelForSeq2SeqLM, AutoModelForCausalLM or AutoModelForMaskedLM"


class Parts(NamedTuple):
    """Names of modules below the wrapped model ("" is the model itself), and what the body takes."""

    owner: str  # whose forward function is body, then output layer
    path: tuple[str, ...]  # from the owner down to its decoder
    body: str  # what turns inputs and a cache into features; on that path
    accepts: frozenset[str]  # names of the body's arguments
    cache: str  # what it calls its cache


def find(model: Any) -> Parts:
    """The parts of a model that generates; raises ``InputError`` naming what it lacks."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # inside adapters
    owner, cross = base, is_encoder_decoder(model)
    if cross and output_layer(base.get_decoder()) is not None:
        owner = base.get_decoder()  # an encoder-decoder made of two models
    if output_layer(owner) is None:
        raise InputError(f"{named(model)} has no output layer to score tokens with: load it by {ROUTES}")
    if cross and owner is base:
        path = _path(base, base.get_decoder())
        bodies = [path]
    else:  # the body is what the embedding of the inputs is in
        path = _path(owner, _embedding(owner)).rpartition(".")[0]
        steps = path.split(".")
        bodies = [".".join(steps[: n + 1]) for n in range(len(steps))]
    if not path:
        raise InputError(f"{named(model)} has no decoder apart from its output layer")
    missing = set()
    for name in bodies:
        body = owner.get_submodule(name)
        accepts = arguments(body)
        cache = next((known for known in CACHES if known in accepts), "")
        lacking = {"inputs_embeds", *(["encoder_hidden_states"] if cross else [])} - accepts
        if not hasattr(body, "get_input_embeddings"):
            lacking |= {"get_input_embeddings"}
        if cache and not lacking:
            return Parts(_path(model, owner), tuple(path.split(".")), name, accepts, cache)
        missing |= lacking | (set() if cache else {CACHES[0]})
    raise InputError(
        f"the decoder of {named(model)} has no {' and no '.join(sorted(missing))}: "
        "soft inputs and states that can be mixed need that"
    )


def named(model: nn.Module) -> str:
    return type(model).__name__


def is_encoder_decoder(model: Any) -> bool:
    return bool(getattr(model.config, "is_encoder_decoder", False))


def output_layer(model: Any) -> nn.Module | None:
    found = getattr(model, "get_output_embeddings", None)
    return None if found is None else found()


def _embedding(model: Any) -> nn.Module:
    try:
        found: nn.Module = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        raise InputError(f"{named(model)} has no embedding of tokens (get_input_embeddings)") from None
    return found


def output_child(owner: nn.Module) -> str:
    """The name of the owner's child that is its output layer, if that is a plain linear one; else nothing."""
    layer = output_layer(owner)
    return next((name for name, child in owner.named_children() if child is layer and type(child) is nn.Linear), "")


@contextmanager
def within_positions(part: Any, length: int, name: str) -> Iterator[None]:
    """Around a pass: where it fails on a sequence that is longer than the positions there are, that is an ``InputError``."""
    try:
        yield
    except (IndexError, RuntimeError):
        longest = getattr(part.config, "max_position_embeddings", None)
        if longest is None or length <= longest:
            raise
        raise InputError(f"{name} has {longest} positions, which is too few for a sequence of {length}") from None


def in_short(error: Exception, most: int = 300) -> str:
    """An error's words on one line.

    >>> in_short(ValueError("no\\n  such thing"))
    'no such thing'
    """
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= most else f"{words[:most]} …"


def arguments(module: nn.Module) -> frozenset[str]:
    """The names of the arguments that a module's forward function spells out."""
    return frozenset(inspect.signature(type(module).forward).parameters)


def _path(model: nn.Module, part: nn.Module) -> str:
    return next((name for name, module in model.named_modules() if module is part), "")


class Output(tuple[Tensor]):
    """What an encoder or a body returns, of which everything but the features is None."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _Given:
    """Stands in for a body: it returns features that are known already, and is the body in all other respects.

    What is on the ``path`` below it is replaced in the same way: some models call that, and not the body as a whole.
    """

    def __init__(self, body: nn.Module, path: tuple[str, ...], features: Tensor) -> None:
        self.body, self.path, self.features = body, path, features

    def __call__(self, *_: Any, **__: Any) -> Output:
        return Output((self.features,))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.body, name)
        return _Given(found, self.path[1:], self.features) if self.path[:1] == (name,) else found


def scores_of(
    owner: nn.Module, path: tuple[str, ...], features: Tensor, others: Mapping[str, Any] | None = None
) -> Tensor:
    """[1,N,H] features -> [1,N,V], by the model's own forward function with its body replaced.

    So whatever the model does between body and scores is done: scaling, biases, caps. The owner itself is not touched; what
    runs is a second object around its parameters and modules, of which ``others`` replaces some.
    """
    view: Any = object.__new__(type(owner))
    view.__dict__.update(owner.__dict__)
    given = _Given(owner.get_submodule(path[0]), path[1:], features)
    view.__dict__["_modules"] = {**owner._modules, path[0]: given, **(others or {})}
    inputs: dict[str, Any] = {"inputs_embeds": features}
    if is_encoder_decoder(owner):
        inputs = {"encoder_outputs": Output((features,)), "decoder_inputs_embeds": features}
    output = type(owner).forward(view, **inputs, use_cache=False, return_dict=True)
    scores: Tensor = output.logits
    return scores


# A model's special tokens as ``Symbols``, from what its tokenizer and its configurations say.


def special_ids(tokenizer: Any) -> frozenset[int]:
    """The ids that a tokenizer, or its absence, keeps for other things than text: those with a role, and all that are flagged so."""
    named = getattr(tokenizer, "all_special_ids", None) or ()
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    return frozenset(map(int, named)) | {int(id) for id, token in added.items() if token.special}


class Specials:
    """Looks token ids up: the tokenizer knows best, then the generation settings, then the configuration."""

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        text = getattr(model.config, "get_text_config", None)
        self.tokenizer = tokenizer
        places = [tokenizer, getattr(model, "generation_config", None)]
        self.places = [*places, text(decoder=True) if text else None, model.config]

    def all(self, name: str) -> list[int]:
        """The ids that go by a name, those of the first place that knows any."""
        for place in self.places:
            value = getattr(place, name, None)
            if value is not None:
                return [int(number) for number in value] if isinstance(value, Sequence) else [int(value)]
        return []

    def __call__(self, name: str) -> int | None:
        return next(iter(self.all(name)), None)

    def unheeded(self) -> list[str]:
        """Settings of the model for ``generate`` that decoders here don't follow."""
        settings = self.places[1]
        plain = {"repetition_penalty": (1.0,), "no_repeat_ngram_size": (0,), "encoder_no_repeat_ngram_size": (0,)}
        names = ("forced_bos_token_id", "forced_eos_token_id", "begin_suppress_tokens", "sequence_bias", *plain)
        found = [name for name in names if getattr(settings, name, None) not in (None, [], *plain.get(name, ()))]
        return found + ["eos_token_id (the first is taken)"] * (len(self.all("eos_token_id")) > 1)

    def never(self) -> set[int]:
        """Tokens that ``generate`` never emits with the model's own settings."""
        settings = self.places[1]
        single = [words[0] for words in getattr(settings, "bad_words_ids", None) or [] if len(words) == 1]
        return {*single, *(getattr(settings, "suppress_tokens", None) or [])}


def decoder_symbols(
    model: Any,
    known: Specials,
    start: int | None = None,
    pad: int | None = None,
    eos: int | None = None,
    banned: Iterable[int] = (),
) -> Symbols:
    """The symbols of a model that generates.

    Padding is another token than EOS wherever there is one to take (methods that let finished outputs stay in a beam tell
    them apart by it), and is never emitted then.
    """
    eos = known("eos_token_id") if eos is None else eos
    bos = known("bos_token_id") if start is None else start
    if start is None and is_encoder_decoder(model):
        told = known("decoder_start_token_id")
        bos = bos if told is None else told
        if bos is None:
            raise InputError(
                f"{named(model)} does not say what its decoder starts with: pass start=, the id of its first input"
            )
    if pad is None:
        choices = [known("pad_token_id"), bos, known("unk_token_id"), eos]
        named_ = [choice for choice in choices if choice is not None]
        pad = next((choice for choice in named_ if choice != eos), next(iter(named_), 0))
    never = {pad, *banned, *known.never()} - {eos}
    return Symbols(pad=pad, bos=pad if bos is None else bos, eos=eos, banned=tuple(sorted(never)))


def masked_symbols(
    model: Any, known: Specials, pad: int | None = None, mask: int | None = None, banned: Iterable[int] = ()
) -> tuple[Symbols, int]:
    """The symbols of a masked model, and its mask token. All special tokens are banned: no mask hides them."""
    mask = known("mask_token_id") if mask is None else mask
    if mask is None:
        raise InputError(
            f"{named(model)} does not say what its mask token is: pass tokenizer=, or mask=, the id of that token"
        )
    pad = known("pad_token_id") if pad is None else pad
    pad = 0 if pad is None else pad
    names = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    special = {pad, mask, *banned, *(number for name in names for number in known.all(name))}
    special |= special_ids(known.tokenizer)
    bos = known("cls_token_id")
    bos = known("bos_token_id") if bos is None else bos
    return Symbols(pad=pad, bos=pad if bos is None else bos, eos=None, banned=tuple(sorted(special))), mask
