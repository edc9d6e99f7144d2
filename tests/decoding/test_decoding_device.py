"""Decoders, batches and ``unforced decode`` work where the model is, whatever the default device."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from small_models import ENDED, FIXED, SOURCES, lstm, make_batch

from unforced.cli import decode_stream
from unforced.decoding import Beam, GoldHistory, Greedy, Sample, SoftBeamSearch, enumerate_sequences
from unforced.protocols import FittedTask
from unforced.tasks.synthetic import Palindromes
from unforced.types import Example

DECODERS = [Greedy(), Sample(samples=2, top_k=3, nucleus=0.9), Beam(2), Beam(2, finished="stay"), SoftBeamSearch(2)]


@pytest.mark.parametrize("decoder", DECODERS, ids=str)
@pytest.mark.parametrize("symbols", [ENDED, FIXED], ids=["ended", "fixed"])
def test_all_tensors_are_made_on_the_models_device(decoder: Any, symbols: Any) -> None:
    """A tensor that is made without a device would be on the meta device, and could not meet the model's."""
    model, batch, rng = lstm(1), make_batch(SOURCES, symbols), torch.Generator().manual_seed(1)
    expected = decoder(model, batch, rng=rng)
    with torch.device("meta"):
        found = decoder(model, batch, rng=rng.manual_seed(1))
    assert torch.equal(found.tokens, expected.tokens)


def test_enumeration_and_gold_history() -> None:
    model, batch = lstm(1), make_batch(SOURCES[:1])
    listed = enumerate_sequences(model, batch, 2)
    gold = make_batch(SOURCES, FIXED)
    assert gold.source is not None
    gold = type(gold).of_gold(
        gold.source.clamp(max=4), gold.source > 0, FIXED, source=gold.source, source_mask=gold.source_mask
    )
    expected = GoldHistory()(model, gold)
    with torch.device("meta"):
        assert torch.equal(enumerate_sequences(model, batch, 2).tokens, listed.tokens)
        assert torch.equal(GoldHistory()(model, gold).tokens, expected.tokens)


def test_unforced_decode_moves_its_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    task = Palindromes(length=3)
    fitted, seen = FittedTask(task, task.fit(task.read("train"))), []

    def decoder(model: Any, batch: Any, rng: torch.Generator) -> Any:
        seen.append(batch.gold.device)
        nothing = torch.zeros(len(batch), 1)
        return SimpleNamespace(ids=lambda symbols, n: [[]] * len(batch), scores=nothing)

    monkeypatch.setattr(decode_stream, "fastest_device", lambda: torch.device("meta"))
    monkeypatch.setattr(decode_stream, "read_recipe", lambda run: None)
    monkeypatch.setattr(decode_stream, "load", lambda *_, **__: (None, fitted))
    monkeypatch.setattr(decode_stream, "choose_decoder", lambda *_: decoder)
    assert len(list(decode_stream.decode_lines("run", [b"", b""]))) == 2
    assert seen == [torch.device("meta")]
    assert fitted.batch([Example(None, None)], device="meta").gold.is_meta
