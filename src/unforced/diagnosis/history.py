"""Exposure bias: what it costs that the model reads its own tokens instead of the target's."""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from torch import Tensor

from unforced.decoding.gold_history import GoldHistory
from unforced.decoding.greedy import Greedy, OneToken, argmax, singles
from unforced.decoding.search import Constraints, limits, search
from unforced.diagnosis.subject import Finding, Ids, Subject, points, ratio
from unforced.metrics.significance import Interval, interval
from unforced.ops import random_streams
from unforced.ops.masks import widened
from unforced.types import Batch

CUTS = (0.25, 0.5, 0.75)  # shares of the target that are given
DISTANCES = 20  # steps after a mistake
ENOUGH = 30  # examples for a figure by position


def measure_history(subject: Subject) -> Finding:
    """Measure the score with target history minus the score with the model's own history.

    With a token for each input, both histories are compared position by position. Where lengths are free, the model
    continues the first part of the target, and of its own output; both continuations are compared with the target's.
    """
    if subject.fixed_length:
        headroom, details = compare_labels(subject)
        how = "with the correct labels before each position"
    else:
        headroom, details = compare_continuations(subject)
        how = "when it continues a correct beginning"
    details["recovery"] = recovery_curve(subject)
    meaning = f"The model scores {headroom.value:+.1f} points {how}, compared with its own output before it."
    return Finding("history", headroom, "points", meaning, details)


# A label for each input


def compare_labels(subject: Subject) -> tuple[Interval, dict[str, Any]]:
    """Compare greedy search with and without target history, as a whole and by position."""
    own = [found.outputs[0] for found in subject.decode(Greedy())]
    gold = [found.outputs[0] for found in subject.decode(GoldHistory())]
    headroom = subject.gain(subject.statistics(gold), subject.statistics(own))
    return headroom, {"by_position": accuracy_by_position(own, gold, subject.golds)}


def accuracy_by_position(own: list[Ids], gold: list[Ids], targets: list[Ids]) -> list[dict[str, Any]]:
    """Return the token accuracies with both histories at each position, and their difference with its interval."""
    curve = []
    for t in range(max(map(len, targets))):
        there = [(a[t] == y[t], b[t] == y[t]) for a, b, y in zip(own, gold, targets) if t < len(y)]
        if len(there) < ENOUGH:
            break
        right = 100.0 * np.asarray(there, dtype=np.float64)  # [n,2]
        change = mean_interval(right[:, 1] - right[:, 0])
        own_score, gold_score = right.mean(axis=0).tolist()
        curve.append({"position": t, "own": own_score, "gold": gold_score, **points(change)})
    return curve


def mean_interval(values: np.ndarray) -> Interval:
    """Return the mean of the examples' values with its bootstrap interval."""
    return interval(ratio, np.stack([values, np.ones_like(values)], axis=1))


# Free lengths


def compare_continuations(subject: Subject) -> tuple[Interval, dict[str, Any]]:
    """Compare the rest of the output after a part of the target with the same rest of the model's own output.

    The headroom is of all cuts together: every cut of an example counts as an output.
    """
    own_outputs = [found.outputs[0] for found in subject.decode(Greedy())]
    pieces, cuts = [], []
    for share in CUTS:
        at = [round(share * len(target)) for target in subject.golds]
        given, own = continuation_statistics(subject, own_outputs, at)
        pieces.append((given, own))
        cuts.append({"given": share, "own": subject.score(own), "gold": subject.score(given)})
        cuts[-1] |= points(subject.gain(given, own))
    given, own = (np.sum(column, axis=0) for column in zip(*pieces))  # rows of an example are added
    return subject.gain(given, own), {"by_cut": cuts}


def continuation_statistics(subject: Subject, own: list[Ids], cuts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return the metric's rows of both rests, each compared with the rest of the target after its cut.

    An example whose cut is at the start or the end has no rest to compare: its rows are zeros.
    """
    codec, golds = subject.task.codec, subject.golds
    used = [i for i, (cut, gold) in enumerate(zip(cuts, golds)) if 0 < cut < len(gold)]
    continued = continue_targets(subject, used, cuts)
    answers = [[codec.decode(golds[i][cuts[i] :])] for i in used]
    given = subject.statistics(continued, answers)
    mine = subject.statistics([own[i][aligned_cut(golds[i], own[i], cuts[i]) :] for i in used], answers)
    rows = np.zeros((2, len(golds), given.shape[1]))
    rows[:, used] = given, mine
    return rows[0], rows[1]


def continue_targets(subject: Subject, used: list[int], cuts: list[int]) -> list[Ids]:
    """Continue the first ``cuts[i]`` tokens of the target of each used example by greedy search."""
    found: dict[int, Ids] = {}
    for cut in sorted({cuts[i] for i in used}):
        numbers = [i for i in used if cuts[i] == cut]

        def rest(batch: Batch, cut: int = cut) -> list[Ids]:
            state = subject.model.start(batch)
            _, state = subject.model.advance(state, subject.model.embed(batch.prefix[:, :cut]))
            selector = OneToken(Constraints.of(batch), argmax)
            most = (limits(batch) - cut).clamp(min=1)
            after = replace(batch, prefix=batch.prefix[:, cut:])
            return singles(search(subject.model, after, selector, most, state=state), after).ids(batch.symbols)

        found |= zip(numbers, subject.map(rest, [subject.examples[i] for i in numbers]))
    return [found[i] for i in used]


def aligned_cut(gold: Ids, own: Ids, cut: int) -> int:
    """Return the position of ``own`` that a minimal edit alignment puts at position ``cut`` of ``gold``.

    >>> aligned_cut([1, 2, 3, 4], [9, 1, 2, 3, 4], 2), aligned_cut([1, 2, 3, 4], [1, 4], 2)
    (3, 1)
    """
    for block in Levenshtein.opcodes(gold, own):
        if block.src_start <= cut < block.src_end:
            return int(min(block.dest_start + cut - block.src_start, block.dest_end))
    return len(own)


# Recovery


def recovery_curve(subject: Subject) -> list[dict[str, Any]]:
    """Return what one own mistake in the history costs d steps later, in log-probability and accuracy of the target.

    In each example one position is drawn at which the best token given the target's history is wrong. That token
    replaces the target's in the history; everything else stays.
    """

    def differences(batch: Batch) -> list[np.ndarray | None]:
        keys = random_streams.keys(batch, random_streams.generator(batch.gold.device, subject.seed))
        before, best = target_and_best(subject.model, batch)
        followed = torch.zeros_like(batch.mask)
        followed[:, :-1] = batch.mask[:, :-1] & batch.mask[:, 1:]
        wrong = (best != batch.gold) & followed
        steps = torch.arange(wrong.shape[1], device=wrong.device)
        order = random_streams.uniform(keys.unsqueeze(1), steps).masked_fill(~wrong, -1.0)
        where = order.argmax(dim=1)  # [B]
        rows = wrong.any(dim=1).nonzero().squeeze(1)
        prefix = batch.prefix.clone()
        prefix[rows, where[rows] + 1] = best[rows, where[rows]]
        after, own = target_and_best(subject.model, replace(batch, prefix=prefix))
        change = torch.stack([after - before, (own == batch.gold).double() - (best == batch.gold).double()], dim=2)
        found: list[np.ndarray | None] = [None] * len(batch)
        for row in rows.tolist():
            rest = slice(int(where[row]) + 1, int(batch.mask[row].sum()))
            found[row] = change[row, rest].cpu().numpy()[:DISTANCES]
        return found

    changes = [each for each in subject.map(differences) if each is not None]
    curve = []
    for d in range(DISTANCES):
        there = np.array([change[d] for change in changes if len(change) > d]).reshape(-1, 2)
        if len(there) < ENOUGH:
            break
        curve.append(
            {
                "distance": d + 1,
                "log_prob": points(mean_interval(there[:, 0])),
                "accuracy": points(mean_interval(100 * there[:, 1])),
            }
        )
    return curve


def target_and_best(model: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return log p(y*_t | prefix) [B,T] and the best token [B,T]; 0 and padding outside of the mask."""
    features, _ = model.advance(model.start(batch), model.embed(batch.prefix))
    log_probs = Constraints.of(batch).token_scores(0, widened(model.score(features[batch.mask])))  # [N,V]
    gold = torch.zeros(batch.gold.shape, dtype=torch.float64, device=batch.gold.device)
    gold[batch.mask] = log_probs.gather(1, batch.gold[batch.mask].unsqueeze(1)).squeeze(1).double()
    best = torch.full_like(batch.gold, batch.symbols.pad)
    best[batch.mask] = argmax(0, log_probs, None)
    return gold, best
