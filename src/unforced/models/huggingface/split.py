"""Masked models in two steps, features and then scores, so that only the positions that are asked for are projected to the vocabulary."""

from __future__ import annotations

import torch
from torch import Tensor

from unforced.models.huggingface.masked import WrappedMasked
from unforced.models.huggingface.parts import scores_of
from unforced.types import Batch

NEAR = 256  # roundings by which the two ways may differ, in units of the largest score


class SplitMasked(WrappedMasked):
    """A ``WrappedMasked`` that has ``features`` and ``score`` as well, which make up its ``scores``."""

    body: str  # the name of the module that makes features

    def features(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        """[R,T] ids and [R,T] bool -> [R,T,H]."""
        hidden = tokens.masked_fill(masked, self.mask_token)
        attended = self._attended(batch, tokens)
        inputs = {"input_ids": hidden}
        if attended is not None:
            inputs = {"input_ids": hidden.masked_fill(~attended, self.symbols.pad)}
            inputs["attention_mask"] = attended.long()
        found: Tensor = self.model.get_submodule(self.body)(**inputs, return_dict=True)[0]
        return found

    def score(self, features: Tensor) -> Tensor:
        """[...,H] -> [...,V], by all that the model does behind its body."""
        flat = features.reshape(1, -1, features.shape[-1])
        return scores_of(self.model, (self.body,), flat).view(*features.shape[:-1], -1)


def split(model: WrappedMasked) -> WrappedMasked:
    """The same model in two steps where it can be taken apart so, else as it is; a few tokens are run both ways to see that."""
    body = str(getattr(model.model, "base_model_prefix", "") or "")
    if not isinstance(getattr(model.model, body, None) if body else None, torch.nn.Module):
        return model
    apart = SplitMasked(model.model, model.symbols, model.mask_token)
    apart.body = body
    return apart if _agrees(apart) else model


@torch.no_grad()
def _agrees(apart: SplitMasked) -> bool:
    """Whether features and their scores are what the model itself gives."""
    free = [i for i in range(apart.tokens or 0) if i not in apart.symbols.banned][:3]
    ids = torch.tensor([[*free[:1], *free]], device=next(apart.parameters()).device)
    nothing = torch.zeros_like(ids, dtype=torch.bool)
    batch = Batch.of_gold(ids, ~nothing, apart.symbols)
    training = [module for module in apart.modules() if module.training]
    apart.eval()
    try:
        whole = apart.scores(batch, ids, nothing)
        parts = apart.score(apart.features(batch, ids, nothing))
    except (TypeError, AttributeError, ValueError, RuntimeError, IndexError):
        return False
    finally:
        for module in training:
            module.training = True
    if parts.shape != whole.shape:
        return False
    near = NEAR * torch.finfo(whole.dtype).eps * float(whole.abs().max())
    return bool((parts - whole).abs().max() <= near)
