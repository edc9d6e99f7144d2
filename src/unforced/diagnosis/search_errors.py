"""Search errors and model errors: what a better search could win, and where the model prefers wrong outputs."""

from typing import Any

import numpy as np
import torch

from unforced.decoding.beam import Beam
from unforced.decoding.teacher_forcing import score_outputs
from unforced.diagnosis.subject import Finding, Subject, points
from unforced.metrics.significance import interval
from unforced.types import Batch

WIDTHS = (1, 2, 4, 8, 16)
REFERENCE = 4  # the width that headroom is measured from


def measure_search(subject: Subject) -> Finding:
    """Measure what repairing all search errors of a beam of 4 would win, and the score by width.

    Of the examples whose output is not the target, a search error is one whose target has the higher score. The others
    are model errors, which no better search repairs.
    """
    targets, target_rows = subject.golds, subject.statistics(subject.golds)
    scores, curve = target_scores(subject), []
    for width in WIDTHS:
        found = subject.decode(Beam(beam=width))
        rows = subject.statistics([each.outputs[0] for each in found])
        wrong = np.array([each.outputs[0] != target for each, target in zip(found, targets)])
        missed = wrong & np.array([score > each.scores[0] for each, score in zip(found, scores)])
        entry: dict[str, Any] = {"width": width, "score": points(interval(subject.metric.score, rows))}
        entry |= {"search_errors": 100 * float(missed.mean()), "model_errors": 100 * float((wrong & ~missed).mean())}
        entry["length_ratio"] = sum(len(each.outputs[0]) for each in found) / max(1, sum(map(len, targets)))
        curve.append(entry)
        if width == REFERENCE:
            headroom = subject.gain(np.where(missed[:, None], target_rows, rows), rows)
            share = entry["search_errors"]
    meaning = f"With a beam of {REFERENCE} the search misses a target with a higher score in {share:.1f} % of examples."
    return Finding("search", headroom, "points", meaning, {"by_width": curve})


def target_scores(subject: Subject) -> list[float]:
    """Return the score by which a beam search would rank each target: log p per token."""

    def scores(batch: Batch) -> list[float]:
        lengths = batch.mask.sum(dim=1)
        examples = torch.arange(len(batch), device=lengths.device)
        log_probs = score_outputs(subject.model, batch, batch.gold, lengths, examples)
        per_token: list[float] = (log_probs / lengths.clamp(min=1)).tolist()
        return per_token

    return subject.map(scores)
