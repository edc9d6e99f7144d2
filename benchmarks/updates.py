"""Measure time and memory of an update: forward, backward and AdamW of a model with an objective."""

import copy
import itertools
import statistics
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

from harness import ratio, row
from unforced.types import Progress


def update(model, objective, batches: list, *, single: bool = False) -> Callable[[], float]:
    """Return a turn, which makes one update on each batch and returns milliseconds per update.

    With ``single`` a turn is one update, on the next batch. Other load on the machine then affects a few of many
    ratios, so small differences can be measured.
    """
    mine = copy.deepcopy(model).train()
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-7, fused=True)
    rng = torch.Generator().manual_seed(1)

    groups = itertools.cycle([[each] for each in batches] if single else [batches])

    def turn() -> float:
        group = next(groups)
        begin = time.perf_counter()
        for each in group:
            objective(mine, each, progress=Progress(), rng=rng).mean.backward()
            optimizer.step()
            optimizer.zero_grad()
        return 1000 * (time.perf_counter() - begin) / len(group)

    return turn


def cost(title: str, against: str, times: dict[str, list[float]], over: str, target: float | None) -> dict:
    figure = ratio(times[title], times[over])
    medians = [statistics.median(times[name]) for name in (title, over)]
    return row(
        title,
        against,
        figure,
        target=None if target is None else f"<= {target}",
        passed=None if target is None else figure["median"] <= target,
        absolute=f"{medians[0]:.0f} and {medians[1]:.0f} ms per update",
    )


def peak(model, objective, each) -> int:
    """Return the peak of allocated bytes in one forward and backward pass."""
    mine = copy.deepcopy(model).train()

    def work() -> None:
        loss = objective(mine, each, progress=Progress(), rng=torch.Generator().manual_seed(1))
        loss.mean.backward()

    return allocated(work)


def allocated(work: Callable[[], None]) -> int:
    """Return the peak of allocated bytes while ``work`` runs."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    held = most = 0
    changes = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
