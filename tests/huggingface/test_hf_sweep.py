"""Every architecture of the library that can be built small: it is wrapped and right, or refused by an ``InputError``."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hf_cases import tf, tokens
from torch import Tensor

from unforced.errors import InputError
from unforced.huggingface.batches import make_batch
from unforced.huggingface.wrap import wrap
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.types import Progress

pytestmark = pytest.mark.slow
SMALL: dict[str, Any] = dict.fromkeys(
    ["hidden_size", "d_model", "n_embd", "dim", "n_embed", "embed_dim", "word_embed_proj_dim", "embedding_size", "intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "encoder_ffn_dim", "decoder_ffn_dim", "hidden_dim", "encoder_hidden_size", "lru_width"], 32
)  # fmt: skip
SMALL |= dict.fromkeys(
    ["num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers", "num_encoder_layers", "num_key_value_heads", "num_experts_per_tok", "linear_num_value_heads", "linear_num_key_heads", "index_n_heads", "num_blocks"], 2
)  # fmt: skip
SMALL |= dict.fromkeys(
    ["num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads", "num_experts", "n_expert", "num_local_experts", "n_routed_experts", "moe_num_experts", "sliding_window", "attention_window", "block_size", "mamba_n_heads"], 4
)  # fmt: skip
SMALL |= dict.fromkeys(
    ["head_dim", "d_kv", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "state_size", "mamba_d_state", "rotary_dim", "linear_key_head_dim", "linear_value_head_dim", "index_head_dim", "hidden_size_per_layer_input"], 8
)  # fmt: skip
SMALL |= dict.fromkeys(["moe_intermediate_size", "shared_expert_intermediate_size", "mamba_d_head"], 16)
SMALL |= dict.fromkeys(
    ["vocab_size", "decoder_vocab_size", "src_vocab_size", "tgt_vocab_size", "vocab_size_per_layer_input"], 48
)
SMALL |= {"max_position_embeddings": 64, "n_positions": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SMALL |= {"decoder_start_token_id": 1, "n_groups": 1, "mamba_n_groups": 1, "n_group": 1, "topk_group": 1}
SMALL |= {"first_k_dense_replace": 1, "use_mamba_kernels": False, "is_decoder": True, "dropout": 0.0}
# how many must be right: fewer would mean that something broke, not that a model is new
AT_LEAST = {"encoder_decoder": 18, "causal": 110, "masked": 36}


def configurations(kind: Any, causal: bool) -> Iterator[Any]:
    usual = kind()
    small = {key: value for key, value in SMALL.items() if hasattr(usual, key) and (causal or key != "is_decoder")}
    if getattr(usual, "layer_types", None):
        small["layer_types"] = (list(dict.fromkeys(usual.layer_types)) * 2)[:2]
    for left_out in ([], ["sliding_window"], ["head_dim"], ["num_key_value_heads"], ["layer_types"], ["rotary_dim"]):
        try:
            yield kind(**{key: value for key, value in small.items() if key not in left_out})
        except Exception:
            continue


def built(key: str, name: str, causal: bool) -> Any:
    """A tiny model of a class, or None where nobody knows how to make one."""
    kind = getattr(tf, name)
    try:
        tried = list(configurations(kind.config_class or tf.CONFIG_MAPPING[key], causal))
    except Exception:
        return None
    for config in tried:
        try:
            config.decoder_start_token_id = 1
            with torch.device("meta"):
                size = sum(parameter.numel() for parameter in kind(config).parameters())
            if size > 3e7:
                continue
            torch.manual_seed(0)
            model, ids = kind(config).eval(), torch.tensor([[5, 6, 7]])
            with torch.no_grad():
                assert model(input_ids=ids, **decoder_inputs(model, ids)).logits.isfinite().all()
            return model
        except Exception:
            continue
    return None


def decoder_inputs(model: Any, ids: Tensor) -> dict[str, Tensor]:
    return {"decoder_input_ids": ids} if model.config.is_encoder_decoder else {}


def apart(model: Any, wrapped: Any, masked: bool) -> float:
    """How far the wrapper is from the model, on examples of several lengths."""
    ids, lengths = torch.randint(5, 40, (3, 7), generator=torch.Generator().manual_seed(0)), [7, 5, 3]
    mask = torch.tensor([[1] * n + [0] * (7 - n) for n in lengths])
    if masked:
        made = make_batch(wrapped, ids, mask)
        scores = wrapped.scores(made, ids, torch.zeros_like(made.mask))
        real = mask.bool()
        theirs = model(input_ids=ids.masked_fill(~real, wrapped.symbols.pad), attention_mask=mask).logits
        return float((theirs - scores)[real].abs().max())
    if model.config.is_encoder_decoder:
        labels = tokens((3, 6), 1)
        labels[1, 4:] = labels[2, 2:] = -100
        theirs = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    else:
        if not wrapped.takes_left_padding:
            mask[:], lengths = 1, [7, 7, 7]
        labels = ids.masked_fill(mask == 0, -100)
        for row, prompt in enumerate([3, 3, 3] if not wrapped.takes_left_padding else [3, 2, 1]):
            labels[row, :prompt] = -100
        theirs = likelihood(model, ids, labels, lengths)
    made = make_batch(wrapped, ids, mask, labels)
    ours = CrossEntropy()(wrapped, made, progress=Progress(), rng=torch.Generator()).mean
    ours.backward()
    return abs(float(ours.detach()) - float(theirs))


@torch.no_grad()
def likelihood(model: Any, ids: Tensor, labels: Tensor, lengths: list[int]) -> Tensor:
    """The loss, row by row and without padding: some models don't shift labels, or err on padding."""
    total, count = torch.zeros(()), 0
    for row, n in enumerate(lengths):
        log_probs = model(input_ids=ids[row : row + 1, :n]).logits[0, :-1].log_softmax(-1)
        wanted = labels[row, 1:n]
        there = wanted != -100
        total = total - log_probs[there].gather(1, wanted[there].unsqueeze(1)).sum()
        count += int(there.sum())
    return total / count


@pytest.mark.parametrize(
    ("kind", "mapping"),
    [
        ("encoder_decoder", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES"),
        ("causal", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"),
        ("masked", "MODEL_FOR_MASKED_LM_MAPPING_NAMES"),
    ],
)
def test_every_architecture(kind: str, mapping: str) -> None:
    auto = pytest.importorskip("transformers.models.auto.modeling_auto")
    right, refused, wrong = [], {}, {}
    for key, names in getattr(auto, mapping).items():
        name = names[0] if isinstance(names, tuple) else names
        model = built(key, name, kind == "causal")
        if model is None:
            continue
        try:
            wrapped = wrap(model, **({"mask": 3} if kind == "masked" else {"start": 1}))
            if kind == "masked" and not hasattr(wrapped, "scores"):
                continue  # an encoder-decoder that is on this list, too
            difference = apart(model, wrapped, kind == "masked")
        except InputError as error:
            refused[key] = str(error)
            continue
        (right.append(key) if difference < 5e-4 else wrong.update({key: difference}))
    print(f"{kind}: {len(right)} right ({' '.join(right)})")
    print("\n".join(f"refused: {key}: {reason}" for key, reason in refused.items()))
    assert wrong == {}
    assert len(right) >= AT_LEAST[kind]
