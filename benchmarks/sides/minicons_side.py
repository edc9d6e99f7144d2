"""Pseudo-log-likelihoods by minicons, from text; runs in the environment that minicons_setup.sh makes."""

import json
import sys
import time
from importlib.metadata import version
from itertools import count
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pace import Pace, settings

PACE = Pace()

import torch  # noqa: E402 (what libraries print at import goes to the log)
from minicons import scorer  # noqa: E402

METRICS = {"single": "original", "left_to_right": "within_word_l2r"}
SIZES = (1, 4, 8, 16, 32)  # batches tried; the fastest is measured


def main() -> None:
    asked = settings()
    wish = json.loads(Path(asked["file"]).read_text(encoding="utf-8"))
    torch.set_num_threads(asked["threads"])
    torch.set_flush_denormal(True)
    model, size, lines = scorer.MaskedLMScorer(wish["folder"], "cpu"), wish["batch"], wish["lines"]
    if not hasattr(type(model.tokenizer), "batch_encode_plus"):
        model.tokenizer.batch_encode_plus = model.tokenizer.__call__  # what transformers 5 has instead

    def score(some: list[str]) -> list[float]:
        return model.sequence_score(some, reduction=lambda x: x.sum(0).item(), PLL_metric=METRICS[asked["masking"]])

    def seconds(part: int) -> float:
        begin = time.perf_counter()
        for start in range(0, size, part):
            score(lines[start : start + part])
        return time.perf_counter() - begin

    scores = [value for start in (0, size) for value in score(lines[start : start + size])]
    best = min(SIZES, key=lambda part: min(seconds(part) for _ in range(3)))
    PACE.ready(scores=scores, batch=best, versions={"minicons": version("minicons")})
    for number in count():
        start = number * size % len(lines)
        some = lines[start : start + size]
        PACE.begin_update(len(some))
        for first in range(0, len(some), best):
            score(some[first : first + best])


if __name__ == "__main__":
    main()
