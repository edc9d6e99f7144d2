"""The measured models: their sizes, Hugging Face's Transformer with our weights, and models after some training."""

from collections.abc import Callable
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import corpus
from harness import WORK, say
from unforced.models.lstm import LSTM
from unforced.models.transformer import Transformer
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.types import Batch, Progress, Sizes, Symbols

# ---- sizes ----

# Dropout is on embeddings and on what a block adds to the residual stream, as in the library's Transformer.
# (JoeyNMT also drops attention weights and inner activations at the same rate; it has no setting for them.)
TRANSFORMER = {"width": 256, "heads": 4, "feedforward": 1024, "encoder_layers": 3, "decoder_layers": 3, "dropout": 0.1}
LSTM_SIZES = {"width": 256, "encoder_direction": 256, "dropout": 0.1}
SHAPES = {  # ``fed``: whether the attention's output enters the recurrence
    "transformer": TRANSFORMER,
    "lstm": {**LSTM_SIZES, "fed": False},
    "lstm_fed": {**LSTM_SIZES, "fed": True},
}


def unforced_model(name: str, shape: dict) -> Any:
    """Return the library's specification of a model of this shape."""
    if name == "transformer":
        return Transformer(**shape, tie=True, share_source=True)
    assert shape["encoder_direction"] == shape["width"]
    return LSTM(
        hidden=shape["width"],
        embedding=shape["width"],
        dropout=shape["dropout"],
        input_feeding=shape["fed"],
        attention="bahdanau",
    )


# ---- Hugging Face's Transformer ----


def huggingface_transformer(shape: dict, vocabulary: int) -> Any:
    """Return Pegasus with our sizes: pre-norm blocks, sinusoidal positions, one tied and scaled embedding, ReLU."""
    from transformers import PegasusConfig, PegasusForConditionalGeneration

    config = PegasusConfig(
        vocab_size=vocabulary,
        d_model=shape["width"],
        encoder_layers=shape["encoder_layers"],
        decoder_layers=shape["decoder_layers"],
        encoder_attention_heads=shape["heads"],
        decoder_attention_heads=shape["heads"],
        encoder_ffn_dim=shape["feedforward"],
        decoder_ffn_dim=shape["feedforward"],
        dropout=shape["dropout"],
        attention_dropout=0.0,
        activation_dropout=0.0,
        activation_function="relu",
        scale_embedding=True,
        max_position_embeddings=512,
        pad_token_id=corpus.PAD,
        eos_token_id=corpus.EOS,
        decoder_start_token_id=corpus.BOS,
        forced_eos_token_id=None,
        tie_word_embeddings=True,
    )
    return PegasusForConditionalGeneration(config)


def copy_transformer(ours: Any, theirs: nn.Module) -> None:
    """Copy the weights of our Transformer (with ``tie`` and ``share_source``) into ``huggingface_transformer``.

    Both then compute the same function. Biases that ours does not have become zero.
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


# ---- trained models ----

UPDATES, QUICK_UPDATES = 1200, 100  # of cross-entropy, nearly three epochs of Multi30k
WARM_UP = 50  # updates in which the learning rate rises
SHARE = 8  # a larger vocabulary is trained for one SHAREth of the updates


def trained(name: str, data: corpus.Corpus, updates: int, vocabulary: int | None = None) -> nn.Module:
    """Return a model of ``SHAPES`` after so many updates of cross-entropy, kept in ``WORK`` for the next run.

    ``vocabulary`` is a number of target tokens larger than that of the data. The trained model is then enlarged, and
    trained further until it gives the new tokens little probability.
    """
    torch.manual_seed(1)
    size = data.vocabulary if vocabulary is None else vocabulary
    model = unforced_model(name, SHAPES[name]).build(Sizes(size, data.vocabulary))
    label = name if vocabulary is None else f"{name}-{vocabulary}"
    kept = WORK / f"trained-{label}-{data.name}-{updates}.safetensors"
    if kept.is_file():
        found = load_file(kept)
        if {k: v.shape for k, v in found.items()} == {k: v.shape for k, v in model.state_dict().items()}:
            model.load_state_dict(found)
            return model
    if vocabulary is not None:
        _enlarge(trained(name, data, updates), model)
        updates = updates // SHARE
    say(f"  training the {label}, {updates} updates (kept for the next run)")
    pairs = data.ids("train")
    train(model, CrossEntropy(), updates, data.train, lambda rows: batch([pairs[i] for i in rows]))
    save_file(model.state_dict(), kept)
    return model


def train(model: Any, objective: Any, updates: int, examples: int, make: Callable[[list[int]], Any]) -> None:
    """Train on ``corpus.BATCH`` examples per update, shuffled in every epoch; ``make`` collates examples by number."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98), fused=True)
    shuffle, rng = torch.Generator().manual_seed(1), torch.Generator().manual_seed(1)
    epochs = -(-updates * corpus.BATCH // examples)
    order = [row for _ in range(epochs) for row in torch.randperm(examples, generator=shuffle).tolist()]
    model.train()
    for step in range(updates):
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * min(1.0, (step + 1) / WARM_UP)
        rows = order[corpus.BATCH * step : corpus.BATCH * (step + 1)]
        loss = objective(model, make(rows), progress=Progress(step), rng=rng)
        loss.mean.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 50 == 0:
            say(f"    {step + 1} updates, loss {float(loss.mean.detach()):.2f}")


def _enlarge(small: nn.Module, large: nn.Module) -> None:
    """Copy the weights into a model with more target tokens, as the first ones."""
    with torch.no_grad():
        for mine, given in zip(large.parameters(), small.parameters(), strict=True):
            mine[tuple(slice(size) for size in given.shape)] = given


# ---- batches ----


def batch(pairs: list[tuple[list[int], list[int]]]) -> Batch:
    """Return a padded batch of pairs of ids; the last id of each side is the end symbol."""
    source, gold = (
        pad_sequence([torch.tensor(ids) for ids in side], batch_first=True, padding_value=corpus.PAD)
        for side in zip(*pairs, strict=True)
    )
    symbols = Symbols(corpus.PAD, corpus.BOS, corpus.EOS, banned=(corpus.PAD, corpus.BOS))
    mask, ids = gold != corpus.PAD, torch.arange(len(pairs))
    return Batch.of_gold(gold, mask, symbols, source=source, source_mask=source != corpus.PAD, ids=ids)


def running_text(data: corpus.Corpus, length: int, count: int) -> Batch:
    """Return a batch of texts of exactly this many tokens; the source of each is its first 16."""
    running = [token for _, target in data.ids("train") for token in target[:-1]]
    texts = [[*running[i * length : (i + 1) * length - 1], corpus.EOS] for i in range(count)]
    return batch([([*text[:16], corpus.EOS], text) for text in texts])
