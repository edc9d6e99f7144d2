"""What an update costs with scheduled sampling, sequential, relaxed and parallel, as a ratio to other updates of the same
model: forward, backward and AdamW, on batches of similar length, with a model that has been trained."""

import itertools
from typing import Any

import corpus
from harness import WORK, interleave, ratio, row, say
from trained import QUICK, UPDATES, batch, trained
from updates import cost, peak, update

PASSES = (1, 2, 4, 8)
LENGTHS = (16, 64, 256)
ROWS = 8  # examples of a batch where lengths are compared
PARALLEL, SLOPE, SOFT, MEMORY, GROWTH = 1.2, 0.2, 1.2, 1.1, 1.5  # the targets: at most


def run(*, quick: bool, threads: int) -> dict:
    import torch

    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    data = corpus.prepare(WORK)
    updates = QUICK if quick else UPDATES
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
            f" batches of {ROWS} running texts of exactly so many tokens",
            "rounds": f"{rounds}, after one to warm up",
            "memory": "the most that the allocator had given out at one time during forward and backward, by"
            " PyTorch's profiler, above what it had before",
        },
    }


def _batches(data: corpus.Corpus, count: int) -> list:
    """Batches as the loop makes them: similar lengths together, spread over all lengths."""
    pairs = sorted(data.ids("train"), key=lambda pair: (len(pair[1]), len(pair[0])))
    starts = [round((i + 0.5) * len(pairs) / count) for i in range(count)]
    return [batch(pairs[start : start + corpus.BATCH]) for start in starts]


def _parallel(model, batches: list, rounds: int) -> list[dict]:
    """One and more parallel passes, and the rise in cost from pass to pass."""
    from unforced.objectives.cross_entropy import CrossEntropy
    from unforced.objectives.parallel_scheduled_sampling import ParallelScheduledSampling
    from unforced.objectives.scheduled_sampling import ScheduledSampling

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
            f"Transformer, parallel: rise in cost a pass, from {first} to {last}",
            "teacher forcing",
            slope,
            target=f"<= {SLOPE}",
            passed=slope["median"] <= SLOPE,
        )
    )
    return [*rows, cost(sequential, "teacher forcing", times, "teacher forcing", None)]


def _soft(model, batches: list, rounds: int) -> list[dict]:
    """Soft inputs against hard ones, on the LSTM."""
    from unforced.objectives.cross_entropy import CrossEntropy
    from unforced.objectives.scheduled_sampling import ScheduledSampling

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
    """Sequential against parallel on texts of several lengths, and how the sequential cost grows."""
    from unforced.objectives.parallel_scheduled_sampling import ParallelScheduledSampling
    from unforced.objectives.scheduled_sampling import ScheduledSampling

    say("  lengths")
    running = [token for _, target in data.ids("train") for token in target[:-1]]
    rows, per_token = [], {}
    for length in LENGTHS:
        texts = [[*running[i * length : (i + 1) * length - 1], corpus.EOS] for i in range(ROWS)]
        batches = [batch([([*text[:16], corpus.EOS], text) for text in texts])]
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
                f"Transformer, sequential: cost a token at {long} tokens",
                f"{short} tokens",
                growth,
                target=f"<= {GROWTH} (1 is linear, {long // short} quadratic)",
                passed=growth["median"] <= GROWTH,
            )
        )
    return rows


def _memory(model, each) -> list[dict]:
    """Peak memory of one parallel pass over that of teacher forcing."""
    from unforced.objectives.cross_entropy import CrossEntropy
    from unforced.objectives.parallel_scheduled_sampling import ParallelScheduledSampling

    peaks = [peak(model, objective, each) for objective in (ParallelScheduledSampling(p=0.5), CrossEntropy())]
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
