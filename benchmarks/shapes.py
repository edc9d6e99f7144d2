"""The shapes that all sides are built with, and Hugging Face's Transformer of that shape."""

# Dropout is on what a block adds to the residual stream and on embeddings, as the library's Transformer has it.
# (JoeyNMT drops attention weights and inner activations by the same rate as well, and has no setting against it.)
TRANSFORMER = {"width": 256, "heads": 4, "feedforward": 1024, "encoder_layers": 3, "decoder_layers": 3, "dropout": 0.1}
# ``fed``: whether what attention finds enters the recurrence.
LSTM = {"width": 256, "encoder_direction": 256, "dropout": 0.1, "fed": False}
LSTM_FED = {**LSTM, "fed": True}
SHAPES = {"transformer": TRANSFORMER, "lstm": LSTM, "lstm_fed": LSTM_FED}


def huggingface_transformer(shape: dict, vocabulary: int, *, pad: int, bos: int, eos: int):
    """Pegasus with our sizes: pre-norm blocks, sinusoidal positions, one tied and scaled embedding, ReLU."""
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
        pad_token_id=pad,
        eos_token_id=eos,
        decoder_start_token_id=bos,
        forced_eos_token_id=None,
        tie_word_embeddings=True,
    )
    return PegasusForConditionalGeneration(config)


def unforced_model(name: str, shape: dict):
    """The library's specification of a model of this shape."""
    from unforced.models.lstm import LSTM as Lstm
    from unforced.models.transformer import Transformer

    if name == "transformer":
        return Transformer(**shape, tie=True, share_source=True)
    assert shape["encoder_direction"] == shape["width"]
    return Lstm(
        hidden=shape["width"],
        embedding=shape["width"],
        dropout=shape["dropout"],
        input_feeding=shape["fed"],
        attention="bahdanau",
    )
