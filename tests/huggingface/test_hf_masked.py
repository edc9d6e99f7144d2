"""Masked models of transformers with the protocol ``MaskedModel``."""

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hf_cases import BERTS, MASKED, V, fast, tf, tokens

from unforced.energy.partition import log_partition
from unforced.errors import InputError
from unforced.huggingface.batches import make_batch
from unforced.huggingface.wrap import wrap
from unforced.protocols import MaskedModel


def made(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model, and what a collator for masked language models gives: some tokens hidden, their labels kept."""
    model, ids = MASKED[name].wrapped(), tokens((3, 7), 1)
    mask = torch.ones_like(ids)
    mask[1, 4:] = mask[2, 6:] = 0
    labels = torch.full_like(ids, -100)
    labels[:, 1:3] = ids[:, 1:3]
    ids[:, 1] = model.mask_token
    return model, {"input_ids": ids.masked_fill(mask == 0, model.symbols.pad), "attention_mask": mask, "labels": labels}


def close(name: str, a: torch.Tensor, b: torch.Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=MASKED[name].near)


@pytest.mark.parametrize("name", fast(MASKED))
def test_scores_are_the_models_own(name: str) -> None:
    model, data = made(name)
    assert isinstance(model, MaskedModel)
    made_batch = make_batch(model, **data)
    nothing = torch.zeros_like(made_batch.mask)
    output = model.model(**data)
    scores = model.scores(made_batch, made_batch.prefix, nothing)
    real = data["attention_mask"].bool()
    close(name, scores[real], output.logits[real])
    loss = F.cross_entropy(scores[made_batch.mask], made_batch.gold[made_batch.mask])
    torch.testing.assert_close(loss, output.loss.to(loss.dtype), rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", fast(MASKED))
def test_masked_tokens_are_hidden(name: str) -> None:
    model, data = made(name)
    made_batch, hidden = make_batch(model, **data), torch.zeros(3, 7, dtype=torch.bool)
    hidden[:, 3] = True
    scores = model.scores(made_batch, made_batch.gold, hidden)
    other = made_batch.gold.clone()
    other[:, 3] = 5
    real = data["attention_mask"].bool()
    close(name, model.scores(made_batch, other, hidden)[real], scores[real])
    other[:, 2] = 6
    assert not torch.allclose(model.scores(made_batch, other, hidden)[real], scores[real])


@pytest.mark.parametrize("name", fast(MASKED))
def test_padding_and_rows_change_nothing(name: str) -> None:
    model, data = made(name)
    made_batch, hidden = make_batch(model, **data), tokens((3, 7), 5) > 9
    scores = model.scores(made_batch, made_batch.gold, hidden)
    for b, length in enumerate([7, 4, 6]):
        alone = replace(made_batch.select(torch.tensor([b])), source_mask=None)
        found = model.scores(alone, made_batch.gold[b : b + 1, :length], hidden[b : b + 1, :length])
        close(name, found[0], scores[b, :length])
    twice = model.scores(made_batch, made_batch.gold.repeat_interleave(2, dim=0), hidden.repeat_interleave(2, dim=0))
    close(name, twice[::2], twice[1::2])
    real = data["attention_mask"].bool()
    close(name, twice[::2][real], scores[real])


def test_sums_over_all_texts_between_special_tokens() -> None:
    """log Z against every text put in by hand, with padding at either side."""
    model = wrap(MASKED["bert"].model(), mask=3, banned=(0, 1, 2))
    ids = torch.tensor([[1, 7, 8, 2], [1, 9, 2, 0], [0, 1, 9, 2]])
    made_batch = make_batch(model, ids, ids.ne(0).long())
    found = log_partition(model, made_batch, "raw")
    kept = [i for i in range(V) if i not in (0, 1, 2, 3)]
    for b, texts in enumerate([list(itertools.product(kept, repeat=2)), [(i,) for i in kept], [(i,) for i in kept]]):
        one = made_batch.select(torch.tensor([b]))
        totals = []
        for text in texts:
            tokens, places = one.gold.clone(), one.mask[0].nonzero().squeeze(1)
            tokens[0, places] = torch.tensor(text)
            energy = 0.0
            for place in places.tolist():
                hidden = torch.zeros_like(one.mask)
                hidden[0, place] = True
                with torch.no_grad():
                    energy -= float(model.scores(one, tokens, hidden)[0, place, tokens[0, place]])
            totals.append(-energy)
        assert float(found[b]) == pytest.approx(float(torch.tensor(totals, dtype=torch.float64).logsumexp(0)), abs=1e-5)


def test_without_labels_all_but_special_tokens_count() -> None:
    hf = MASKED["bert"].model()
    names = {
        "mask_token_id": 3,
        "cls_token_id": 1,
        "sep_token_id": 2,
        "pad_token_id": 0,
        "all_special_ids": [0, 1, 2, 3],
    }
    model = wrap(hf, tokenizer=SimpleNamespace(**names))
    assert model.mask_token == 3
    assert model.symbols == (0, 1, None, (0, 1, 2, 3))
    made_batch = make_batch(
        model, torch.tensor([[1, 7, 8, 2], [1, 9, 2, 0]]), torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]])
    )
    assert made_batch.mask.tolist() == [[False, True, True, False], [False, True, False, False]]
    assert made_batch.length is not None
    assert made_batch.length.tolist() == [4, 3]


def test_missing_parts_are_named() -> None:
    hf = MASKED["bert"].model()
    with pytest.raises(InputError, match="mask token"):
        wrap(hf)
    with pytest.raises(InputError, match="BertModel has no output layer"):
        wrap(tf.BertModel(tf.BertConfig(**BERTS)))
