"""Energies of all sequences of a space, for models that score a token from a left and a right context.

Each prefix and each suffix is encoded once, although many sequences share it. Matrix products combine them.
Contexts of N strings are a tree of tensors with rows first (``unforced.ops.state_rows``).
"""

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import torch
from torch import Tensor

from unforced.energy.energies import Kind
from unforced.ops import state_rows
from unforced.protocols import Side, SupportsContexts
from unforced.types import Batch

CELLS = 2**27  # energies in memory
PAIRS = 2**13  # pairs of a prefix and a suffix that are combined at once
SLAB = 2**13  # prefixes or suffixes that are encoded at once
PART = 2**20  # energies in a part of the result


class Space(NamedTuple):
    """All sequences with the variables of one example."""

    choices: tuple[Tensor, ...]  # the ids of each position; one id where there is no variable
    variable: tuple[bool, ...]

    @property
    def size(self) -> int:
        return math.prod(map(len, self.choices))

    @property
    def key(self) -> tuple[int, ...]:
        """What distinguishes spaces over the same ids: −1 for a variable, else the fixed id."""
        return tuple(-1 if flag else int(ids[0]) for ids, flag in zip(self.choices, self.variable))

    def sequences(self, start: int, stop: int, one: Batch) -> Tensor:
        """Return sequences ``start`` to ``stop`` − 1 in lexicographic order, padded like a batch: [n,T]."""
        number = torch.arange(start, stop, device=self.choices[0].device)
        columns = []
        for ids in reversed(self.choices):
            columns.append(ids[number % len(ids)])
            number = number // len(ids)
        padding = one.gold.shape[1] - len(columns)
        return torch.nn.functional.pad(torch.stack(columns[::-1], dim=1), (0, padding), value=one.symbols.pad)


def shares_contexts(model: Any, batch: Batch) -> bool:
    """Return whether the sequences of a space can be scored from shared contexts."""
    return batch.source is None and isinstance(model, SupportsContexts) and model.contexts_are_exact()


def factored_energies(model: SupportsContexts, space: Space, ids: Tensor, kind: Kind) -> Tensor:
    """Return E of all sequences of a small space, in lexicographic order: [size]. Gradients flow.

    This is the plain version of `factored_terms`, in one part.
    """
    choices, variable = space
    sizes = [len(each) for each in choices]
    weights, bias = model.output_weights(ids)
    left, right = [model.empty_context()], [model.empty_context()]
    for near, far in zip(choices[:-1], choices[:0:-1]):
        left.append(model.extend_contexts("left", left[-1], near))
        right.append(model.extend_contexts("right", right[-1], far))
    table = weights.new_zeros(sizes)
    for t, each in enumerate(choices):
        if variable[t]:
            prefixes = model.project_contexts("left", left[t]).unsqueeze(1)
            x = prefixes + model.project_contexts("right", right[len(choices) - 1 - t])  # [P,S,J]
            scores = model.activate(x) @ weights.T + bias  # [P,S,A]
            if kind == "local":
                scores = torch.log_softmax(scores, dim=-1)
            picked = scores[..., torch.searchsorted(ids, each)]
            table = table + picked.transpose(1, 2).reshape(sizes)
    return -table.flatten()


def factored_terms(
    model: SupportsContexts, space: Space, ids: Tensor, kind: Kind, cells: int = CELLS
) -> Iterator[Tensor]:
    """Yield −E of all sequences of a space in parts, without gradients; ``ids`` are the tokens that E_local sums over.

    The space is cut into blocks of at most ``cells`` sequences, each a product of choices at every position. In a block
    the term of position t is a matrix product of P with g(l + r) of all prefixes times all suffixes. Cutting position t
    into n pieces repeats the work on its contexts n times. Cutting the first or last position repeats the longest
    contexts, so positions in the middle are cut.
    """
    widths = block_widths([len(each) for each in space.choices], cells)
    pieces = [each.split(width) for each, width in zip(space.choices, widths)]
    outputs = model.output_weights(ids)
    for block in product(*pieces):
        yield from _block_terms(model, Space(block, space.variable), outputs, ids, kind).view(-1).split(PART)


def block_widths(sizes: Sequence[int], cells: int) -> list[int]:
    """Return how many choices of each position a block has. The widest middle positions are cut first.

    >>> block_widths([39] * 6, 2**26), block_widths([4, 4, 4], 8), block_widths([5, 5], 100)
    ([39, 20, 13, 13, 13, 39], [4, 1, 2], [5, 5])
    """
    pieces = [1] * len(sizes)

    def width(t: int) -> int:
        return -(-sizes[t] // pieces[t])

    wide = [t for t, size in enumerate(sizes) if size > 1]
    for among in (wide[1:-1], wide):
        while math.prod(map(width, range(len(sizes)))) > cells:
            cuttable = [t for t in among if width(t) > 1]
            if not cuttable:
                break
            t = max(cuttable, key=lambda t: (width(t), t))
            before = width(t)
            while width(t) == before:
                pieces[t] += 1
    return [width(t) for t in range(len(sizes))]


def _block_terms(
    model: SupportsContexts, space: Space, outputs: tuple[Tensor, Tensor], ids: Tensor, kind: Kind
) -> Tensor:
    """Return −E of all sequences of a block: [n_1, …, n_L]."""
    block, variable = space
    sizes = [len(choices) for choices in block]
    if not any(variable):
        return outputs[0].new_zeros(sizes)
    table = outputs[0].new_zeros(())
    for flag, choices in zip(variable, block):  # the biases of all sequences
        table = table.unsqueeze(-1)
        if flag and kind == "raw":
            table = table + outputs[1][torch.searchsorted(ids, choices)]
    table = table.expand(sizes).contiguous()
    left = [model.prepare_contexts("left", model.empty_context())]
    right = [model.prepare_contexts("right", model.empty_context())]
    first, last = variable.index(True), len(block) - 1 - variable[::-1].index(True)
    for choices in block[: max(0, last - 1)]:  # ``_slabs`` reads the longest, which are used once
        left.append(model.prepare_contexts("left", model.extend_contexts("left", left[-1], choices)))
    for choices in block[first + 2 :][::-1]:
        right.append(model.prepare_contexts("right", model.extend_contexts("right", right[-1], choices)))
    for t, choices in enumerate(block):
        if not variable[t]:
            continue
        view = table.view(math.prod(sizes[:t]), sizes[t], -1)
        picked = torch.searchsorted(ids, choices)
        lefts = _slabs(model, "left", left, block[:t][::-1])
        rights = _slabs(model, "right", right, block[t + 1 :])
        if view.shape[0] < view.shape[2]:
            few = list(lefts)
            pairs = ((a, b) for b in rights for a in few)
        else:
            few = list(rights)
            pairs = ((a, b) for a in lefts for b in few)
        for (p, prefixes), (s, suffixes) in pairs:
            part = view[p : p + len(prefixes), :, s : s + len(suffixes)]
            _add_terms(model, part, prefixes, suffixes, outputs, picked, kind)
    return table


def _slabs(
    model: SupportsContexts, side: Side, contexts: Sequence[Any], nearest: Sequence[Tensor]
) -> Iterator[tuple[int, Tensor]]:
    """Yield l or r of all strings on one side in slabs: the number of the first string, and [n,J].

    ``nearest`` are the choices on that side, starting next to the token. ``contexts`` are those of strings of each
    length.
    """
    if not nearest:
        yield 0, model.project_contexts(side, model.empty_context())
        return
    shorter, ids = contexts[len(nearest) - 1], nearest[0]
    count = math.prod(map(len, nearest[1:]))
    some = max(1, SLAB // len(ids)) if side == "left" else SLAB  # contexts, which come first on the left
    several = len(ids) if side == "left" else max(1, SLAB // count)  # tokens
    for token in range(0, len(ids), several):
        for start in range(0, count, some):
            part = state_rows.map_rows(lambda leaf: leaf[start : start + some], shorter)  # noqa: B023 (called at once)
            longer = model.extend_contexts(side, part, ids[token : token + several])
            yield start * len(ids) if side == "left" else token * count + start, model.project_contexts(side, longer)


def _add_terms(
    model: SupportsContexts,
    table: Tensor,
    prefixes: Tensor,
    suffixes: Tensor,
    outputs: tuple[Tensor, Tensor],
    picked: Tensor,
    kind: Kind,
) -> None:
    """Add the terms of one position to a part of the table [P,n,S], from l [P,J] and r [S,J].

    ``picked`` [n] are the indices of the position's choices among all ids. The table has raw biases already.
    """
    weights, bias = outputs
    own = weights[picked]
    wide = min(len(suffixes), PAIRS)
    tall = max(1, PAIRS // wide)
    for p in range(0, len(prefixes), tall):
        for s in range(0, len(suffixes), wide):
            x = model.activate(prefixes[p : p + tall].unsqueeze(1) + suffixes[s : s + wide])  # [p,s,J]
            part = table[p : p + tall, :, s : s + wide]
            if kind == "local":
                scores = torch.log_softmax(x @ weights.T + bias, dim=-1)  # [p,s,V]
                part += scores[..., picked].transpose(1, 2)
            elif x.shape[1] == 1:
                part[:, :, 0].addmm_(x[:, 0], own.T)
            elif x.shape[0] == 1:
                part[0].addmm_(own, x[0].T)
            else:
                part.baddbmm_(own.expand(len(x), -1, -1), x.transpose(1, 2))
