"""Masked models (BERT and its kin) as ``MaskedModel``."""

from typing import Any

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.huggingface import probe
from unforced.huggingface.decoder import WrappedModel
from unforced.huggingface.parts import arguments, named, scores_of, within_positions
from unforced.models.modes import evaluation_mode
from unforced.types import Batch, Symbols


class WrappedMasked(WrappedModel):
    """A Hugging Face masked model, as a ``MaskedModel``.

    Tokens come with all special tokens that the model is used to ([CLS], [SEP]); ``batch.source_mask`` says which positions
    there are (all of them if None). ``mask_token`` is what hidden tokens are replaced by.
    """

    def __init__(self, model: nn.Module, symbols: Symbols, mask_token: int) -> None:
        super().__init__(model, symbols)
        self.mask_token = mask_token
        self.takes_mixtures = False  # whether that has been seen

    def scores(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        """[R,T] ids and [R,T] bool -> [R,T,V]; with R = B·K rows, the K rows of an example adjacent."""
        hidden = tokens.masked_fill(masked, self.mask_token)
        attended = self._attended(batch, tokens)
        if attended is not None:
            hidden = hidden.masked_fill(~attended, self.symbols.pad)  # some models count positions by it
        return self._run(attended, input_ids=hidden)

    def mixed_scores(self, batch: Batch, inputs: Tensor) -> Tensor:
        """[R,T,E] embeddings of tokens or of mixtures of tokens -> [R,T,V]."""
        attended = self._attended(batch, inputs)
        if attended is not None and bool((attended[:, 1:] & ~attended[:, :-1]).any()):
            raise InputError("embeddings must be padded at their end: models count their positions from the first")
        if "inputs_embeds" not in arguments(self.model):
            raise InputError(f"{named(self.model)} takes no inputs_embeds, which soft inputs need")
        if not self.takes_mixtures:
            probe.check_soft(self)
            self.takes_mixtures = True
        return self._run(attended, inputs_embeds=inputs)

    def _attended(self, batch: Batch, rows: Tensor) -> Tensor | None:
        """[R,T] bool, the positions that there are; None for all."""
        mask = batch.source_mask
        if mask is None:
            return None
        copies, rest = divmod(len(rows), max(1, len(mask)))
        if rest or rows.shape[1] != mask.shape[1]:
            raise InputError(
                f"tokens of shape {tuple(rows.shape[:2])} are no rows of a batch of shape {tuple(mask.shape)}"
            )
        if bool(mask.all()):
            return None
        if "attention_mask" not in arguments(self.model):
            raise InputError(f"{named(self.model)} takes no attention_mask, so its batches can't be padded")
        return mask.repeat_interleave(copies, dim=0)

    def _run(self, attended: Tensor | None, **inputs: Tensor) -> Tensor:
        if attended is not None:
            inputs["attention_mask"] = attended.long()
        length = next(iter(inputs.values())).shape[1]
        with within_positions(self.model, length, named(self.model)):
            output: Any = self.model(**inputs, return_dict=True)
        scores: Tensor = output.logits
        return scores


# Masked models in two steps, features and then scores, so that only the positions that are asked for are projected to
# the vocabulary.

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


def _agrees(apart: SplitMasked) -> bool:
    """Whether features and their scores are what the model itself gives."""
    free = [i for i in range(apart.tokens or 0) if i not in apart.symbols.banned][:3]
    ids = torch.tensor([[*free[:1], *free]], device=next(apart.parameters()).device)
    nothing = torch.zeros_like(ids, dtype=torch.bool)
    batch = Batch.of_gold(ids, ~nothing, apart.symbols)
    try:
        with evaluation_mode(apart):
            whole = apart.scores(batch, ids, nothing)
            parts = apart.score(apart.features(batch, ids, nothing))
    except (TypeError, AttributeError, ValueError, RuntimeError, IndexError):
        return False
    if parts.shape != whole.shape:
        return False
    near = NEAR * torch.finfo(whole.dtype).eps * float(whole.abs().max())
    return bool((parts - whole).abs().max() <= near)
