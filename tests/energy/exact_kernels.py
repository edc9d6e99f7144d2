"""The exact transition matrix of a sampler, from its own code: every outcome of its random draws is tried.

A turn is a function of the state and of two sets of uniform numbers: one draws the tokens, one decides. For each
sequence of tokens that can be drawn, the numbers are the middles of their intervals in [0, 1). A decision with the
number 0 returns the ratio, and so the probability of acceptance. The sampler then takes both branches, with a number
below and above that probability. The state between turns (terms, energies) is computed by the sampler.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from energy_cases import all_states, free_of, target_of
from torch import Tensor

from unforced.energy import masked_copies
from unforced.energy.samplers import Turn, Walk
from unforced.types import Batch, ChainState


class Inconsistent(Exception):
    """A sampler did not draw from the model's conditionals, or did not decide by its ratio."""


class Branches(NamedTuple):
    """B·K rows of chains, in all states that are possible."""

    state: ChainState
    origin: Tensor  # [R] the number of the sequence they started from
    weight: Tensor  # [R] their probability, 0 for padding rows


def start(walk: Walk, batch: Batch, orders: Sequence[Sequence[int]], sweep: int, size: int) -> Branches:
    """Start a chain in each state of each example, with a given order of positions."""
    states = [all_states(batch, b, size) for b in range(len(batch))]
    k = max(map(len, states))
    numbers = [torch.arange(k) % len(rows) for rows in states]
    tokens = torch.cat([rows[n] for rows, n in zip(states, numbers)])
    weight = torch.cat([(torch.arange(k) < len(rows)).double() for rows in states])
    state = walk.init(tokens)
    width = tokens.shape[1]
    order = torch.tensor([[*o, *(t for t in range(width) if t not in o)] for o in orders])
    state = state._replace(order=order.repeat_interleave(k, dim=0), sweep=torch.tensor(sweep))
    return Branches(state, torch.cat(numbers), weight)


def pick_rows(branches: Branches, rows: Tensor, weight: Tensor, examples: int) -> tuple[Branches, Tensor]:
    """Select rows (with repetition), padded to the same number for each example."""
    k = len(branches.origin) // examples
    groups = [(rows // k == b).nonzero().squeeze(1) for b in range(examples)]
    longest = max(1, *map(len, groups))
    chosen, new_weight, index = [], [], []
    for b, group in enumerate(groups):
        filler = torch.full((longest - len(group),), b * k)
        chosen.append(torch.cat([rows[group], filler]))
        new_weight.append(torch.cat([weight[group], torch.zeros(len(filler), dtype=torch.float64)]))
        index.append(torch.cat([group, torch.full_like(filler, -1)]))
    take = torch.cat(chosen)
    state = branches.state
    moved = ChainState(*(leaf if leaf.dim() == 0 else leaf[take] for leaf in state))
    return Branches(moved, branches.origin[take], torch.cat(new_weight)), torch.cat(index)


def merge_branches(parts: Sequence[Branches], examples: int) -> Branches:
    """Merge the branches of several outcomes; drop padding rows where possible."""
    states = [part.state for part in parts]
    size = sum(len(part.origin) for part in parts)
    numbers = torch.arange(size)
    counts = [len(part.origin) // examples for part in parts]
    example = torch.cat([torch.arange(examples).repeat_interleave(k) for k in counts])
    order = example.argsort(stable=True)
    cat = ChainState(*(leaves[0] if leaves[0].dim() == 0 else torch.cat(leaves)[order] for leaves in zip(*states)))
    both = Branches(cat, torch.cat([p.origin for p in parts])[order], torch.cat([p.weight for p in parts])[order])
    alive = numbers[both.weight > 0]
    return pick_rows(both, alive, both.weight[alive], examples)[0]


def shares(walk: Walk, state: ChainState, turn: Turn) -> tuple[Tensor, Tensor]:
    """Return the probability q of each token, and the middle of its interval in [0, 1): [A,P,V] each."""
    with torch.no_grad():
        scores = masked_copies.scores_at(walk.model, walk.batch, state.tokens, turn.rows, turn.positions, turn.valid)
        q = walk.log_q(scores).exp()
    return q, q.cumsum(dim=2) - q / 2


def one_turn(walk: Walk, branches: Branches) -> Branches:
    """Return the branches after every possible turn."""
    examples = len(walk.batch)
    turn = walk.turn(branches.state)
    q, middle = shares(walk, branches.state, turn)
    vocabulary, p = q.shape[2], q.shape[1]
    outcomes = torch.cartesian_prod(*[torch.arange(vocabulary)] * p).view(-1, p)  # [O,P]
    each = q[:, torch.arange(p), outcomes]  # [A,O,P]
    only_first = torch.where(outcomes == 0, 1.0, 0.0).double()  # one outcome where the block has no position
    joint = torch.where(turn.valid.unsqueeze(1), each, only_first).prod(dim=2)  # [A,O]
    joint = joint * branches.weight[turn.rows].unsqueeze(1)
    who, what = (joint > 0).nonzero(as_tuple=True)
    idle = torch.ones(len(branches.origin), dtype=torch.bool).index_fill(0, turn.rows, False)
    idle_rows = (idle & (branches.weight > 0)).nonzero().squeeze(1)
    rows = torch.cat([turn.rows[who], idle_rows])
    weight = torch.cat([joint[who, what], branches.weight[idle_rows]])
    spread, index = pick_rows(branches, rows, weight, examples)
    choices = torch.full((len(rows), p), 0.5, dtype=torch.float64)
    choices[: len(who)] = middle[who.unsqueeze(1), torch.arange(p), outcomes[what]]
    new_turn = walk.turn(spread.state)
    filled = index[new_turn.rows]  # −1 for padding rows
    chosen = torch.where(filled.unsqueeze(1) >= 0, choices[filled.clamp(min=0)], 0.5)
    new_turn = new_turn._replace(choices=chosen, chances=torch.zeros_like(new_turn.chances))
    _, first = walk.take(spread.state, new_turn)
    just_below = first.log_ratio[new_turn.rows].clamp(max=0).exp() * (1 - 1e-9)
    accepted, info = walk.take(spread.state, new_turn._replace(chances=just_below))
    expected = spread.state.tokens[new_turn.rows]
    drawn = outcomes[what[filled.clamp(min=0, max=len(what) - 1)]]
    drawn = torch.where(new_turn.valid, drawn, drawn[:, :1])
    expected = expected.scatter(1, new_turn.positions, drawn)
    counts = (filled >= 0) & info.accepted[new_turn.rows]
    if not torch.equal(accepted.tokens[new_turn.rows][counts], expected[counts]):
        raise Inconsistent
    chance = torch.ones(len(spread.weight), dtype=torch.float64)
    chance[new_turn.rows] = first.log_ratio[new_turn.rows].clamp(max=0).exp()
    if bool((~info.accepted & info.active & (chance > 0)).any()):
        raise Inconsistent
    parts = [Branches(accepted, spread.origin, spread.weight * chance)]
    if bool((chance < 1).any()):
        too_high = ((1 + chance) / 2)[new_turn.rows]
        refused, again = walk.take(spread.state, new_turn._replace(chances=too_high))
        if bool((again.accepted & again.active & (chance < 1 - 1e-12)).any()):
            raise Inconsistent
        parts.append(Branches(refused, spread.origin, spread.weight * (1 - chance)))
    return merge_branches(parts, examples)


def matrices(
    walk: Walk, batch: Batch, orders: Sequence[Sequence[int]], size: int, *, turns: int | None = None, sweep: int = 0
) -> list[Tensor]:
    """Return for each example the matrix [S,S] of a sweep in this order, or of its first ``turns`` turns."""
    branches = start(walk, batch, orders, sweep, size)
    done = 0
    while int(branches.state.sweep) == sweep and (turns is None or done < turns):
        branches = one_turn(walk, branches)
        done += 1
    k = len(branches.origin) // len(walk.batch)
    found = []
    for b in range(len(walk.batch)):
        states, mine = all_states(batch, b, size), slice(b * k, (b + 1) * k)
        same = (branches.state.tokens[mine].unsqueeze(1) == states).all(dim=2)  # [K,S]
        inside = same.any(dim=1)  # else the row does not add up to one
        matrix = torch.zeros(len(states), len(states), dtype=torch.float64)
        places = branches.origin[mine][inside], same.int().argmax(dim=1)[inside]
        found.append(matrix.index_put(places, branches.weight[mine][inside], accumulate=True))
    return found


class Violations(NamedTuple):
    """The largest error of each kind."""

    rows: float  # of Σ_j P_ij = 1
    balance: float  # of π_i P_ij = π_j P_ji, for every block
    stationary: float  # of πP = π, for every block and for sweeps

    @property
    def worst(self) -> float:
        return max(self)


def violations(walk: Walk, batch: Batch, size: int, kind: str, *, target: float = 1.0, sweep: int = 0) -> Violations:
    """Check each block, a sweep from left to right, and a sweep in another order."""
    try:
        return _violations(walk, batch, size, kind, target, sweep)
    except Inconsistent:
        return Violations(float("inf"), float("inf"), float("inf"))


def _violations(walk: Walk, batch: Batch, size: int, kind: str, target: float, sweep: int) -> Violations:
    goal = [target_of(walk.model, batch, b, size, kind, target) for b in range(len(batch))]
    frees = [free_of(batch, b) for b in range(len(batch))]
    worst = [0.0, 0.0, 0.0]
    for shift in range(max(map(len, frees))):
        orders = [free[shift % len(free) :] + free[: shift % len(free)] for free in frees]
        for matrix, pi in zip(matrices(walk, batch, orders, size, turns=1, sweep=sweep), goal):
            flow = pi.unsqueeze(1) * matrix
            worst[0] = max(worst[0], float((matrix.sum(dim=1) - 1).abs().max()))
            worst[1] = max(worst[1], float((flow - flow.T).abs().max()))
            worst[2] = max(worst[2], float((pi @ matrix - pi).abs().max()))
    for orders in (frees, [free[1:] + free[:1] for free in frees]):
        for matrix, pi in zip(matrices(walk, batch, orders, size, sweep=sweep), goal):
            worst[0] = max(worst[0], float((matrix.sum(dim=1) - 1).abs().max()))
            worst[2] = max(worst[2], float((pi @ matrix - pi).abs().max()))
    return Violations(*worst)
