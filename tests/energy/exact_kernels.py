"""The exact transition matrix of a sampler, from its own code: every outcome of its random draws is tried.

A turn is a function of the state and of two sets of uniform numbers: one picks the tokens, one decides. For each sequence of
tokens that can be drawn, numbers from the middle of their share of [0, 1) are put in. Then the decision: a number of 0
shows the ratio, and with it the probability of acceptance; both branches are followed by the sampler itself, with numbers
just below it and above it. What it carries along from turn to turn (terms, energies) is whatever its code made of it.
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
    """A sampler drew otherwise than by the model's conditionals, or decided otherwise than by its ratio."""


class Branches(NamedTuple):
    """Rows of chains in all states they may be in, B·K of them."""

    state: ChainState
    origin: Tensor  # [R] the number of the sequence they started from
    weight: Tensor  # [R] their probability, 0 for rows that fill up


def start(walk: Walk, batch: Batch, orders: Sequence[Sequence[int]], sweep: int, size: int) -> Branches:
    """A chain in each state of each example; positions will be visited in the order given."""
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
    """Some rows (with repetition), again the same number for each example: rows of no weight fill up."""
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


def joined(parts: Sequence[Branches], examples: int) -> Branches:
    """Branches of several outcomes together, rows of no weight dropped where that is possible."""
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
    """The probability q of each token of the block, and the middle of its share of [0, 1): [A,P,V] each."""
    with torch.no_grad():
        scores = masked_copies.scores_at(walk.model, walk.batch, state.tokens, turn.rows, turn.positions, turn.valid)
        q = walk.log_q(scores).exp()
    return q, q.cumsum(dim=2) - q / 2


def one_turn(walk: Walk, branches: Branches) -> Branches:
    """All that one turn can lead to."""
    examples = len(walk.batch)
    turn = walk.turn(branches.state)
    q, middle = shares(walk, branches.state, turn)
    vocabulary, p = q.shape[2], q.shape[1]
    outcomes = torch.cartesian_prod(*[torch.arange(vocabulary)] * p).view(-1, p)  # [O,P]
    each = q[:, torch.arange(p), outcomes]  # [A,O,P]
    only_first = torch.where(outcomes == 0, 1.0, 0.0).double()  # a place the block hasn't: one outcome
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
    filled = index[new_turn.rows]  # −1 for rows that fill up
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
    return joined(parts, examples)


def matrices(
    walk: Walk, batch: Batch, orders: Sequence[Sequence[int]], size: int, *, turns: int | None = None, sweep: int = 0
) -> list[Tensor]:
    """For each example the matrix [S,S] of a sweep in this order, or of its first ``turns`` turns."""
    branches = start(walk, batch, orders, sweep, size)
    made = 0
    while int(branches.state.sweep) == sweep and (turns is None or made < turns):
        branches = one_turn(walk, branches)
        made += 1
    k = len(branches.origin) // len(walk.batch)
    found = []
    for b in range(len(walk.batch)):
        states, mine = all_states(batch, b, size), slice(b * k, (b + 1) * k)
        same = (branches.state.tokens[mine].unsqueeze(1) == states).all(dim=2)  # [K,S]
        there = same.any(dim=1)  # else the chain has left the space, and the row won't add up to one
        matrix = torch.zeros(len(states), len(states), dtype=torch.float64)
        places = branches.origin[mine][there], same.int().argmax(dim=1)[there]
        found.append(matrix.index_put(places, branches.weight[mine][there], accumulate=True))
    return found


class Violations(NamedTuple):
    """How far a sampler is from what it should be: the largest error of each kind."""

    rows: float  # of Σ_j P_ij = 1
    balance: float  # of π_i P_ij = π_j P_ji, for every block
    stationary: float  # of πP = π, for every block and for sweeps

    @property
    def worst(self) -> float:
        return max(self)


def violations(walk: Walk, batch: Batch, size: int, kind: str, *, target: float = 1.0, sweep: int = 0) -> Violations:
    """Check every block by itself, and a sweep from left to right and one in another order."""
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
