"""Compare updates through the relaxed beam search with step-by-step cross-entropy of the same model.

Also measured: how much it saves to weigh only the best continuations, and what checkpointing costs and saves.
"""

import statistics
from typing import Any

import torch
import torch.nn.functional as F

import corpus
from harness import WORK, interleave, ratio, row, say
from models import QUICK_UPDATES, UPDATES, batch, running_text, trained
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.soft_beam import SoftBeam
from unforced.types import Loss, Progress
from updates import cost, peak, update

LENGTH, LARGE, BEAMS, LONG = 15, 32_000, (1, 2, 4, 8), (16, 64)
ALPHA = 10.0
STEP, STEP_LARGE, FASTER, FASTER_LARGE, SMALLER, RECOMPUTED, MEMORY = (2.5, 3.0, 2.0, 4.0, 3.0, 1.4, 4.0)  # targets


class StepByStep:
    """Cross-entropy with one call of the decoder per token."""

    def __call__(self, model, batch, *, progress, rng):
        state, total = model.start(batch), 0.0
        for t in range(batch.prefix.shape[1]):
            features, state = model.advance(state, model.embed(batch.prefix[:, t : t + 1]))
            here = batch.mask[:, t]
            total = total + F.cross_entropy(model.score(features[here, 0]), batch.gold[here, t], reduction="sum")
        return Loss(total, batch.mask.sum(), {})


def run(*, quick: bool, threads: int) -> dict:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    data = corpus.prepare(WORK)
    updates, rounds = (QUICK_UPDATES, 3) if quick else (UPDATES, 7)
    pairs = [pair for pair in data.ids("train") if len(pair[1]) == LENGTH][: corpus.BATCH]
    lstm, large = trained("lstm", data, updates), trained("lstm", data, updates, LARGE)
    transformer = trained("transformer", data, updates // 3)
    rows = [
        *_sizes(lstm, batch(pairs), rounds, f"V {data.vocabulary:,}", STEP, FASTER, SMALLER),
        *_sizes(large, batch(pairs), max(3, rounds - 2), f"V {LARGE:,}", STEP_LARGE, FASTER_LARGE, None),
        *_sharpness(lstm, batch(pairs), rounds),
        *_beams(lstm, batch(pairs), rounds),
        *_checkpoint(lstm, data, rounds),
        *_transformer(transformer, data, max(3, rounds - 2)),
    ]
    return {
        "rows": rows,
        "settings": {
            "models": f"LSTM 256 with Bahdanau attention, {updates} updates of cross-entropy before,"
            f" and Transformer 3+3, 256 wide, {updates // 3} updates before, float32, dropout on",
            "data": f"{data.name}, {corpus.BATCH} pairs with targets of {LENGTH} tokens;"
            " 16, 64 and 30 tokens are running text",
            "soft beam": f"direct loss, local scores, K 3, α {ALPHA:g}, keep 64, tolerance 1e-4,"
            " unless stated otherwise",
            "rounds": f"{rounds}, after one to warm up",
            "memory": "peak of allocated bytes in forward and backward, by PyTorch's profiler",
        },
    }


def _sizes(model, each, rounds: int, label: str, step: float, faster: float, smaller: float | None) -> list[dict]:
    """Compare the truncated and the full search with step-by-step cross-entropy."""
    say(f"  {label}")
    objectives: dict[str, Any] = {
        "cross-entropy, step by step": StepByStep(),
        "teacher forcing": CrossEntropy(),
        "best": SoftBeam(alpha=ALPHA),
        "best, global": SoftBeam(alpha=ALPHA, scores="global"),
        "full": SoftBeam(alpha=ALPHA, keep=None),
    }
    times = interleave(
        {name: update(model, each_of, [each]) for name, each_of in objectives.items()}, rounds, unit="ms/update"
    )
    names = {"best": f"LSTM, {label}, soft beam", "best, global": f"LSTM, {label}, soft beam, global scores"}
    rows = []
    for name, title in names.items():
        times[title] = times[name]
        for over in list(objectives)[:2]:
            target = step if over == "cross-entropy, step by step" and name == "best" else None
            rows.append(cost(title, over, times, over, target))
    speed = ratio(times["full"], times["best"])
    medians = [statistics.median(times[name]) for name in ("full", "best")]
    rows.append(
        row(
            f"LSTM, {label}, all continuations: time",
            "the best, with a bound",
            speed,
            target=f">= {faster}",
            passed=speed["median"] >= faster,
            absolute=f"{medians[0]:.0f} and {medians[1]:.0f} ms per update",
        )
    )
    peaks = [peak(model, objectives[name], each) for name in ("full", "best")]
    found = {"median": peaks[0] / peaks[1]}
    rows.append(
        row(
            f"LSTM, {label}, all continuations: peak memory",
            "the best, with a bound",
            found,
            target=None if smaller is None else f">= {smaller}",
            passed=None if smaller is None else found["median"] >= smaller,
            absolute=f"{peaks[0] / 2**20:.0f} and {peaks[1] / 2**20:.0f} MiB",
        )
    )
    return rows


def _sharpness(model, each, rounds: int) -> list[dict]:
    """Measure the cost by α: the smoother the search, the more continuations have weight."""
    say("  α")
    objectives = {f"LSTM, soft beam, α {alpha:g}": SoftBeam(alpha=alpha) for alpha in (1.0, 3.0, 100.0)}
    turns = {name: update(model, objective, [each]) for name, objective in objectives.items()}
    base = "cross-entropy, step by step"
    times = interleave({base: update(model, StepByStep(), [each]), **turns}, rounds, unit="ms/update")
    rows = []
    for name, objective in objectives.items():
        with torch.no_grad():
            loss = objective(model, each, progress=Progress(), rng=torch.Generator())
        total, count = loss.metrics["kept"]
        found = cost(name, base, times, base, None)
        found["absolute"] += f"; {float(total / count):.0f} continuations weighed per step"
        rows.append(found)
    return rows


def _beams(model, each, rounds: int) -> list[dict]:
    """Measure the cost by number of hypotheses."""
    say("  K")
    names = {k: f"LSTM, soft beam, K {k}" for k in BEAMS}
    turns = {name: update(model, SoftBeam(beam=k, alpha=ALPHA), [each]) for k, name in names.items()}
    times = interleave(turns, rounds, unit="ms/update")
    return [cost(name, "K 1", times, names[1], float(k)) for k, name in names.items() if k > 1]


def _checkpoint(model, data: corpus.Corpus, rounds: int) -> list[dict]:
    """Measure time and memory of recomputing steps in the backward pass."""
    say("  checkpoint")
    plain, recomputing = (SoftBeam(alpha=ALPHA, checkpoint=flag) for flag in (False, True))
    rows, peaks = [], {}
    for length in LONG:
        each = running_text(data, length, 16)
        title = f"LSTM, soft beam, {length} tokens, checkpoint"
        turns = {title: update(model, recomputing, [each]), "without": update(model, plain, [each])}
        times = interleave(turns, rounds, unit="ms/update")
        rows.append(cost(title, "without", times, "without", RECOMPUTED))
        peaks[length] = [peak(model, objective, each) for objective in (recomputing, plain)]
    for which, name in enumerate(("with", "without")):
        short, long = (peaks[length][which] for length in LONG)
        target = (LONG[1] / LONG[0]) ** 0.5
        found = {"median": long / short}
        rows.append(
            row(
                f"LSTM, soft beam, {name} checkpoint: peak memory at {LONG[1]} tokens",
                f"{LONG[0]} tokens",
                found,
                target=f"<= {target:g} (the root of the lengths' ratio)" if name == "with" else None,
                passed=found["median"] <= target if name == "with" else None,
                absolute=f"{long / 2**20:.0f} and {short / 2**20:.0f} MiB",
            )
        )
    return rows


def _transformer(model, data: corpus.Corpus, rounds: int) -> list[dict]:
    """Compare the same on a Transformer, whose state is all keys and values so far."""
    say("  Transformer")
    each, soft = running_text(data, 30, corpus.BATCH), SoftBeam(alpha=ALPHA)
    title = "Transformer, soft beam, 30 tokens"
    turns = {
        title: update(model, soft, [each]),
        "cross-entropy, step by step": update(model, StepByStep(), [each]),
        "teacher forcing": update(model, CrossEntropy(), [each]),
    }
    times = interleave(turns, rounds, unit="ms/update")
    rows = [cost(title, over, times, over, None) for over in ("cross-entropy, step by step", "teacher forcing")]
    for objective, name in ((soft, ""), (SoftBeam(alpha=ALPHA, checkpoint=True), ", checkpoint")):
        most = peak(model, objective, each) / 2**30
        rows.append(
            row(
                f"{title}{name}: peak memory",
                "1 GiB",
                {"median": most},
                target=f"<= {MEMORY}",
                passed=most <= MEMORY,
                absolute=f"{corpus.BATCH} texts",
            )
        )
    return rows
