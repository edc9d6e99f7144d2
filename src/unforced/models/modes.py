"""Context managers that change how a model runs: evaluation mode, no dropout."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluation_mode(model: object, *, dropout: bool = False) -> Iterator[None]:
    """Disable gradients and, unless ``dropout`` is true, dropout; restore every module's mode at the end.

    `torch.no_grad` is used instead of inference mode, so that outputs can be trained on. The autocast cache is cleared,
    because weights cast without gradient must not be reused (pytorch#112583).
    """
    training = [] if dropout else _modules_in_training(model)
    try:
        if isinstance(model, nn.Module) and training:
            model.eval()
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True
        torch.clear_autocast_cache()


@contextmanager
def no_dropout(model: object) -> Iterator[None]:
    """Disable dropout but keep gradients; restore every module's mode at the end.

    Recurrent modules stay in training mode, which their gradients need on some devices, with their dropout set to 0.
    """
    training = _modules_in_training(model)
    recurrent = [(module, module.dropout) for module in training if isinstance(module, nn.RNNBase)]
    try:
        for module in training:
            module.training = isinstance(module, nn.RNNBase)
        for rnn, _ in recurrent:
            rnn.dropout = 0.0
        yield
    finally:
        for module in training:
            module.training = True
        for rnn, rate in recurrent:
            rnn.dropout = rate


def _modules_in_training(model: object) -> list[nn.Module]:
    return [module for module in model.modules() if module.training] if isinstance(model, nn.Module) else []
