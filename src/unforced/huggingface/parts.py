"""Find the parts of a transformers model: the decoder body that makes features and the layers that score them."""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from unforced.errors import InputError

CACHE_NAMES = ("past_key_values", "cache_params")  # what forward functions call the cache
ONLY = "only cross_entropy can train it"
AUTO_CLASSES = "AutoModelForSeq2SeqLM, AutoModelForCausalLM or AutoModelForMaskedLM"


class Parts(NamedTuple):
    """Names of submodules ("" is the model itself) and of the body's arguments."""

    owner: str  # the module whose forward function runs the body and then the output layer
    path: tuple[str, ...]  # from the owner down to its decoder
    body: str  # the module on that path that turns inputs and a cache into features
    accepts: frozenset[str]  # names of the body's arguments
    cache: str  # name of its cache argument; "" without one


def find_parts(model: Any) -> Parts:
    """Return the parts of a model that generates; raise `InputError` if one is missing."""
    base, cross = base_model(model), is_encoder_decoder(model)
    owner = base
    if cross and output_layer(base.get_decoder()) is not None:
        owner = base.get_decoder()  # an encoder-decoder that is made of two models
    if output_layer(owner) is None:
        raise InputError(f"{class_name(model)} has no output layer that scores tokens: load it with {AUTO_CLASSES}")
    if cross and owner is base:
        path = submodule_path(base, base.get_decoder())
        bodies = [path]
    else:  # the body is a module on the path to the embedding
        path = submodule_path(owner, _embedding(owner)).rpartition(".")[0]
        steps = path.split(".")
        bodies = [".".join(steps[: n + 1]) for n in range(len(steps))]
    if not path:
        raise InputError(f"{class_name(model)} has no decoder module separate from its output layer: {ONLY}")
    missing = set()
    for name in bodies:
        body = owner.get_submodule(name)
        accepts = argument_names(body)
        lacking = {"inputs_embeds", *(["encoder_hidden_states"] if cross else [])} - accepts
        if not hasattr(body, "get_input_embeddings"):
            lacking |= {"get_input_embeddings"}
        if not lacking:
            cache = next((known for known in CACHE_NAMES if known in accepts), "")
            return Parts(submodule_path(model, owner), tuple(path.split(".")), name, accepts, cache)
        missing |= lacking
    raise InputError(f"the decoder of {class_name(model)} does not take {' and '.join(sorted(missing))}: {ONLY}")


def base_model(model: Any) -> Any:
    """Return the model inside of adapters."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def class_name(model: nn.Module) -> str:
    return type(model).__name__


def is_encoder_decoder(model: Any) -> bool:
    return bool(getattr(model.config, "is_encoder_decoder", False))


def output_layer(model: Any) -> Any:
    """Return the layer that scores tokens, or None."""
    found = getattr(model, "get_output_embeddings", None)
    return None if found is None else found()


def embedded_tokens(model: Any) -> int:
    """Return how many tokens have embeddings; 0 if that is unknown."""
    try:
        weight = model.get_input_embeddings().weight
    except (AttributeError, NotImplementedError):
        return 0
    return len(weight) if isinstance(weight, Tensor) else 0


def _embedding(model: Any) -> nn.Module:
    try:
        found: nn.Module = model.get_input_embeddings()
    except (AttributeError, NotImplementedError):
        raise InputError(f"{class_name(model)} has no token embedding (get_input_embeddings)") from None
    return found


@contextmanager
def position_limit(part: Any, length: int, name: str) -> Iterator[None]:
    """Turn the error of a pass over more positions than the model has into an `InputError`."""
    try:
        yield
    except (IndexError, RuntimeError):
        longest = getattr(part.config, "max_position_embeddings", None)
        if longest is None or length <= longest:
            raise
        raise InputError(f"{name} has {longest} positions, too few for a sequence of {length}") from None


def one_line(error: Exception, most: int = 300) -> str:
    """Return an error's message on one line; of a long one its ends, because the middle may show a whole module."""
    words = " ".join(str(error).split()) or type(error).__name__
    return words if len(words) <= most else f"{words[: most // 2]} … {words[-most // 2 :]}"


def argument_names(module: nn.Module) -> frozenset[str]:
    """Return the names of the arguments that a module's forward function declares."""
    return frozenset(inspect.signature(type(module).forward).parameters)


def submodule_path(model: nn.Module, part: nn.Module) -> str:
    """Return the name of a part of the model; \"\" for the model itself."""
    return next((name for name, module in model.named_modules() if module is part), "")


class FeaturesOutput(tuple[Tensor]):
    """The output of an encoder or a body; every attribute but the features is None."""

    @property
    def last_hidden_state(self) -> Tensor:
        return self[0]

    def __getattr__(self, name: str) -> None:
        if name.startswith("__"):
            raise AttributeError(name)


class _KnownBody:
    """Stands in for a body and returns given features; in all other respects it is the body.

    Modules on the ``path`` below it are replaced in the same way, because some models call these and not the body.
    """

    def __init__(self, body: nn.Module, path: tuple[str, ...], features: Tensor) -> None:
        self.body, self.path, self.features = body, path, features

    def __call__(self, *_: Any, **__: Any) -> FeaturesOutput:
        return FeaturesOutput((self.features,))

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.body, name)
        return _KnownBody(found, self.path[1:], self.features) if self.path[:1] == (name,) else found


def score_features(owner: nn.Module, path: tuple[str, ...], features: Tensor) -> Tensor:
    """Score features [1,N,H] -> [1,N,V] by the model's own forward function, with its body replaced.

    This includes whatever the model does after its body: scaling, biases, caps.
    """
    known = _KnownBody(owner.get_submodule(path[0]), path[1:], features)
    inputs: dict[str, Any] = {"inputs_embeds": features}
    if is_encoder_decoder(owner):
        inputs = {"encoder_outputs": FeaturesOutput((features,)), "decoder_inputs_embeds": features}
    output = type(owner).forward(_with_part(owner, path[:1], known), **inputs, use_cache=False, return_dict=True)
    scores: Tensor = output.logits
    return scores


class _Reached(Exception):
    """Ends a forward pass at the decoder."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options


def decoder_options(model: Any, path: tuple[str, ...], inputs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that the model's own forward function passes to the decoder at ``path``."""

    def stop(*_: Any, **options: Any) -> None:
        raise _Reached(options)

    stand_in = _with_part(model.get_submodule(".".join(path)), (), None)
    stand_in.__dict__["forward"] = stop
    try:
        type(model).forward(_with_part(model, path, stand_in), **inputs, return_dict=True)
    except _Reached as reached:
        return reached.options
    raise InputError(f"{class_name(model)} does not run its decoder")


def _with_part(module: nn.Module, path: tuple[str, ...], part: Any) -> Any:
    """Return a second object around a module's parameters, with the part at ``path`` replaced."""
    view: Any = object.__new__(type(module))
    view.__dict__.update(module.__dict__)
    if path:
        inner = part if len(path) == 1 else _with_part(module.get_submodule(path[0]), path[1:], part)
        view.__dict__["_modules"] = {**module._modules, path[0]: inner}
    return view
