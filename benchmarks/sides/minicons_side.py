"""Score text by pseudo-log-likelihood with minicons; runs in benchmarks/.venv-minicons."""

import json
import time
from importlib.metadata import version
from itertools import count
from pathlib import Path

from pace import Pace, options

PACE = Pace()

import torch  # noqa: E402 (what libraries print at import goes to the log)
from minicons import scorer  # noqa: E402

METRICS = {"single": "original", "left_to_right": "within_word_l2r"}
SIZES = (1, 4, 8, 16, 32)  # batch sizes to try; the fastest is measured


def main() -> None:
    chosen = options()
    texts = json.loads(Path(chosen["file"]).read_text(encoding="utf-8"))
    torch.set_num_threads(chosen["threads"])
    torch.set_flush_denormal(True)
    model, size, lines = scorer.MaskedLMScorer(texts["folder"], "cpu"), texts["batch"], texts["lines"]
    if not hasattr(type(model.tokenizer), "batch_encode_plus"):
        model.tokenizer.batch_encode_plus = model.tokenizer.__call__  # its name in transformers 5

    def score(some: list[str]) -> list[float]:
        return model.sequence_score(some, reduction=lambda x: x.sum(0).item(), PLL_metric=METRICS[chosen["masking"]])

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
