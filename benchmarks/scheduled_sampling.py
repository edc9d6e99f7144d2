"""Compare updates of scheduled sampling with those of teacher forcing on the same model.

The forms are sequential, relaxed and parallel. An update is forward, backward and AdamW of a trained model,
on batches of similar length.
"""

import itertools
from typing import Any

import torch

import corpus
from harness import WORK, interleave, ratio, row, say
from models import QUICK_UPDATES, UPDATES, batch, running_text, trained
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.parallel_scheduled_sampling import ParallelScheduledSampling
from unforced.objectives.scheduled_sampling import ScheduledSampling
from updates import cost, peak, update

PASSES = (1, 2, 4, 8)
LENGTHS = (16, 64, 256)
ROWS = 8  # examples of a batch in the comparison of lengths
PARALLEL, SLOPE, SOFT, MEMORY, GROWTH = 1.2, 0.2, 1.2, 1.1, 1.5  # the targets: at most


def run(*, quick: bool, threads: int) -> dict:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    data = corpus.prepare(WORK)
    updates = QUICK_UPDATES if quick else UPDATES
    rounds, batches = (3, 4) if quick else (9, 10)
    some = _batches(data, batches)
    transformer, lstm = trained("transformer", data, updates), trained("lstm", data, updates)
    rows = [
        *_parallel(transformer, some, rounds),
        *_soft(lstm, some, rounds),
        *_lengths(transformer, data, 2 if quick else 5),
        *_memory(transformer, some[0]),
    ]
    return {
        "rows": rows,
        "settings": {
            "models": f"Transformer 3+3, 256 wide, and LSTM 256 with Bahdanau attention, {data.vocabulary} pieces,"
            f" {updates} updates of cross-entropy before, float32",
            "data": f"{data.name}, {batches} batches of {corpus.BATCH} pairs of similar length a turn; for lengths,"
            f" batches of {ROWS} texts of exactly that many tokens",
            "rounds": f"{rounds}, after one to warm up",
            "memory": "peak of allocated bytes in forward and backward, by PyTorch's profiler",
        },
    }


def _batches(data: corpus.Corpus, count: int) -> list:
    """Return batches of similar lengths, as the training loop makes them, spread over all lengths."""
    pairs = sorted(data.ids("train"), key=lambda pair: (len(pair[1]), len(pair[0])))
    starts = [round((i + 0.5) * len(pairs) / count) for i in range(count)]
    return [batch(pairs[start : start + corpus.BATCH]) for start in starts]


def _parallel(model, batches: list, rounds: int) -> list[dict]:
    """Compare numbers of parallel passes; measure the cost of each further pass."""
    say("  parallel passes")
    turns: dict[str, Any] = {"teacher forcing": update(model, CrossEntropy(), batches)}
    names = {n: f"Transformer, parallel, p 0.5, {n} pass{'es' * (n > 1)}" for n in PASSES}
    for n, name in names.items():
        turns[name] = update(model, ParallelScheduledSampling(passes=n, p=0.5), batches)
    sequential = "Transformer, sequential, sample, mixing 0.5"
    turns[sequential] = update(model, ScheduledSampling(feed="sample", mixing=0.5), batches)
    times = interleave(turns, rounds, unit="ms/update")
    rows = [
        cost(name, "teacher forcing", times, "teacher forcing", PARALLEL if n == 1 else None)
        for n, name in names.items()
    ]
    first, last = PASSES[0], PASSES[-1]
    rises = [(b - a) / (last - first) for a, b in zip(times[names[first]], times[names[last]])]
    slope = ratio(rises, times["teacher forcing"])
    rows.append(
        row(
            f"Transformer, parallel: cost of each further pass, from {first} to {last}",
            "teacher forcing",
            slope,
            target=f"<= {SLOPE}",
            passed=slope["median"] <= SLOPE,
        )
    )
    return [*rows, cost(sequential, "teacher forcing", times, "teacher forcing", None)]


def _soft(model, batches: list, rounds: int) -> list[dict]:
    """Compare soft with hard inputs, on the LSTM."""
    say("  soft and hard inputs")
    turns: dict[str, Any] = {"teacher forcing": update(model, CrossEntropy(), batches)}
    rows = []
    pairs = []
    for mixing in (0.5, 0.0):
        hard = f"LSTM, argmax, mixing {mixing:g}"
        turns[hard] = update(model, ScheduledSampling(feed="argmax", mixing=mixing), batches)
        for feed in ("soft_argmax", "soft_sample"):
            for alpha in (1.0, 10.0) if feed == "soft_argmax" else (1.0,):
                name = f"LSTM, {feed}, mixing {mixing:g}, α {alpha:g}"
                objective = ScheduledSampling(feed=feed, mixing=mixing, alpha=alpha)  # type: ignore[arg-type]
                turns[name] = update(model, objective, batches)
                pairs.append((name, hard, SOFT if feed == "soft_argmax" else None))
    times = interleave(turns, rounds, unit="ms/update")
    for name, hard, target in pairs:
        rows.append(cost(name, "argmax", times, hard, target))
    for mixing in (0.5, 0.0):
        hard = f"LSTM, argmax, mixing {mixing:g}"
        rows.append(cost(hard, "teacher forcing", times, "teacher forcing", None))
    return rows


def _lengths(model, data: corpus.Corpus, rounds: int) -> list[dict]:
    """Compare sequential with parallel sampling by length of text; measure how the sequential cost grows."""
    say("  lengths")
    rows, per_token = [], {}
    for length in LENGTHS:
        batches = [running_text(data, length, ROWS)]
        sequential = f"Transformer, {length} tokens, sequential sample"
        turns = {
            sequential: update(model, ScheduledSampling(feed="sample", mixing=0.5), batches),
            "parallel": update(model, ParallelScheduledSampling(p=0.5), batches),
        }
        times = interleave(turns, rounds, unit="ms/update")
        rows.append(cost(sequential, "parallel, one pass", times, "parallel", None))
        per_token[length] = [ms / length for ms in times[sequential]]
    for short, long in itertools.pairwise(LENGTHS):
        growth = ratio(per_token[long], per_token[short])
        rows.append(
            row(
                f"Transformer, sequential: cost per token at {long} tokens",
                f"{short} tokens",
                growth,
                target=f"<= {GROWTH} (1 is linear, {long // short} quadratic)",
                passed=growth["median"] <= GROWTH,
            )
        )
    return rows


def _memory(model, batch) -> list[dict]:
    """Compare the peak memory of one parallel pass with that of teacher forcing."""
    peaks = [peak(model, objective, batch) for objective in (ParallelScheduledSampling(p=0.5), CrossEntropy())]
    found = {"median": peaks[0] / peaks[1]}
    return [
        row(
            "Transformer, parallel, p 0.5, one pass: peak memory",
            "teacher forcing",
            found,
            target=f"<= {MEMORY}",
            passed=found["median"] <= MEMORY,
            absolute=f"{peaks[0] / 2**20:.0f} and {peaks[1] / 2**20:.0f} MiB",
        )
    ]
