"""Batches of collated data, with any padding and prompts.

Cross-entropy through the wrapper is the model's own loss.
"""

from typing import Any

import pytest
import torch
from hf_cases import CAUSAL, DECODERS, ENCODER_DECODERS, collated, cross_entropy, fast, features, tokens

from unforced.decoding import Beam, Greedy
from unforced.errors import InputError
from unforced.huggingface.batches import make_batch
from unforced.huggingface.wrap import wrap
from unforced.types import Batch


def agree(a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a.double(), b.double(), rtol=0, atol=1e-5)


@pytest.mark.parametrize("seed", fast([0, 10], 0))
@pytest.mark.parametrize("name", DECODERS)
def test_cross_entropy_is_the_models_own_loss(name: str, seed: int) -> None:
    model, data = DECODERS[name].wrapped(seed), collated(name, seed)
    ours, theirs = cross_entropy(model, make_batch(model, **data)), model.model(**data).loss
    agree(ours, theirs)
    learnt = [p for p in model.parameters() if p.requires_grad]
    mine, others = (torch.autograd.grad(value, learnt, allow_unused=True) for value in (ours, theirs))
    for a, b in zip(mine, others):
        assert (a is None) == (b is None)
        if a is not None and b is not None:
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", fast(CAUSAL))
def test_prompts_may_be_padded_on_either_side(name: str) -> None:
    model = CAUSAL[name].wrapped()
    right, left = (make_batch(model, **collated(name, 3, left=side)) for side in (False, True))
    assert torch.equal(right.gold, left.gold)
    assert torch.equal(right.prefix, left.prefix)
    assert torch.equal(right.source, left.source)  # type: ignore[arg-type]
    agree(cross_entropy(model, left), model.model(**collated(name, 3)).loss)


def test_a_dialogue_becomes_an_example_for_each_turn_that_is_scored() -> None:
    model, ids = CAUSAL["gpt2"].wrapped(), tokens((2, 9), 4)
    labels = ids.clone()
    labels[0, :2] = labels[0, 4:6] = -100  # two turns of 2 and 3 tokens
    labels[1, :3] = -100
    labels[1, 8:] = -100
    made = make_batch(model, ids, None, labels, ids=torch.tensor([7, 9]))
    assert made.mask.sum(dim=1).tolist() == [2, 3, 5]
    assert made.ids is not None
    assert made.ids.tolist() == [7, 7, 9]
    assert made.source_mask is not None
    assert made.source_mask.sum(dim=1).tolist() == [1, 5, 2]  # the last token of a prompt is the first input
    assert made.prefix[:, 0].tolist() == [int(ids[0, 1]), int(ids[0, 5]), int(ids[1, 2])]
    agree(cross_entropy(model, made), model.model(input_ids=ids, labels=labels).loss)


def test_rows_without_labels_are_left_out() -> None:
    model, ids = CAUSAL["gpt2"].wrapped(), tokens((3, 5), 4)
    labels = ids.clone()
    labels[1] = -100
    labels[:, 0] = -100
    assert len(make_batch(model, ids, None, labels)) == 2
    nothing = make_batch(model, ids, None, torch.full_like(ids, -100))
    assert nothing.tokens == 0
    assert float(cross_entropy(model, nothing).detach()) == 0


@pytest.mark.parametrize("name", ["bart", "mbart"])
def test_the_start_symbol_may_differ_between_examples(name: str) -> None:
    """An mBART's labels end with the code of their language, which is what its decoder starts with."""
    hf = DECODERS[name].model()
    model, data = wrap(hf), collated(name)
    labels = data["labels"]
    for row, length in enumerate([5, 1, 3, 4]):
        labels[row, length - 1] = 3 + row % 2
    made = make_batch(model, **data)
    if name == "mbart":
        assert made.prefix[:, 0].tolist() == [3, 4, 3, 4]
    agree(cross_entropy(model, made), hf(**data).loss)
    for b in range(4):  # a search starts with it, too
        alone = made.select(torch.tensor([b]))
        symbols = model.symbols._replace(bos=int(made.prefix[b, 0]))
        other = Batch(alone.prefix, alone.gold, alone.mask, symbols, alone.source, alone.source_mask)
        expected, found = (Beam(3, max_length=5)(model, each) for each in (other, alone))
        assert torch.equal(found.tokens, expected.tokens)
        torch.testing.assert_close(found.scores, expected.scores)


def test_a_decoder_may_be_given_several_tokens_to_start_with() -> None:
    hf, data = ENCODER_DECODERS["bart"].model(), collated("bart")
    model = wrap(hf, start=(1, 9))
    inputs = {key: data[key] for key in ("input_ids", "attention_mask")}
    found = Greedy(max_length=6)(model, make_batch(model, **inputs))
    output = hf.generate(
        **inputs, max_new_tokens=7, forced_bos_token_id=9, do_sample=False, suppress_tokens=list(model.symbols.banned)
    )
    rows = [row[2:] for row in output.tolist()]
    assert found.ids(model.symbols) == [row[: row.index(2)] if 2 in row else row for row in rows]

    labels = torch.cat([torch.full((4, 1), 9), data["labels"]], dim=1)
    made = make_batch(model, **inputs, labels=labels)
    assert torch.equal(made.gold, make_batch(model, **data).gold)  # what it is given is not scored
    scores = hf(**inputs, labels=labels).logits[:, 1:]
    torch.testing.assert_close(model.score(features(model, made))[made.mask], scores[made.mask])


def test_decoder_inputs_of_a_collator_are_checked() -> None:
    model, data = ENCODER_DECODERS["t5"].wrapped(), collated("t5")
    shifted = model.model.prepare_decoder_input_ids_from_labels(labels=data["labels"])
    assert torch.equal(make_batch(model, **data, decoder_input_ids=shifted).prefix, make_batch(model, **data).prefix)
    with pytest.raises(InputError, match="shifted by one"):
        make_batch(model, **data, decoder_input_ids=shifted.roll(1, dims=1))


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("gpt2", {"attention_mask": torch.ones(4, 3)}, "attention_mask has the shape .4, 3."),
        ("gpt2", {"labels": torch.ones(4, 3, dtype=torch.long)}, "labels has the shape .4, 3."),
        ("gpt2", {"labels": torch.full((4, 9), 3)}, "attention_mask hides"),
        ("gpt2", {"labels": torch.full((4, 9), 3), "attention_mask": None}, "must be its input_ids"),
        ("gpt2", {"attention_mask": torch.zeros(4, 9), "labels": None}, "at least one token"),
        ("gpt2", {"input_ids": torch.rand(4, 9)}, "must be token ids"),
        ("t5", {"labels": torch.tensor([[-100, 3]] * 4)}, "only at the end"),
        ("gpt2", {"token_type_ids": torch.ones(4, 9)}, "pairs of texts"),
        ("gpt2", {"input_ids": [[1, 2], [3]]}, "lists of equal length"),
    ],
)
def test_bad_data_is_named(name: str, change: dict[str, Any], message: str) -> None:
    model = DECODERS[name].wrapped()
    with pytest.raises(InputError, match=message):
        make_batch(model, **{**collated(name), **change})
