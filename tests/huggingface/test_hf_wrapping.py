"""What ``wrap`` makes of models: special tokens, saving, and errors that name what a model can't do."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from architectures import composite
from hf_cases import (
    BARTS,
    BERTS,
    CAUSAL,
    DECODERS,
    ENCODER_DECODERS,
    LLAMAS,
    SPECIAL,
    V,
    batch_for,
    collated,
    cross_entropy,
    tf,
    tokens,
)
from torch import nn

import unforced
from unforced.decoding import Beam, Greedy
from unforced.decoding.search import limits
from unforced.errors import InputError
from unforced.huggingface.batches import make_batch
from unforced.huggingface.wrap import wrap
from unforced.training.checkpoints import Checkpoint, fill_model, model_tensors, publish, read_model
from unforced.types import Progress


@pytest.mark.parametrize(
    ("config", "options", "expected"),
    [
        ({}, {}, (0, 1, 2, (0,))),
        ({"pad_token_id": 2}, {}, (1, 1, 2, (1,))),  # padding that is EOS gives way to another token
        ({"pad_token_id": None, "bos_token_id": 2}, {}, (2, 2, 2, ())),  # unless there is none
        ({"pad_token_id": None, "bos_token_id": None, "eos_token_id": [5, 6]}, {}, (5, 5, 5, ())),
        ({}, {"pad": 4, "eos": 3, "start": 9, "banned": (7,)}, (4, 9, 3, (4, 7))),
        ({}, {"tokenizer": SimpleNamespace(pad_token_id=8, eos_token_id=9)}, (8, 1, 9, (8,))),
    ],
)
def test_special_tokens(config: dict[str, Any], options: dict[str, Any], expected: tuple[Any, ...]) -> None:
    hf = tf.LlamaForCausalLM(tf.LlamaConfig(**{**LLAMAS, **config}))
    assert wrap(hf, **options).symbols == expected


def test_special_tokens_of_an_encoder_decoder() -> None:
    hf = ENCODER_DECODERS["bart"].model()
    hf.generation_config.suppress_tokens = [5]
    hf.generation_config.bad_words_ids = [[6], [7, 8]]
    assert wrap(hf).symbols == (0, 1, 2, (0, 5, 6))
    hf = tf.T5ForConditionalGeneration(tf.T5Config(vocab_size=V, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=1))
    with pytest.raises(InputError, match="pass start="):
        wrap(hf)
    assert wrap(hf, start=0).symbols.bos == 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.Linear(2, 2), "got Linear"),
        (
            lambda: tf.GPT2Model(tf.GPT2Config(vocab_size=V, n_embd=8, n_layer=1, n_head=1)),
            "GPT2Model has no output layer",
        ),
        (
            lambda: tf.T5Model(
                tf.T5Config(vocab_size=V, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=1, **SPECIAL)
            ),
            "no output layer",
        ),
        (
            lambda: tf.CpmAntForCausalLM(
                tf.CpmAntConfig(
                    vocab_size=V, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, dim_head=8, dim_ff=8
                )
            ),
            "does not take inputs_embeds",
        ),
        (lambda: tf.BertLMHeadModel(tf.BertConfig(**BERTS)), "scores of BertLMHeadModel depend on later tokens"),
    ],
)
def test_missing_model_methods_are_named(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        wrap(make())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tf.OpenAIGPTLMHeadModel(tf.OpenAIGPTConfig(vocab_size=V, n_embd=8, n_layer=1, n_head=1)),
            "takes no cache",
        ),
        (
            lambda: tf.MiniMaxForCausalLM(tf.MiniMaxConfig(**LLAMAS, head_dim=4, num_local_experts=2)),
            "holds tensors outside",
        ),
    ],
)
def test_a_model_without_a_usable_cache_takes_whole_passes_only(make: Any, message: str) -> None:
    torch.manual_seed(0)
    hf = make().eval()
    model, ids = wrap(hf, eos=2), torch.tensor([[5, 6, 7, 8]])
    data = make_batch(model, ids, None, ids)
    features, _ = model.advance(model.start(data), model.embed(data.prefix))
    torch.testing.assert_close(model.score(features), hf(input_ids=ids).logits[:, :-1], rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match=f"goes step by step, but .* {message}.*: use a method of whole passes"):
        Greedy(max_length=3)(model, data)


def test_positions_that_a_model_does_not_continue_are_given() -> None:
    """RoBERTa begins to count anew at every step if it is fed embeddings."""
    torch.manual_seed(0)
    hf = tf.RobertaForCausalLM(tf.RobertaConfig(**{**BERTS, "pad_token_id": 1}, is_decoder=True)).eval()
    model, ids = wrap(hf, eos=2), tokens((2, 6), 3)
    found = Greedy(min_length=4, max_length=4)(model, make_batch(model, ids)).tokens[:, 0]
    for _ in range(4):
        scores = hf(input_ids=ids).logits[:, -1].index_fill(1, torch.tensor([*model.symbols.banned, 2]), -torch.inf)
        ids = torch.cat([ids, scores.argmax(dim=1, keepdim=True)], dim=1)
    assert torch.equal(found, ids[:, 6:])


def test_embedding_scales_are_detected_for_soft_inputs() -> None:
    """A model that scales embeddings of ids alone, outside its embedding: what goes in by embeddings differs."""

    class Scaling(tf.GPT2LMHeadModel):
        def forward(self, input_ids: Any = None, inputs_embeds: Any = None, **options: Any) -> Any:
            if input_ids is not None:
                inputs_embeds = self.get_input_embeddings()(input_ids) * 3
            return super().forward(inputs_embeds=inputs_embeds, **options)

    torch.manual_seed(0)
    hf = Scaling(tf.GPT2Config(vocab_size=V, n_embd=8, n_layer=1, n_head=1, **SPECIAL))
    with pytest.raises(InputError, match="embeddings"):
        wrap(hf)


def test_any_embedding_can_be_mixed() -> None:
    """An embedding that is no multiple of its weight is called for the vectors of all tokens."""

    class Odd(nn.Embedding):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return super().forward(ids).flip(-1) + 1

    hf = CAUSAL["gpt2"].model()
    old = hf.get_input_embeddings()
    new = Odd(V, 16, dtype=torch.float64)
    new.weight = old.weight
    hf.set_input_embeddings(new)
    model = wrap(hf)
    assert model.scale is None
    ids = torch.arange(V - 1).view(4, 4)
    torch.testing.assert_close(model.embed_mix(nn.functional.one_hot(ids, V)), model.embed(ids))


def test_embeddings_without_scores() -> None:
    hf = CAUSAL["llama"].model()
    hf.config.tie_word_embeddings = False
    hf.lm_head = nn.Linear(16, V - 2, bias=False, dtype=torch.float64)
    model = wrap(hf)
    weights = torch.full((1, 1, V - 2), 1 / (V - 2), dtype=torch.float64)
    torch.testing.assert_close(model.embed_mix(weights)[0, 0], hf.get_input_embeddings().weight[: V - 2].mean(dim=0))
    with pytest.raises(InputError, match="the model has only 17"):
        model.embed_mix(torch.ones(1, 1, V + 1))


@pytest.mark.parametrize("name", ["t5", "bart", "gpt2", "llama"])
def test_tied_weights_are_saved_once_and_load_back(name: str, tmp_path: Path) -> None:
    model, other = DECODERS[name].wrapped(0), DECODERS[name].wrapped(1)
    weights = model_tensors(model)
    assert len({tensor.data_ptr() for tensor in weights.values()}) == len(weights)
    path = publish(tmp_path, "step-00000001", Checkpoint(weights, {}, {}, {}))
    fill_model(other, read_model(path), str(path))
    data = batch_for(name, model)
    assert torch.equal(cross_entropy(model, data), cross_entropy(other, data))
    other.load_state_dict(DECODERS[name].wrapped(1).state_dict())
    assert not torch.equal(cross_entropy(model, data), cross_entropy(other, data))


@pytest.mark.parametrize("name", ["t5", "bart", "gpt2", "llama", "qwen3-next"])
def test_gradient_checkpointing(name: str) -> None:
    """Passes over the whole output work, with the same gradients; going step by step is an error that says why."""
    model = DECODERS[name].wrapped().train()
    data = batch_for(name, model)
    expected = torch.autograd.grad(cross_entropy(model, data), list(model.parameters()))
    model.model.gradient_checkpointing_enable({"use_reentrant": False})
    found = torch.autograd.grad(cross_entropy(model, data), list(model.parameters()))
    for a, b in zip(found, expected):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    state = model.start(data)
    _, state = model.advance(state, model.embed(data.prefix[:, :1]))
    with pytest.raises(InputError, match="gradient checkpointing"):
        model.advance(state, model.embed(data.prefix[:, 1:2]))
    assert Greedy(max_length=3)(model, data).tokens.shape == (4, 1, 3)  # a search is not training


def test_dropping_layers_at_random_keeps_no_cache() -> None:
    hf = tf.BartForConditionalGeneration(tf.BartConfig(**BARTS, decoder_layerdrop=0.5))
    model = wrap(hf).train()
    data = batch_for("bart", model)
    cross_entropy(model, data).backward()
    _, state = model.advance(model.start(data), model.embed(data.prefix[:, :1]))
    with pytest.raises(InputError, match=r"drops layers at random while training: load it with decoder_layerdrop=0\.0"):
        model.advance(state, model.embed(data.prefix[:, 1:2]))


def mamba() -> Any:
    torch.manual_seed(1)
    hf = tf.MambaForCausalLM(tf.MambaConfig(vocab_size=V, hidden_size=16, state_size=4, num_hidden_layers=2, **SPECIAL))
    for parameter in hf.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return hf.eval()


def test_a_model_that_can_only_go_on_by_single_steps() -> None:
    hf = mamba()
    model = wrap(hf)
    assert not model.takes_strides
    ids = collated("gpt2")["input_ids"][:, :5].clamp(min=3)
    data = make_batch(model, ids, None, torch.cat([torch.full((4, 2), -100), ids[:, 2:]], dim=1))
    torch.testing.assert_close(cross_entropy(model, data), hf(input_ids=ids, labels=data_labels(ids)).loss)
    inputs = model.embed(data.prefix)
    whole, state = model.advance(model.start(data), inputs)
    with pytest.raises(InputError, match="overwrites its state, so that steps have no gradients"):
        model.advance(state, inputs)
    with torch.no_grad():
        _, state = model.advance(model.start(data), inputs[:, :1])
        torch.testing.assert_close(model.advance(state, inputs[:, 1:])[0], whole[:, 1:], rtol=1e-4, atol=1e-5)
    output = hf.generate(
        input_ids=ids, max_new_tokens=4, num_beams=2, do_sample=False, suppress_tokens=[0], length_penalty=0.0
    )
    found = Beam(2, 0.0, max_length=4)(model, make_batch(model, ids))
    rows = [row[5:] for row in output.tolist()]
    assert found.ids(model.symbols) == [row[: row.index(2)] if 2 in row else row for row in rows]
    ragged = torch.ones_like(ids)
    ragged[0, 3:] = 0
    with pytest.raises(InputError, match="the same length"):
        model.start(make_batch(model, ids, ragged))


def data_labels(ids: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.full((4, 2), -100), ids[:, 2:]], dim=1)


def test_a_sequence_too_long_is_named() -> None:
    model = CAUSAL["gpt2"].wrapped()
    data = make_batch(model, torch.full((1, 60), 5))
    with pytest.raises(InputError, match="has 64 positions"):
        Greedy(min_length=10, max_length=20)(model, data)
    reader = ENCODER_DECODERS["bart"].wrapped()
    with pytest.raises(InputError, match="has 64 positions, too few for a sequence of 90"):
        reader.start(make_batch(reader, torch.full((1, 90), 5)))
    masked = wrap(tf.BertForMaskedLM(tf.BertConfig(**BERTS)), mask=3)
    long = make_batch(masked, torch.full((1, 90), 5))
    with pytest.raises(InputError, match="positions, too few for a sequence of 90"):
        masked.scores(long, long.gold, long.mask)


def test_a_failed_trial_run_names_the_reason() -> None:
    """ProphetNet predicts several tokens at once, by a body that nothing here can stand in for."""
    sizes = dict.fromkeys(("hidden_size", "encoder_ffn_dim", "decoder_ffn_dim"), 16)
    layers = {f"num_{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    config = tf.ProphetNetConfig(
        vocab_size=V, max_position_embeddings=64, decoder_start_token_id=1, **sizes, **layers, **SPECIAL
    )
    with pytest.raises(
        InputError,
        match=r"ProphetNet\w+ does not take embeddings \(inputs_embeds\) alone: only cross_entropy can train it",
    ):
        wrap(tf.ProphetNetForConditionalGeneration(config))


@pytest.mark.parametrize("name", ["t5", "gpt2"])
def test_batches_that_do_not_fit_are_named(name: str) -> None:
    model = DECODERS[name].wrapped()
    data = batch_for(name, model)
    with pytest.raises(InputError, match="sources"):
        model.start(replace(data, source=torch.rand(4, 1, 2, 2), source_mask=None))
    if name == "t5":
        with pytest.raises(InputError, match="no source"):
            model.start(replace(data, source=None, source_mask=None))
    with pytest.raises(InputError, match="wrap"):
        make_batch(nn.Linear(1, 1), torch.zeros(1, 1, dtype=torch.long))


def images(size: int = 16, positions: int = 64) -> Any:
    """A vision transformer of width 16 and a BERT of another width that reads its output."""
    vit = tf.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=8, patch_size=4
    )
    sizes = {**BERTS, "hidden_size": size, "max_position_embeddings": positions}
    decoder = tf.BertConfig(**sizes, is_decoder=True, add_cross_attention=True)
    config = tf.VisionEncoderDecoderConfig(encoder=vit.to_dict(), decoder=decoder.to_dict())
    config.decoder_start_token_id, config.pad_token_id, config.eos_token_id = 1, 0, 2
    return tf.VisionEncoderDecoderModel(config)


def whisper() -> Any:
    sizes = {
        key: value for key, value in BARTS.items() if key not in ("max_position_embeddings", "forced_eos_token_id")
    }
    config = tf.WhisperConfig(**sizes, num_mel_bins=8, max_source_positions=16, max_target_positions=64)
    config.suppress_tokens = config.begin_suppress_tokens = None
    return tf.WhisperForConditionalGeneration(config)


def speech() -> Any:
    """Its encoder shortens the input, and the mask with it."""
    return tf.SpeechEncoderDecoderModel(composite(tf.SpeechEncoderDecoderConfig))


INPUTS = {
    "images": (lambda: images(), "pixel_values", (2, 3, 8, 8)),
    "images-projected": (lambda: images(24), "pixel_values", (2, 3, 8, 8)),
    "whisper": (whisper, "input_features", (2, 8, 32)),
    "speech": (speech, "input_values", (2, 400)),
}


@pytest.mark.parametrize("name", INPUTS)
def test_images_and_sounds(name: str) -> None:
    """Cross-entropy is the model's own loss, and every kind of method trains."""
    make, main, shape = INPUTS[name]
    torch.manual_seed(0)
    hf = make().eval()
    model, labels = wrap(hf, start=1, eos=2), torch.tensor([[5, 6, 2], [7, 2, -100]])
    inputs = {main: torch.rand(shape)}
    hf.config.decoder_start_token_id, hf.config.pad_token_id = 1, 0
    if name == "speech":
        inputs["attention_mask"] = (torch.arange(400) < torch.tensor([[400], [150]])).long()
    data = make_batch(model, inputs[main], inputs.get("attention_mask"), labels=labels)
    torch.testing.assert_close(cross_entropy(model, data), hf(**inputs, labels=labels).loss, rtol=1e-5, atol=1e-5)
    model.train()
    for objective in ("parallel_scheduled_sampling", "soft_beam", "minimum_risk"):
        rng = torch.Generator().manual_seed(0)
        loss = unforced.objective(objective)(model, data, progress=Progress(step=5, total=10), rng=rng)
        assert loss.total.isfinite()


def test_outputs_keep_to_the_positions_of_a_model() -> None:
    """The default limit of outputs is that of the positions after the prompt, for every example by itself."""
    torch.manual_seed(0)
    model = wrap(images(positions=7), eos=2)
    found = Greedy(min_length=6)(model, make_batch(model, torch.rand(1, 3, 8, 8)))
    assert found.lengths.tolist() == [[7]]
    gpt = CAUSAL["gpt2"].wrapped()
    prompts, mask = torch.full((2, 40), 5), torch.ones(2, 40, dtype=torch.long)
    mask[1, 10:] = 0
    assert limits(make_batch(gpt, prompts, mask)).tolist() == [64 - 39, 2 * 9 + 10]


def test_a_model_that_makes_no_cache_in_training_goes_step_by_step() -> None:
    module = {key: value for key, value in LLAMAS.items() if key != "max_position_embeddings"} | {"head_dim": 4}
    config = tf.T5GemmaConfig(
        encoder=module, decoder=module, vocab_size=V, dropout_rate=0.0, attention_dropout=0.0, **SPECIAL
    )
    torch.manual_seed(0)
    hf = tf.T5GemmaForConditionalGeneration(config).train()
    model = wrap(hf, start=1)
    data, whole = batch_for("bart", model), collated("bart")
    inputs = model.embed(data.prefix)
    at_once, _ = model.advance(model.start(data), inputs)
    _, state = model.advance(model.start(data), inputs[:, :2])
    torch.testing.assert_close(model.advance(state, inputs[:, 2:])[0], at_once[:, 2:], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(cross_entropy(model, data), hf(**whole).loss, rtol=1e-5, atol=1e-5)


def test_prompt_tuning_is_refused_with_what_to_do() -> None:
    hf = CAUSAL["gpt2"].model()
    hf.active_peft_config = SimpleNamespace(is_prompt_learning=True)
    with pytest.raises(InputError, match="use cross_entropy, or another adapter such as LoRA"):
        wrap(hf)


class Words(dict):
    """A tokenizer with so many tokens."""

    mask_token_id, pad_token_id, all_special_ids = 3, 0, (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("size", "message"), [(5, "has only 5 tokens, but Bert"), (18, "has 18 tokens, but BertForMaskedLM only 17")]
)
def test_a_tokenizer_of_another_model_is_refused(size: int, message: str) -> None:
    with pytest.raises(InputError, match=f"the tokenizer {message}.* use the model's own tokenizer"):
        wrap(tf.BertForMaskedLM(tf.BertConfig(**BERTS)), tokenizer=Words.fromkeys(range(size)))
    assert wrap(tf.BertForMaskedLM(tf.BertConfig(**BERTS)), tokenizer=Words.fromkeys(range(16))).mask_token == 3


def test_a_wrapped_model_trains_on_a_task_of_the_library(tmp_path: Path) -> None:
    torch.manual_seed(0)
    task = unforced.task("palindromes", length=5)
    sizes = task.fit(task.read("train")).sizes
    hf = tf.GPT2LMHeadModel(tf.GPT2Config(vocab_size=sizes.target, n_embd=8, n_layer=1, n_head=1, n_positions=64))
    run = unforced.fit(wrap(hf), task, "cross_entropy", tmp_path / "run", steps=4, quiet=True)
    assert unforced.load(run, model=wrap(hf)).model.model is hf


@pytest.mark.parametrize("name", ["t5", "bart", "gpt2", "llama", "gemma2"])
def test_models_in_half_precision(name: str) -> None:
    hf = DECODERS[name].model().bfloat16()
    model, data = wrap(hf), collated(name)
    assert model.takes_strides
    assert model.takes_left_padding
    ours, theirs = cross_entropy(model, make_batch(model, **data)), hf(**data).loss
    torch.testing.assert_close(ours.float(), theirs.float(), rtol=0.02, atol=0)
    ids = torch.arange(V).unsqueeze(0)
    torch.testing.assert_close(model.embed_mix(nn.functional.one_hot(ids, V).float()), model.embed(ids))
    assert Beam(2, max_length=4)(model, make_batch(model, **data)).scores.isfinite().all()


class Adapted(nn.Module):
    """A model inside two shells, as adapter libraries leave it; what the shells lack the model answers."""

    def __init__(self, model: nn.Module, depth: int = 1) -> None:
        super().__init__()
        self.base_model = Adapted(model, depth - 1) if depth else model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model, name)

    def get_base_model(self) -> Any:
        inner = self.base_model
        return inner.get_base_model() if isinstance(inner, Adapted) else inner

    def forward(self, *parts: Any, **options: Any) -> Any:
        return self.base_model(*parts, **options)


@pytest.mark.parametrize("name", ["t5", "bart", "gpt2", "opt"])
def test_models_inside_adapters(name: str) -> None:
    hf = DECODERS[name].model()
    model, shell = wrap(hf), Adapted(hf)
    adapted = wrap(shell)
    assert adapted.model is shell
    data = batch_for(name, model)
    assert torch.equal(cross_entropy(adapted, batch_for(name, adapted)), cross_entropy(model, data))
    assert torch.equal(Beam(2, max_length=4)(adapted, data).scores, Beam(2, max_length=4)(model, data).scores)
