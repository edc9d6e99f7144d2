"""Our Transformer's weights inside Hugging Face's, so that both search for the same thing."""

import torch
from torch import Tensor, nn


def copy_transformer(ours, theirs: nn.Module) -> None:
    """Give ``theirs`` (``shapes.huggingface_transformer``) the function that ``ours`` computes; its biases become zero.

    ``ours`` is a ``TransformerModel`` with ``tie`` and ``share_source``.
    """
    spec = ours.spec
    found = ours.state_dict()
    width = spec.width
    new: dict[str, Tensor] = {"model.shared.weight": found["embedding"]}
    for side, layers in (("encoder", spec.encoder_layers), ("decoder", spec.decoder_layers)):
        for layer in range(layers):
            here = f"encoder.{layer}" if side == "encoder" else f"decoder.blocks.{layer}"
            there = f"model.{side}.layers.{layer}"
            query, key, value = found[f"{here}.qkv.weight"].chunk(3)
            new[f"{there}.self_attn.q_proj.weight"] = query
            new[f"{there}.self_attn.k_proj.weight"] = key
            new[f"{there}.self_attn.v_proj.weight"] = value
            new[f"{there}.self_attn.out_proj.weight"] = found[f"{here}.self_out.weight"]
            new[f"{there}.fc1.weight"] = found[f"{here}.feed_in.weight"]
            new[f"{there}.fc2.weight"] = found[f"{here}.feed_out.weight"]
            norms = {"self_norm": "self_attn_layer_norm", "feed_norm": "final_layer_norm"}
            if side == "decoder":
                norms["cross.norm"] = "encoder_attn_layer_norm"
                keys, values = found["cross.weight"].split(width)[2 * layer : 2 * layer + 2]
                new[f"{there}.encoder_attn.q_proj.weight"] = found[f"{here}.cross.query.weight"]
                new[f"{there}.encoder_attn.k_proj.weight"] = keys
                new[f"{there}.encoder_attn.v_proj.weight"] = values
                new[f"{there}.encoder_attn.out_proj.weight"] = found[f"{here}.cross.out.weight"]
            for mine, other in norms.items():
                for part in ("weight", "bias"):
                    new[f"{there}.{other}.{part}"] = found[f"{here}.{mine}.{part}"]
        for part in ("weight", "bias"):
            mine = "encoder_norm" if side == "encoder" else "decoder.norm"
            new[f"model.{side}.layer_norm.{part}"] = found[f"{mine}.{part}"]
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name in new:
                parameter.copy_(new.pop(name))
            elif parameter.requires_grad:
                assert name.endswith(".bias"), name
                parameter.zero_()
    assert not new, sorted(new)
