"""Masked models of transformers (BERT and relatives) as ``MaskedModel``."""

from typing import Any

from torch import Tensor, nn

from unforced.huggingface.decoder import WrappedModel
from unforced.huggingface.parts import class_name, position_limit, score_features
from unforced.huggingface.vocabulary import ModelVocabulary
from unforced.types import Batch


class WrappedMasked(WrappedModel):
    """A transformers masked model, as a ``MaskedModel``.

    Tokens include the special tokens that the model expects ([CLS], [SEP]). ``batch.source_mask`` marks what is not
    padding; None marks everything. Rows are B·K, the K rows of an example adjacent.

    Where ``body`` names the module that makes features, `features` and `score` together give `scores`, so that callers
    project only the positions they need. Where it is "", features are the scores.
    """

    def __init__(self, model: nn.Module, vocabulary: ModelVocabulary) -> None:
        super().__init__(model, vocabulary)
        assert vocabulary.mask_token is not None
        self.mask_token = vocabulary.mask_token
        self.body = ""

    def scores(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        """[R,T] ids and [R,T] bool -> [R,T,V]."""
        scores: Tensor = self._run(self.model, batch, tokens, masked).logits
        return scores

    def features(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        """[R,T] ids and [R,T] bool -> [R,T,H]."""
        if not self.body:
            return self.scores(batch, tokens, masked)
        features: Tensor = self._run(self.model.get_submodule(self.body), batch, tokens, masked)[0]
        return features

    def score(self, features: Tensor) -> Tensor:
        """[...,H] -> [...,V], by everything that the model does after its body."""
        if not self.body:
            return features
        scores = score_features(self.model, (self.body,), features.reshape(1, -1, features.shape[-1]))
        return scores.view(*features.shape[:-1], scores.shape[-1])

    def _run(self, module: Any, batch: Batch, tokens: Tensor, masked: Tensor) -> Any:
        inputs = {"input_ids": tokens.masked_fill(masked, self.mask_token)}
        if batch.source_mask is not None and not bool(batch.source_mask.all()):
            attended = batch.source_mask.repeat_interleave(len(tokens) // len(batch.source_mask), dim=0)
            inputs["input_ids"] = inputs["input_ids"].masked_fill(~attended, self.symbols.pad)  # gives positions
            inputs["attention_mask"] = attended.long()
        with position_limit(self.model, tokens.shape[1], class_name(self.model)):
            return module(**inputs, return_dict=True)
