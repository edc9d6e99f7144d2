"""What objectives of masked models share: lengths, scores where tokens are hidden, and frozen models beside the trained one."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.energy import energies
from unforced.errors import InputError
from unforced.ops import random_streams
from unforced.ops.masks import FLOOR, widened
from unforced.protocols import SupportsLengths, require
from unforced.types import Batch, Loss

Frozen = str | Callable[..., Any]  # a run folder, or in Python a model


def prepared(model: Any, batch: Batch, method: str) -> Batch:
    """The batch with its sources encoded, if the model is one that can hide tokens."""
    require(model, method, "scores")
    return energies.encode_sources(model, batch)


def permitted(scores: Tensor, batch: Batch) -> Tensor:
    """Scores [...,V] in float32 at least, with a floor for tokens that no variable takes."""
    kept = energies.allowed(batch.symbols, scores.shape[-1], scores.device)
    return widened(scores).masked_fill(~kept, FLOOR)


def scores_where(model: Any, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
    """The scores [N,V] at the N masked positions of tokens [B,T]; nothing else is projected if the model can tell apart."""
    if callable(getattr(model, "features", None)):
        return model.score(model.features(batch, tokens, masked)[masked])
    return model.scores(batch, tokens, masked)[masked]


def drawn_positions(keys: Tensor, candidates: Tensor, numbers: Tensor) -> Tensor:
    """Of the candidates [B,T] bool, ``numbers`` [B] of each row, every choice as likely as any other: [B,T] bool.

    >>> picked = drawn_positions(torch.tensor([1, 2]), torch.tensor([[True, True, False], [True, False, False]]), torch.tensor([1, 1]))
    >>> picked.sum(dim=1), picked[:, 2]
    (tensor([1, 1]), tensor([False, False]))
    """
    places = torch.arange(candidates.shape[1], device=keys.device)
    draws = random_streams.uniform(keys.unsqueeze(1), places).masked_fill(~candidates, 2.0)
    ranks = draws.argsort(dim=1, stable=True).argsort(dim=1)
    return candidates & (ranks < numbers.unsqueeze(1))


def with_lengths(model: Any, batch: Batch, loss: Loss, shares: Tensor, weight: float) -> Loss:
    """The loss, and where the model guesses lengths, ``weight`` times −log p(length).

    ``shares`` [B] says how much of the loss's count each example has; the length's loss is averaged by them.
    """
    scores = model.length_scores(batch) if weight and isinstance(model, SupportsLengths) else None
    if scores is None:
        return loss
    scores = widened(scores)
    lengths = energies.variables(batch).sum(dim=1)
    if len(lengths) and int(lengths.max()) > scores.shape[1]:
        raise InputError(
            f"a target has {int(lengths.max())} tokens, but the model knows lengths up to {scores.shape[1]}: raise longest"
        )
    right = lengths.clamp(min=1) - 1
    nll = F.cross_entropy(scores, right, reduction="none")
    count = torch.tensor(float(len(batch)), device=nll.device)
    hits = (scores.detach().argmax(dim=1) == right).sum().float()
    found = {"length_nll": (nll.detach().sum().float(), count), "length_accuracy": (hits, count)}
    total = loss.total + weight * (nll * shares.to(nll)).sum()
    return loss._replace(total=total, metrics={**loss.metrics, **found})


def free_conditionals(model: Any, batch: Batch, where: Tensor, rows: int) -> Tensor:
    """log p_mlm(y_i = w | y\\i), the softmax of the scores at a hidden position, at the N positions ``where``: [N,V]."""
    example, position = where.nonzero(as_tuple=True)
    scores = energies.scores_at(model, batch, batch.gold, example, position.unsqueeze(1), rows=rows).squeeze(1)
    return torch.log_softmax(permitted(scores, batch), dim=1)


# ---- models that are asked but not trained ----


def frozen(source: Frozen, model: Any, known: dict[Any, Any]) -> Any:
    """A model that stays as it is: one given in Python, or a run's best weights in a network like ``model``.

    ``known`` keeps what has been read.
    """
    if not isinstance(source, str):
        return source
    if source not in known:
        known.clear()
        known[source] = _read(source, model)
    return known[source].to(next(model.parameters()).device)


def _read(folder: str, model: Any) -> nn.Module:
    from safetensors.torch import load_file

    best = Path(folder) / "best.json"
    try:
        name = json.loads(best.read_text())["checkpoint"]
        weights = load_file(Path(folder) / "checkpoints" / Path(name).name / "model.safetensors")
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(f"{folder}: is no run with a best checkpoint ({error})") from None
    twin: nn.Module = copy.deepcopy(model)
    try:
        twin.load_state_dict(weights)
    except RuntimeError as error:
        lines = str(error).splitlines()
        raise InputError(f"{folder}: its weights don't fit this model ({lines[-1].strip()})") from None
    return twin.eval().requires_grad_(False)
