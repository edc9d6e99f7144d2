"""Training programs that take turns: what ``training_speed`` and ``loop_overhead`` share."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path

import corpus
from harness import Side, Window, interleave
from shapes import SHAPES

WARM_UP = 5  # updates before the first measured one


def wish(model: str, data: corpus.Corpus, folder: Path, threads: int) -> dict:
    """What every side is asked for."""
    return {
        "model": model,
        "shape": SHAPES[model],
        "corpus": asdict(data),
        "folder": str(folder),
        "batch": corpus.BATCH,
        "learning_rate": 5e-4,
        "threads": threads,
    }


def race(sides: list[Side], rounds: int, updates: Mapping[str, int]) -> dict[str, list[Window]]:
    """Let the sides take turns of so many updates each; the windows of each, in the order of the rounds."""
    windows: dict[str, list[Window]] = {side.name: [] for side in sides}

    def turn(side: Side) -> float:
        window = side.turn(updates[side.name])
        windows[side.name].append(window)
        return window.speed

    for side in sides:
        side.turn(WARM_UP)
    interleave({side.name: partial(turn, side) for side in sides}, rounds, unit="tokens/s", warm_up=False)
    return windows


def details(sides: list[Side], windows: dict[str, list[Window]]) -> dict[str, dict]:
    """For the record: what each side did altogether, and in each window."""
    found = {}
    for side in sides:
        updates, tokens, seconds, busy = (sum(column) for column in zip(*windows[side.name], strict=True))
        found[side.name] = {
            "tokens_per_second": tokens / seconds,
            "tokens_per_update": tokens / updates,
            "core_milliseconds_per_token": 1000 * busy / tokens,
            "parameters": side.facts["parameters"],
            "threads": side.facts["threads"],
            "windows": [window._asdict() for window in windows[side.name]],
        }
    return found
