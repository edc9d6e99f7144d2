"""Tiny random Hugging Face models, one of each kind that the wrapper must serve, and batches for them."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from unforced.huggingface.batches import make_batch
from unforced.huggingface.wrap import wrap
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.types import Batch, Progress

tf = pytest.importorskip("transformers")
tf.logging.set_verbosity_error()

V = 17
SPECIAL: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
BARTS: dict[str, Any] = {
    "vocab_size": V,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "scale_embedding": True,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
    "dropout": 0.0,
    **SPECIAL,
}
LLAMAS: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    **SPECIAL,
}
BERTS: dict[str, Any] = {
    "vocab_size": V,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "pad_token_id": 0,
}
T5S: dict[str, Any] = {
    "vocab_size": V,
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "dropout_rate": 0.0,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
    "eos_token_id": 2,
}


def t5(dropout: float = 0.0) -> Any:
    return tf.T5ForConditionalGeneration(tf.T5Config(**{**T5S, "dropout_rate": dropout}))


def t5_untied() -> Any:
    config = tf.T5Config(**T5S, feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    config.scale_decoder_outputs = False
    return tf.T5ForConditionalGeneration(config)


def with_bias(model: Any) -> Any:
    nn.init.normal_(model.final_logits_bias)
    return model


def two_berts() -> Any:
    encoder = tf.BertConfig(**BERTS)
    decoder = tf.BertConfig(**BERTS, is_decoder=True, add_cross_attention=True)
    config = tf.EncoderDecoderConfig(encoder=encoder.to_dict(), decoder=decoder.to_dict())
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, 2
    model = tf.EncoderDecoderModel(config)
    model.generation_config.update(decoder_start_token_id=1, pad_token_id=0, eos_token_id=2)
    return model


def gpt2(dropout: float = 0.0) -> Any:
    config = tf.GPT2Config(
        vocab_size=V, n_embd=16, n_layer=2, n_head=2, n_positions=64, **SPECIAL,
        resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout,
    )  # fmt: skip
    return tf.GPT2LMHeadModel(config)


def gemma2() -> Any:
    config = tf.Gemma2Config(**LLAMAS, head_dim=8, sliding_window=4, final_logit_softcapping=3.0)
    return tf.Gemma2ForCausalLM(config)


def bert() -> Any:
    return tf.BertForMaskedLM(tf.BertConfig(**BERTS))


def qwen3_next() -> Any:
    config = tf.Qwen3NextConfig(
        **LLAMAS, head_dim=8, layer_types=["linear_attention", "full_attention"], linear_num_value_heads=2,
        linear_num_key_heads=2, linear_key_head_dim=4, linear_value_head_dim=4, num_experts=2, num_experts_per_tok=2,
        moe_intermediate_size=8, shared_expert_intermediate_size=8,
    )  # fmt: skip
    return tf.Qwen3NextForCausalLM(config)


class Case(NamedTuple):
    """A kind of model; ``near`` is how well results agree: some models compute parts in float32, whatever their own."""

    make: Callable[[], Any]
    near: float = 1e-9
    options: dict[str, Any] = {}  # noqa: RUF012
    dtype: torch.dtype = torch.float64

    def model(self, seed: int = 0, std: float = 0.3) -> Any:
        """A random model in evaluation mode; weights are large, so that everything matters."""
        torch.manual_seed(seed)
        model = self.make().to(self.dtype)
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.dim() > 1:
                nn.init.normal_(parameter, std=std)
            elif parameter.requires_grad:
                parameter.data += 0.1 * torch.randn_like(parameter)
        return model.eval()

    def wrapped(self, seed: int = 0, **options: Any) -> Any:
        return wrap(self.model(seed), **self.options, **options)


ENCODER_DECODERS = {
    "t5": Case(t5, 1e-5),
    "t5-untied": Case(t5_untied, 1e-5),
    "bart": Case(lambda: with_bias(tf.BartForConditionalGeneration(tf.BartConfig(**BARTS)))),
    "marian": Case(lambda: with_bias(tf.MarianMTModel(tf.MarianConfig(**BARTS)))),
    "mbart": Case(lambda: with_bias(tf.MBartForConditionalGeneration(tf.MBartConfig(**BARTS))), options={"start": 1}),
    "pegasus": Case(lambda: with_bias(tf.PegasusForConditionalGeneration(tf.PegasusConfig(**BARTS)))),
    "two-berts": Case(two_berts),
}
CAUSAL = {
    "gpt2": Case(gpt2),
    "llama": Case(lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**LLAMAS)), 1e-5),
    "qwen2": Case(lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**LLAMAS)), 1e-5),
    "mistral": Case(lambda: tf.MistralForCausalLM(tf.MistralConfig(**LLAMAS, sliding_window=4)), 1e-5),
    "gemma2": Case(gemma2, 2e-5, dtype=torch.float32),
    "opt": Case(lambda: tf.OPTForCausalLM(tf.OPTConfig(
        vocab_size=V, hidden_size=16, word_embed_proj_dim=8, ffn_dim=24, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=64, dropout=0.0, **SPECIAL))),
    "bloom": Case(lambda: tf.BloomForCausalLM(tf.BloomConfig(
        vocab_size=V, hidden_size=16, n_layer=2, n_head=2, hidden_dropout=0.0, attention_dropout=0.0, **SPECIAL)),
        2e-5, dtype=torch.float32),
    "qwen3-next": Case(qwen3_next, 2e-5, dtype=torch.float32),
}  # fmt: skip
MASKED = {
    "bert": Case(bert, options={"mask": 3}),
    "roberta": Case(
        lambda: tf.RobertaForMaskedLM(tf.RobertaConfig(**{**BERTS, "pad_token_id": 1}, bos_token_id=0, eos_token_id=2)),
        options={"mask": 3},
    ),
    "distilbert": Case(
        lambda: tf.DistilBertForMaskedLM(tf.DistilBertConfig(
            vocab_size=V, dim=16, hidden_dim=24, n_layers=2, n_heads=2, max_position_embeddings=64,
            dropout=0.0, attention_dropout=0.0, pad_token_id=0)),
        options={"mask": 3},
    ),
    "modernbert": Case(
        lambda: tf.ModernBertForMaskedLM(tf.ModernBertConfig(
            vocab_size=V, hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=2,
            max_position_embeddings=64, local_attention=4, cls_token_id=1, sep_token_id=2, **SPECIAL)),
        1e-5, options={"mask": 3},
    ),
}  # fmt: skip
DECODERS = {**ENCODER_DECODERS, **CAUSAL}


def fast(cases: Any, *few: Any) -> list[Any]:
    """Parameters of a test, all marked slow but a few (by default T5, GPT-2 and BERT)."""
    few = few or ("t5", "gpt2", "bert")
    return [pytest.param(case, marks=() if case in few else pytest.mark.slow, id=str(case)) for case in cases]


def tokens(shape: tuple[int, int], seed: int) -> Tensor:
    return torch.randint(4, V, shape, generator=torch.Generator().manual_seed(seed))


def collated(case_name: str, seed: int = 0, left: bool = False) -> dict[str, Tensor]:
    """What a collator gives: four examples of several lengths, for a causal model with prompts of several lengths."""
    if case_name in ENCODER_DECODERS:
        ids, mask = tokens((4, 6), seed), torch.ones(4, 6, dtype=torch.long)
        labels = tokens((4, 5), seed + 1)
        for row, (source, target) in enumerate([(6, 5), (2, 1), (4, 3), (1, 4)]):
            ids[row, source:], mask[row, source:] = 0, 0
            labels[row, target - 1], labels[row, target:] = 2, -100
        return {"input_ids": ids, "attention_mask": mask, "labels": labels}
    ids, mask = torch.zeros(4, 9, dtype=torch.long), torch.zeros(4, 9, dtype=torch.long)
    labels = torch.full((4, 9), -100)
    for row, (prompt, target) in enumerate([(4, 5), (1, 4), (6, 1), (2, 3)]):
        row_ids = torch.cat([tokens((1, prompt + target), seed + row)[0, :-1], torch.tensor([2])])
        where = slice(9 - len(row_ids), 9) if left else slice(0, len(row_ids))
        ids[row, where], mask[row, where] = row_ids, 1
        labels[row, where] = torch.cat([torch.full((prompt,), -100), row_ids[prompt:]])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def batch_for(case_name: str, model: Any, seed: int = 0) -> Batch:
    return make_batch(model, **collated(case_name, seed))


def features(model: Any, made: Batch) -> Tensor:
    """Teacher-forced features [B,T,H]."""
    found: Tensor = model.advance(model.start(made), model.embed(made.prefix))[0]
    return found


def cross_entropy(model: Any, data: Batch) -> Tensor:
    """The mean cross-entropy of a batch."""
    return CrossEntropy()(model, data, progress=Progress(), rng=torch.Generator()).mean


def leaves(tree: Any) -> list[Tensor]:
    """All tensors of a state, in order."""
    if isinstance(tree, Tensor):
        return [tree]
    if isinstance(tree, dict):
        return [leaf for part in tree.values() for leaf in leaves(part)]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return []
