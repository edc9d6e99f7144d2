"""Greedy and beam search on wrapped models against the models' own ``generate``: the same ids and scores."""

from typing import Any

import pytest
import torch
from hf_cases import DECODERS, ENCODER_DECODERS, collated, fast
from torch import Tensor

from unforced.decoding import Beam, Greedy
from unforced.huggingface.batches import make_batch
from unforced.huggingface.wrap import wrap
from unforced.types import Hypotheses

STEPS = 8
EARLY = {"heuristic": False, "full": True, "never": "never"}
SETTINGS = [  # beam, penalty, nbest, minimum, stopping
    (1, 1.0, 1, 0, "heuristic"),
    (1, 1.0, 1, 3, "heuristic"),
    (2, 1.0, 2, 0, "heuristic"),
    (4, 0.0, 3, 0, "never"),
    (3, 2.0, 3, 2, "never"),
    (5, 0.6, 5, 0, "full"),
]


def end_more_often(hf: Any, seed: int) -> None:
    """Add to the end symbol's score, more for some models than for others."""
    layer = hf.get_output_embeddings()
    bias = torch.zeros_like(layer.weight[:, 0]) if layer.bias is None else layer.bias.detach().clone()
    bias[2] += 1.5 * (seed % 3)
    layer.bias = torch.nn.Parameter(bias)


def prompts(name: str, seed: int) -> dict[str, Tensor]:
    """Sources, or prompts padded at the left, as ``generate`` expects them."""
    made = collated(name, seed, left=True)
    if name in ENCODER_DECODERS:
        return {key: made[key] for key in ("input_ids", "attention_mask")}
    given = (made["attention_mask"] == 1) & (made["labels"] == -100)
    order = given.byte().argsort(dim=1, stable=True)
    ids = made["input_ids"].masked_fill(~given, 0).gather(1, order)[:, -6:]
    return {"input_ids": ids, "attention_mask": given.long().gather(1, order)[:, -6:]}


def generated(model: Any, inputs: dict[str, Tensor], banned: tuple[int, ...], **options: Any) -> Any:
    with torch.no_grad():
        return model.generate(
            **inputs,
            do_sample=False,
            max_new_tokens=STEPS,
            suppress_tokens=list(banned),
            return_dict_in_generate=True,
            output_scores=True,
            **options,
        )


def theirs(output: Any, inputs: dict[str, Tensor], causal: bool) -> list[list[int]]:
    """Return outputs without their first token, the end symbol and everything after it."""
    skip = inputs["input_ids"].shape[1] if causal else 1
    rows = output.sequences[:, skip:].tolist()
    return [row[: row.index(2)] if 2 in row else row for row in rows]


def cut(found: Hypotheses, nbest: int) -> list[list[int]]:
    """Ours, in the order of theirs: all outputs of the first example, then those of the second."""
    rows = found.tokens[:, :nbest].flatten(0, 1).tolist()
    lengths = found.lengths[:, :nbest].flatten().tolist()
    rows = [row[:length] for row, length in zip(rows, lengths)]
    return [row[: row.index(2)] if 2 in row else row for row in rows]


def compare(name: str, seed: int, settings: tuple[Any, ...]) -> set[int]:
    beam, penalty, nbest, minimum, stopping = settings
    hf = DECODERS[name].model(seed)
    end_more_often(hf, seed)
    model = wrap(hf, **DECODERS[name].options)
    inputs = prompts(name, seed)
    output = generated(
        hf,
        inputs,
        model.symbols.banned,
        num_beams=beam,
        length_penalty=penalty,
        num_return_sequences=nbest,
        min_new_tokens=minimum,
        early_stopping=EARLY[stopping],
    )
    made = make_batch(model, **inputs)
    if beam == 1:
        ours = Greedy(minimum, STEPS)(model, made)
    else:
        ours = Beam(beam, penalty, nbest, minimum, STEPS, early_stopping=stopping)(model, made)
        expected = output.sequences_scores.to(ours.scores.dtype)
        torch.testing.assert_close(ours.scores.flatten(), expected, atol=2e-5, rtol=1e-5)
    assert cut(ours, nbest) == theirs(output, inputs, name not in ENCODER_DECODERS)
    if beam == 1:  # one hypothesis of a beam of one has the score that its tokens' scores add up to
        single = Beam(1, 0.0, 1, minimum, STEPS)(model, made)
        torch.testing.assert_close(single.scores, ours.scores)
    return set(ours.lengths.flatten().tolist())


@pytest.mark.parametrize("name", fast(DECODERS))
def test_ids_and_scores_equal_generates(name: str) -> None:
    lengths = set()
    for seed, settings in enumerate(SETTINGS):
        lengths |= compare(name, seed, settings)
    assert lengths - {STEPS}, "no output ended by itself"


@pytest.mark.slow
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("name", DECODERS)
def test_ids_and_scores_equal_generates_on_many_models(name: str, settings: tuple[Any, ...]) -> None:
    for seed in range(10, 25):
        compare(name, seed, settings)
