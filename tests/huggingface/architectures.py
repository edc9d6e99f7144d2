"""Tiny models of every architecture of transformers that can be built, with a collated batch for each."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from hf_cases import tf
from torch import Tensor

V, WIDTH = 64, 32
SIZES = {  # small values of settings, by name
    WIDTH: """
        hidden_size d_model n_embd dim n_embed embed_dim word_embed_proj_dim embedding_size intermediate_size
        ffn_dim d_ff n_inner ffn_hidden_size encoder_ffn_dim decoder_ffn_dim hidden_dim encoder_hidden_size
        lru_width projection_dim out_hidden_size output_dim encoder_intermediate_size decoder_intermediate_size
        projector_hidden_size image_hidden_size mm_hidden_size d_inner mlp_dim audio_token_dim connector_dim
        output_proj_dim cross_attention_hidden_size merged_hidden_size backbone_hidden_size qformer_hidden_size
        conv_channels subsampling_conv_channels emb_dim entity_emb_size
    """,
    2: """
        num_hidden_layers n_layer n_layers num_layers num_decoder_layers encoder_layers decoder_layers
        num_encoder_layers num_key_value_heads num_experts_per_tok linear_num_value_heads linear_num_key_heads
        index_n_heads num_blocks depth encoder_num_hidden_layers decoder_num_hidden_layers num_kv_heads
        vision_layers adapter_depth num_text_layers resampler_depth speech_encoder_layers attn_layer_period
    """,
    4: """
        num_attention_heads n_head n_heads num_heads encoder_attention_heads decoder_attention_heads num_experts
        n_expert num_local_experts n_routed_experts moe_num_experts sliding_window attention_window block_size
        mamba_n_heads encoder_num_attention_heads decoder_num_attention_heads resampler_n_heads
        speech_encoder_attention_heads
    """,
    8: """
        head_dim d_kv kv_lora_rank q_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim state_size mamba_d_state
        rotary_dim linear_key_head_dim linear_value_head_dim index_head_dim hidden_size_per_layer_input num_mel_bins
        patch_size resampler_head_dim global_head_dim input_feat_per_channel
    """,
    16: """
        moe_intermediate_size shared_expert_intermediate_size mamba_d_head image_size max_source_positions
        num_conv_pos_embeddings resampler_n_latents
    """,
    V: """
        vocab_size decoder_vocab_size src_vocab_size tgt_vocab_size vocab_size_per_layer_input
        max_position_embeddings n_positions max_target_positions speech_encoder_intermediate_size encoder_vocab_size
        t2u_vocab_size char_vocab_size unit_hifi_gan_vocab_size n_words entity_vocab_size
    """,
    1: """
        n_groups mamba_n_groups n_group topk_group first_k_dense_replace num_conv_pos_embedding_groups bos_token_id
        decoder_start_token_id temporal_patch_size spatial_merge_size num_query_tokens adaptor_layers
        num_adapter_layers attn_layer_offset
    """,
    0: "pad_token_id",
}
SMALL: dict[str, Any] = {name: size for size, names in SIZES.items() for name in names.split()}
SMALL |= {"eos_token_id": 2, "use_mamba_kernels": False, "is_decoder": True, "depths": [1, 1]}
SMALL |= {"conv_dim": (32, 32), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2}
SMALL |= {"image_token_id": 60, "image_token_index": 60, "video_token_id": 61, "audio_token_id": 60}
SMALL |= {"attn_layer_indices": [1], "attention_types": [[["global", "local"], 1]]}
SMALL |= dict.fromkeys(["suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"])
# settings whose small value does not suit some architectures: each is left out in turn
DOUBTFUL = ["sliding_window", "head_dim", "num_key_value_heads", "layer_types", "rotary_dim", "num_experts_per_tok"]
DOUBTFUL += ["n_group", "patch_size", "image_size", "intermediate_size"]
RANDOM = ("drop", "jitter", "mask_")  # parts of the names of rates that make a pass random

MAPPINGS = {
    "encoder-decoder": "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "causal": "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "masked": "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "speech": "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "image-text": "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
}

tf.logging.set_verbosity(50)


class Architecture(NamedTuple):
    """A tiny model in training mode and what a collator gives for it."""

    model: Any
    inputs: dict[str, Tensor]


def shrunk(usual: Any, decoder: bool, left_out: str) -> Any:
    """A configuration of the same class with small sizes and no dropout, also in the configurations inside of it."""
    small: dict[str, Any] = {}
    for name, value in vars(usual).items():
        if isinstance(value, tf.PreTrainedConfig):
            small[name] = shrunk(value, decoder, left_out)
        elif isinstance(value, float) and any(word in name for word in RANDOM):
            small[name] = 0.0
        elif name in SMALL and name != left_out and (decoder or name != "is_decoder"):
            several = isinstance(value, list | tuple) == isinstance(SMALL[name], list | tuple)
            small[name] = SMALL[name] if several or value is None else value
    types = getattr(usual, "layer_types", None)
    if types and left_out != "layer_types":
        small["layer_types"] = (list(dict.fromkeys(types)) * 2)[:2]
    ropes = getattr(usual, "rope_parameters", None)
    if isinstance(ropes, dict) and "rope_theta" in ropes:
        small["rope_parameters"] = {**ropes, "mrope_section": [2, 1, 1]}
    return type(usual)(**small)


def composite(kind: Any) -> Any:
    """The configuration of a model that is made of an encoder and a BERT."""
    sizes = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": WIDTH}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    bert = {"vocab_size": V, "max_position_embeddings": V, **sizes, **none}
    sounds = {"conv_dim": (8, 8), "conv_stride": (5, 2), "conv_kernel": (10, 3), "num_feat_extract_layers": 2}
    rates = ["hidden_dropout", "attention_dropout", "activation_dropout", "feat_proj_dropout", "layerdrop"]
    encoders = {
        "EncoderDecoderConfig": lambda: tf.BertConfig(**bert),
        "VisionEncoderDecoderConfig": lambda: tf.ViTConfig(image_size=16, patch_size=8, **sizes, **none),
        "SpeechEncoderDecoderConfig": lambda: tf.Wav2Vec2Config(
            **sizes,
            **sounds,
            **dict.fromkeys([*rates, "mask_time_prob"], 0.0),
            num_conv_pos_embeddings=4,
            num_conv_pos_embedding_groups=2,
        ),
    }
    decoder = tf.BertConfig(**bert, is_decoder=True, add_cross_attention=True)
    return kind.from_encoder_decoder_configs(encoders[kind.__name__](), decoder)


def configurations(kind: Any, decoder: bool) -> Iterator[Any]:
    for left_out in ("", *DOUBTFUL):
        try:
            made_of_two = hasattr(kind, "from_encoder_decoder_configs")
            config = composite(kind) if made_of_two else shrunk(kind(), decoder, left_out)
        except Exception:
            continue
        for name, id in (("pad_token_id", 0), ("bos_token_id", 1), ("eos_token_id", 2), ("decoder_start_token_id", 1)):
            known = getattr(config, name, None)
            if known is None or (isinstance(known, int) and not 0 <= known < V):
                setattr(config, name, id)
        yield config


def inputs_of(model: Any, mapping: str) -> Iterator[dict[str, Tensor]]:
    """What a collator may give to a model: two examples of different lengths, then other forms of the main input."""
    ids = torch.tensor([[5, 6, 7, 8, 2], [9, 10, 2, 0, 0]])
    attended = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    labels = torch.tensor([[11, 12, 13, 2], [14, 2, -100, -100]])
    both = model.config.is_encoder_decoder
    if mapping == "masked" and not both:
        yield {"input_ids": ids, "attention_mask": attended, "labels": ids.masked_fill(ids < 3, -100)}
        return
    if not both:
        ids[0, 0] = ids[1, 0] = 1
        yield {"input_ids": ids, "attention_mask": attended, "labels": ids.masked_fill(attended == 0, -100)}
        yield {"input_ids": ids[:1], "attention_mask": attended[:1], "labels": ids[:1]}
        return
    if model.main_input_name == "input_ids":
        yield {"input_ids": ids, "attention_mask": attended, "labels": labels}
        return
    torch.manual_seed(0)
    main = {"inputs": "input_values"}.get(model.main_input_name, model.main_input_name)
    cut = torch.arange(800) < torch.tensor([[800], [400]])
    yield {main: torch.rand(2, 800), "attention_mask": cut.long(), "labels": labels}
    for shape in (
        (2, 3, 16, 16),
        (2, 3, 32, 32),
        (2, 8, 32),
        (2, 32, 8),
        (2, 800),
        (2, 4000),
        (2, 4, 770),
        (2, 4, 160),
    ):
        yield {main: torch.rand(shape), "labels": labels}


def build(model_type: str, name: str, mapping: str) -> Architecture | str:
    """A tiny model of a class with inputs that it takes, or why there is none."""
    kind, error = getattr(tf, name, None), "no such class"
    if kind is None:
        return error
    try:
        tried = list(configurations(kind.config_class or tf.CONFIG_MAPPING[model_type], mapping != "masked"))
    except Exception as failure:
        return f"{type(failure).__name__}: {failure}"
    error = "no small configuration"
    for config in tried:
        try:
            with torch.device("meta"):
                size = sum(parameter.numel() for parameter in kind(config).parameters())
            if size > 3e7:
                error = f"{size} parameters"
                continue
            torch.manual_seed(0)
            model = kind(config).train()
        except Exception as failure:
            error = f"{type(failure).__name__}: {failure}"
            continue
        for inputs in inputs_of(model, mapping):
            try:
                if model(**inputs).loss.isfinite():
                    return Architecture(model, inputs)
                error = "the loss is not finite"
            except Exception as failure:
                error = f"{type(failure).__name__}: {failure}"
    return " ".join(error.split())[:200]


def names_of(mapping: str) -> list[tuple[str, str]]:
    """The model types of a kind and the names of their classes."""
    from transformers.models.auto import modeling_auto

    found = getattr(modeling_auto, MAPPINGS[mapping])
    return [(key, names[0] if isinstance(names, tuple) else names) for key, names in found.items()]
