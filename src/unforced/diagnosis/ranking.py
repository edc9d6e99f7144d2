"""Ranking: how much better the best of several outputs is than the first."""

from typing import Any

import numpy as np

from unforced.decoding.beam import Beam
from unforced.decoding.sampling import Sample
from unforced.diagnosis.subject import Finding, Subject, points

SIZES = (2, 4, 8, 16)
REFERENCE = 4  # the number of outputs that headroom is measured with


def measure_ranking(subject: Subject) -> Finding:
    """Measure the best and the mean of the n best outputs, and of n samples, against the first of the n best."""
    most = max(SIZES)
    found = subject.decode(Beam(beam=most, nbest=most))
    nbest = subject.candidate_statistics([each.outputs for each in found])
    drawn = subject.decode(Sample(samples=most))
    # samples come with the most probable first; shuffled, the first n are n independent draws
    order = np.random.default_rng(subject.seed).permuted(np.tile(np.arange(most), (len(drawn), 1)), axis=1)
    samples = subject.candidate_statistics([[each.outputs[i] for i in row] for each, row in zip(drawn, order.tolist())])
    first = nbest[:, 0]
    headroom = subject.gain(subject.best_of(nbest[:, :REFERENCE]), first)
    details = {
        "first": subject.score(first),
        "nbest": [_compare(subject, nbest[:, :n], first, n) for n in SIZES],
        "samples": [_compare(subject, samples[:, :n], first, n) for n in SIZES],
    }
    meaning = f"Among the best {REFERENCE} outputs of a beam search, the best by the metric gains this over the first."
    return Finding("ranking", headroom, "points", meaning, details)


def _compare(subject: Subject, rows: np.ndarray, first: np.ndarray, n: int) -> dict[str, Any]:
    """Return what the best and the mean of K outputs [N,K,D] gain over the first of the n best [N,D]."""
    best, mean = subject.gain(subject.best_of(rows), first), subject.gain(rows.mean(axis=1), first)
    return {"outputs": n, "best": points(best), "mean": points(mean)}
