"""Label bias: whether raw scores hold information about finished outputs that step-wise normalisation removes."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from unforced.decoding.beam import Beam, Pool, PoolMemory
from unforced.decoding.search import Constraints, HardMove, ScoreType, Selection, limits, search
from unforced.decoding.teacher_forcing import output_features
from unforced.diagnosis.search_errors import WIDTHS
from unforced.diagnosis.subject import Finding, Ids, Subject, halves, points
from unforced.metrics.significance import interval
from unforced.ops.masks import length_mask, widened
from unforced.training.evaluation import gold_likelihoods
from unforced.types import Batch

LAMBDAS = np.arange(-20, 41) / 20  # weights of log Z; 0 ranks by log-probabilities, 1 by raw scores
WIDEST = WIDTHS[-1]
CHUNK = 2048  # tokens that are projected to the vocabulary at a time


def measure_normalisation(subject: Subject) -> Finding:
    """Measure what a better weight of log Z wins when finished hypotheses are ranked by Σ_t (log p_t + λ log Z_t).

    log p_t + log Z_t is the raw score of a token: λ = 1 ranks by raw scores, λ = 0 by log-probabilities. The candidates
    are the n best of both searches. λ for one half of the examples is fitted to the other half.
    """
    curve, pools = [], {}
    kinds: tuple[ScoreType, ScoreType] = ("local", "global")
    for width in WIDTHS:
        rows = {}
        for kind in kinds:
            found = subject.decode(Beam(beam=width, nbest=width, scores=kind))
            rows[kind] = subject.statistics([each.outputs[0] for each in found])
            if width == WIDEST:
                pools[kind] = found
        log_probs, raw = interval(subject.metric.score, rows["local"]), subject.gain(rows["global"], rows["local"])
        curve.append({"width": width, "log_probs": points(log_probs), "raw": points(raw)})
    candidates = [[*local.outputs, *raw.outputs] for local, raw in zip(pools["local"], pools["global"])]
    statistics = subject.candidate_statistics(candidates)  # [N,K,D]
    scores = np.stack(subject.map(lambda batch: candidate_scores(subject, batch, candidates)))
    base = pick_candidates(statistics, scores, np.zeros(len(scores)))
    weights = fit_weights(subject, statistics, scores)
    headroom = subject.gain(pick_candidates(statistics, scores, weights), base)
    _, tokens, log_z, squares = np.sum(gold_likelihoods(subject.model, subject.task, subject.examples), axis=0)
    mean = log_z / tokens
    details = {
        "by_width": curve,
        "lower_is_better": not subject.metric.higher_is_better,
        "lambda": sorted({float(weight) for weight in weights}),
        "oracle": points(subject.gain(subject.best_of(statistics), base)),
        "log_z": {"mean": float(mean), "variance": float(squares / tokens - mean**2)},
        "gold_leaves_beam": [gold_in_beam(subject, width) for width in WIDTHS],
    }
    meaning = (
        f"Raw scores in place of log-probabilities change the score by {raw.value:+.1f} points at a beam of {WIDEST}."
    )
    return Finding("normalisation", headroom, "points", meaning, details)


# Candidates of finished outputs


def candidate_scores(subject: Subject, batch: Batch, candidates: list[list[Ids]]) -> list[np.ndarray]:
    """Return the mean over tokens of log p and of log Z of each candidate: [K,2] for each example of the batch.

    ``candidates`` are those of all examples, K each.
    """
    end, numbers = batch.symbols.eos, range(len(batch)) if batch.ids is None else batch.ids.tolist()
    flat = [torch.tensor(ids if end is None else [*ids, end]) for i in numbers for ids in candidates[i]]
    lengths = torch.tensor([max(1, len(ids)) for ids in flat])
    outputs = torch.nn.utils.rnn.pad_sequence(flat, batch_first=True, padding_value=batch.symbols.pad)
    outputs, lengths = outputs.to(batch.gold.device), lengths.to(batch.gold.device)
    mask = length_mask(lengths, outputs.shape[1])
    copies = len(candidates[0])
    examples = torch.arange(len(outputs), device=outputs.device) // copies
    model: Any = subject.model
    features = output_features(model, batch, model.start(batch), outputs, mask, examples)
    values = torch.cat([_log_p_and_z(model, *part) for part in zip(features.split(CHUNK), outputs[mask].split(CHUNK))])
    sums = values.new_zeros(len(outputs), 2).index_add(0, mask.nonzero()[:, 0], values) / lengths.unsqueeze(1)
    return list(sums.view(len(batch), copies, 2).cpu().numpy())


def _log_p_and_z(model: Any, features: Tensor, tokens: Tensor) -> Tensor:
    """Return log p and log Z [n,2] of tokens [n] at features [n,H]."""
    scores = widened(model.score(features)).double()
    log_z = scores.logsumexp(dim=1)
    return torch.stack([scores.gather(1, tokens.unsqueeze(1)).squeeze(1) - log_z, log_z], dim=1)


def pick_candidates(statistics: np.ndarray, scores: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the rows [N,D] of each example's best candidate by log p + λ log Z, with the weights λ [N]."""
    chosen = (scores[:, :, 0] + weights[:, None] * scores[:, :, 1]).argmax(axis=1)
    rows: np.ndarray = statistics[np.arange(len(statistics)), chosen]
    return rows


def fit_weights(subject: Subject, statistics: np.ndarray, scores: np.ndarray) -> np.ndarray:
    """Return the weight λ of each example [N], fitted to the other half; ties go to the one nearest 0."""
    weights, half = np.zeros(len(scores)), halves(len(scores))
    by_size = LAMBDAS[np.abs(LAMBDAS).argsort(kind="stable")]
    sign = 1 if subject.metric.higher_is_better else -1
    for own in (0, 1):
        other = half != own
        found = [
            sign * subject.score(pick_candidates(statistics[other], scores[other], np.full(int(other.sum()), weight)))
            for weight in by_size
        ]
        weights[half == own] = by_size[int(np.argmax(found))]
    return weights


# How long the target stays in the beam


class WatchMemory(NamedTuple):
    """The memory of a watched search; everything has examples first."""

    pool: PoolMemory
    targets: Tensor  # [B,T]
    lengths: Tensor  # [B]
    on_target: Tensor  # [B,K] bool: hypotheses that are beginnings of the target
    lost: Tensor  # [B] step at which the last of them left the beam; −1 if none has


@dataclass(frozen=True)
class Watch:
    """Beam search that notes when the beginning of the target leaves the beam."""

    pool: Pool
    targets: Tensor  # [B,T]
    lengths: Tensor  # [B], end symbols included

    @property
    def width(self) -> int:
        return self.pool.width

    def begin(self, limits: Tensor) -> WatchMemory:
        start = torch.ones(len(limits), self.width, dtype=torch.bool, device=limits.device)
        return WatchMemory(self.pool.begin(limits), self.targets, self.lengths, start, torch.full_like(limits, -1))

    def select(self, t: int, scores: Tensor, memory: WatchMemory, last: Tensor | None) -> Selection:
        selection = self.pool.select(t, scores, memory.pool, last)
        move = selection.move
        assert isinstance(move, HardMove)
        assert move.parents is not None
        target = (
            memory.targets[:, t : t + 1] if t < memory.targets.shape[1] else torch.full_like(move.tokens[:, :1], -1)
        )
        on_target = memory.on_target[:, : scores.shape[1]].gather(1, move.parents) & (move.tokens == target)
        inside = t + 1 < memory.lengths  # its last token ends the search or leaves for the pool
        lost = torch.where((memory.lost < 0) & inside & ~on_target.any(dim=1), t, memory.lost)
        return selection._replace(memory=WatchMemory(selection.memory, *memory[1:3], on_target, lost))


def gold_in_beam(subject: Subject, width: int) -> dict[str, Any]:
    """Return how many targets leave a beam of this width before their end, and after which share of their tokens."""

    def lost(batch: Batch) -> list[tuple[int, int]]:
        lengths = batch.mask.sum(dim=1)
        pool = Pool(Constraints.of(batch), width, 1.0, "heuristic")
        found = search(subject.model, batch, Watch(pool, batch.gold, lengths), limits(batch))
        return list(zip(found.memory.lost.tolist(), lengths.tolist()))

    steps = np.array(subject.map(lost))
    left = steps[:, 0] >= 0
    after = float((steps[left, 0] / steps[left, 1]).mean()) if left.any() else None
    return {"width": width, "examples": 100 * float(left.mean()), "after": after}
