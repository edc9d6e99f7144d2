"""Train a self-normalised tagger, then continue with soft_beam, as in the recipes on label bias."""

import json
from pathlib import Path

import pytest

import unforced
from unforced.decoding.beam import Beam
from unforced.decoding.soft_beam import SoftBeamSearch


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Words whose tags follow from the word and the tag before."""
    path = tmp_path_factory.mktemp("tags") / "tags.conll"
    blocks = []
    for i in range(60):
        tag, block = 0, []
        for j in range(3 + i % 4):
            word = (i * 7 + j * (i + 3)) % 5
            tag = (tag + word) % 3
            block.append(f"w{word} T{tag}\n")
        blocks.append("".join(block))
    path.write_text("\n".join(blocks))
    return path


def events(run: Path, kind: str) -> list[dict[str, float]]:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == kind]


@pytest.mark.parametrize("scores", [pytest.param("local", marks=pytest.mark.slow), "global"])
def test_soft_beam_continues_a_self_normalised_model(data, scores, tmp_path) -> None:
    task = unforced.task("tagging", train=str(data), hold_out=0.2, log_z=True)
    model = unforced.model("lstm", attention="fixed", hidden=16, embedding=8, dropout=0.0, bidirectional=False)
    options = {"learning_rate": 2e-2, "batch_tokens": 200, "log_every": 2, "quiet": True}
    decoders = {
        "hard": Beam(3, scores=scores, finished="stay", length_penalty=0.0),
        "soft": SoftBeamSearch(3, scores=scores),
    }
    start = unforced.objective("self_normalized", strength=0.1)
    first = unforced.fit(
        model, task, start, tmp_path / "first", epochs=12, decoding=decoders, validate="hard", **options
    )
    logged = events(first, "train")
    assert logged[-1]["log_z_variance"] == pytest.approx(
        logged[-1]["log_z_squared"] - logged[-1]["log_z"] ** 2, abs=1e-9
    )
    assert logged[-1]["log_z_squared"] < logged[0]["log_z_squared"]

    search = unforced.objective("soft_beam", beam=3, scores=scores, alpha=3.0)
    second = unforced.fit(
        model, task, search, tmp_path / "second", epochs=4, decoding=decoders, validate="hard",
        warm_start=str(first), **options,
    )  # fmt: skip
    costs = [event["cost"] for event in events(second, "train")]
    untrained = unforced.fit(
        model, task, search, tmp_path / "cold", epochs=1, decoding=decoders, validate="hard", **options
    )
    assert costs[0] < events(untrained, "train")[0]["cost"]  # it started from the weights of the first run
    assert {"accuracy", "log_z_mean", "log_z_variance"} <= set(events(second, "dev")[-1])
    for decoder in decoders:
        (found,) = unforced.evaluate(second, "dev", decoder, quiet=True).values()
        assert found["accuracy"] > 50
