"""What an update costs in time and memory: forward, backward and AdamW of a model with an objective."""

import copy
import itertools
import statistics
import time
from collections.abc import Callable

from harness import ratio, row


def update(model, objective, batches: list, *, dropout: bool = True, apart: bool = False) -> Callable[[], float]:
    """A turn: an update on each batch; milliseconds an update. With ``apart`` a turn is one update, on the next batch:
    what else the machine does then spoils a few of many ratios, and small differences can be told."""
    import torch

    from unforced.types import Progress

    mine = copy.deepcopy(model).train(dropout)
    optimizer = torch.optim.AdamW(mine.parameters(), lr=1e-7, fused=True)
    rng = torch.Generator().manual_seed(1)

    groups = itertools.cycle([[each] for each in batches] if apart else [batches])

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
        absolute=f"{medians[0]:.0f} and {medians[1]:.0f} ms an update",
    )


def peak(model, objective, each) -> int:
    """The most bytes that were allocated at once by one forward and backward pass."""
    import torch

    from unforced.types import Progress

    mine = copy.deepcopy(model).train()

    def work() -> None:
        loss = objective(mine, each, progress=Progress(), rng=torch.Generator().manual_seed(1))
        loss.mean.backward()

    return allocated(work)


def allocated(work: Callable[[], None]) -> int:
    """The most bytes that were allocated at once while ``work`` ran."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    held = most = 0
    changes = [event for event in seen.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most
