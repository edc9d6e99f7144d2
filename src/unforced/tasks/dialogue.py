"""Dialogue responses: what the system of a MultiWOZ dialogue says next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from unforced.errors import InputError
from unforced.metrics.bleu import Bleu
from unforced.metrics.protocol import Metric
from unforced.tasks.files import read_jsonl, string
from unforced.tasks.locate import find
from unforced.tasks.protocol import Split
from unforced.tasks.text import TextTask
from unforced.types import Examples


@dataclass(frozen=True, kw_only=True)
class Dialogue(TextTask):
    """The last ``history`` turns of a dialogue -> the system's response (Budzianowski et al. 2018).

    A source is one line, ``u: … s: … u: …``, oldest turn first. Responses are tokenised text whose names, times and
    numbers are slots such as ``[hotel_name]`` (``delexicalized``), or as ``written``; BLEU compares their tokens.
    """

    history: int = 5  # how many turns the model sees
    response: Literal["delexicalized", "written"] = "delexicalized"  # slots for names, or as written
    min_count: int = 2  # rarer words of the training data are unknown
    lowercase: bool = True  # all text, answers included

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.history < 1:
            raise InputError(f"history must be at least 1, not {self.history}.")

    def read(self, split: Split) -> Examples:
        path = find("multiwoz_small", f"{split}.jsonl.gz")
        key = "response_delex" if self.response == "delexicalized" else "response"
        dropped: dict[str, int] = {}
        records = read_jsonl(path, ("history", key), dropped)
        pairs = (
            (
                " ".join(_turns(record["history"], f"{path}:{n}")[-self.history :]),
                string(record, key, path, n),
            )
            for n, record in records
        )
        return self.choose(split, pairs, dropped)

    def output_metrics(self) -> tuple[Metric, ...]:
        return (Bleu(tokenize="none"),)


def _turns(history: Any, where: str) -> list[str]:
    if not isinstance(history, list) or not all(isinstance(turn, str) for turn in history):
        raise InputError(f"{where}: 'history' must be a list of strings.")
    return [turn.strip() for turn in history]
