"""Run folders without training; docs/design.md describes their files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unforced.training.run_folder import FORMAT

RECIPE = """name = "toy"
description = "A toy comparison"
seeds = [{seed}]
baseline = "{variant}"

[task]
name = "{task}"

[model]
name = "lstm"
hidden = 64

[objective]
name = "{objective}"

[training]
epochs = 2

[decoding.greedy]
method = "greedy"

[decoding.beam]
method = "beam"
beam = 5

[[variants]]
name = "{variant}"
"""


def lines(rows: list[Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_run(
    folder: Path,
    variant: str,
    seed: int,
    *,
    error: float = 0.3,
    finished: bool = True,
    decoders: tuple[str, ...] = ("greedy", "beam"),
    examples: int = 40,
    outputs: Callable[[int, bool], str] | None = None,
    answers: Callable[[int], list[str]] | None = None,
    source: Callable[[int], str] = lambda i: f"word{i}",
    objective: str = "cross_entropy",
    task: str = "toy",
    nll: bool = True,
    info: dict[str, Any] | None = None,
) -> Path:
    """A run whose output for an example is wrong with probability ``error``."""
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE.format(variant=variant, seed=seed, objective=objective, task=task))
    run = {
        "format": FORMAT,
        "name": "toy", "variant": variant, "seed": seed, "created": "2026-01-01T00:00:00",
        "versions": {"python": "3.11.7", "torch": "2.13.0"}, "threads": 1, "world": 1, "parameters": 12345,
        "examples": {"train": {"read": 100, "kept": 98, "dropped": {"too long": 2}}},
        "fingerprint": "0",
        **(info or {}),
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(run))
    (folder / "codec.json").write_text("{}")
    rng = np.random.default_rng(seed)
    events: list[dict[str, Any]] = []
    for step in range(10, 101, 10):
        loss = 3 / step**0.5 + 0.05 * rng.random()
        event = {"kind": "train", "step": step, "epoch": step / 50, "loss": loss, "learning_rate": 1e-3}
        events.append(event | {"nll": loss} if nll else event)
        if step % 50 == 0:
            events.append({"kind": "dev", "step": step, "epoch": step / 50, "error": 100 * error + 50 / step})
    (folder / "metrics.jsonl").write_text(lines(events))
    (folder / "best.json").write_text(
        json.dumps({"checkpoint": "step-00000100", "metric": "error", "score": 100 * error, "step": 100})
    )
    if not finished:
        return folder
    for name in ("predictions", "scores"):
        (folder / name).mkdir()
    for split in ("dev", "test"):
        for decoder in decoders:
            wrong = rng.random(examples) < error
            gold = [answers(i) if answers else [f"A{i} B C" + " D" * (i % 7)] for i in range(examples)]
            plain = [answer[0].replace("B", "X") if bad else answer[0] for answer, bad in zip(gold, wrong)]
            rows = [
                {
                    "id": i,
                    "source": source(i),
                    "answers": gold[i],
                    "output": outputs(i, bool(wrong[i])) if outputs else plain[i],
                    "log_prob": -1.0,
                }
                for i in range(examples)
            ]
            (folder / "predictions" / f"{split}-{decoder}.jsonl").write_text(lines(rows))
            score = {
                "split": split, "decoder": decoder, "options": {"method": decoder},
                "seconds": 1.0, "examples": examples,
                "metrics": {"error": {
                    "score": 100 * float(wrong.mean()), "higher_is_better": False, "signature": "wrong / all × 100",
                    "statistics": [[float(w), 1.0] for w in wrong],
                }},
            }  # fmt: skip
            (folder / "scores" / f"{split}-{decoder}.json").write_text(json.dumps(score))
    (folder / "finished.json").write_text(
        json.dumps({"steps": 100, "epochs": 2, "seconds": 10.0 + seed, "tokens": 5000, "reason": "epochs"})
    )
    return folder


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Path]:
    def make(variant: str, seed: int, **options: Any) -> Path:
        return write_run(tmp_path / "runs" / f"{variant}-{seed}", variant, seed, **options)

    return make
