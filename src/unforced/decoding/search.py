"""What an output may be: how long, and of which tokens.

Every decoder has these two fields. ``min_length`` is the least number of tokens before the end symbol. ``max_length`` is
the largest number of tokens, the end symbol counted among them: the search takes at most that many steps, and an
output that has not ended by then is returned as it stands, without an end symbol. (So the probabilities of all
outputs add up to one.) They are ``min_new_tokens`` and ``max_new_tokens`` of Hugging Face's ``generate``.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unforced.errors import InputError
from unforced.models.modes import no_dropout, stepping
from unforced.ops import state_rows
from unforced.ops.masks import widened
from unforced.protocols import StepDecoder, require
from unforced.types import Batch, DecoderState, Hypotheses, Symbols, Tree

UNKNOWN_LENGTH = 256  # the limit where neither the task nor a source of tokens suggests one


def check_lengths(min_length: int, max_length: int | None) -> None:
    """Raise `InputError` if ``max_length`` is below ``min_length``."""
    if max_length is not None and max_length < min_length:
        raise InputError(f"max_length must be at least min_length, {min_length}, got {max_length}")


def limits(batch: Batch, min_length: int = 0, max_length: int | None = None) -> Tensor:
    """The number of steps [B] that each example may take; an example's limit never depends on its batch mates.

    Where outputs have no end symbol, exactly ``batch.length``. Else ``max_length``, and where that is None:
    ``batch.length`` if the task gives it, 2 S + 10 for a source of S tokens, or 256 (more if ``min_length`` asks it).

    >>> gold = torch.tensor([[3, 2], [4, 2]])
    >>> source = torch.tensor([[5, 6, 7], [8, 0, 0]])
    >>> symbols = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
    >>> limits(Batch.of_gold(gold, gold > 0, symbols, source=source, source_mask=source > 0))
    tensor([16, 12])
    """
    if batch.symbols.eos is None:
        if batch.length is None:
            raise InputError("outputs without an end symbol need Batch.length, the length of each output")
        if min_length or max_length is not None:
            raise InputError("min_length and max_length mean nothing where each output's length is fixed")
        return batch.length
    zeros = torch.zeros(len(batch), dtype=torch.long, device=batch.gold.device)
    if max_length is not None:
        return zeros + max_length
    if batch.length is not None:
        default = batch.length
    elif batch.source_mask is not None:
        default = 2 * batch.source_mask.sum(dim=1) + 10
    elif batch.source is not None and batch.source.dim() == 2:
        default = zeros + 2 * batch.source.shape[1] + 10
    else:
        default = zeros + UNKNOWN_LENGTH
    return default.clamp(min=min_length + 1)


class Constraints(NamedTuple):
    """Which tokens may be emitted when: never those that are banned, EOS not before ``min_length`` tokens."""

    eos: int | None
    pad: int
    min_length: int
    banned: Tensor  # [·] long
    banned_early: Tensor  # [·] long, EOS among them
    kind: Literal["local", "global"] = "local"

    @classmethod
    def of(cls, batch: Batch, min_length: int = 0, kind: Literal["local", "global"] = "local") -> "Constraints":
        symbols: Symbols = batch.symbols
        banned = sorted(set(symbols.banned) - {symbols.eos})
        early = banned if symbols.eos is None else [*banned, symbols.eos]
        never, not_yet = (torch.tensor(ids, dtype=torch.long, device=batch.gold.device) for ids in (banned, early))
        return cls(symbols.eos, symbols.pad, min_length, never, not_yet, kind)

    def token_scores(self, t: int, scores: Tensor) -> Tensor:
        """The model's scores [...,V] at step t -> what tokens add to a hypothesis, in a new tensor [...,V].

        That is their log-softmax (``local``) or the scores themselves (``global``), with −inf for tokens that may not
        be emitted. What is banned keeps its share of the probability: a ban excludes, it does not renormalise.
        """
        scores = widened(scores)
        banned = self.banned_at(t)
        if self.kind == "global":
            check_finite(scores, t)
            return scores.index_fill(-1, banned, -torch.inf)
        log_probs = scores.log_softmax(dim=-1)
        if log_probs[..., 0].isnan().any():  # so is the whole row: all scores are −inf, or the model is broken
            check_finite(scores, t)
            log_probs.masked_fill_(log_probs.isnan(), -torch.inf)
        return log_probs.index_fill_(-1, banned, -torch.inf)

    def banned_at(self, t: int) -> Tensor:
        """The ids that may not be emitted at step t."""
        return self.banned if t >= self.min_length else self.banned_early

    def is_end(self, tokens: Tensor) -> Tensor:
        return torch.zeros_like(tokens, dtype=torch.bool) if self.eos is None else tokens == self.eos


def check_finite(scores: Tensor, t: int) -> None:
    """Raise ``InputError`` where a score is NaN or +inf (−inf is a token that can't come)."""
    if not bool((scores < torch.inf).all()):
        raise InputError(f"the model gave NaN or infinite scores at step {t}")


# The search loop: it runs the model, a selector decides.

ENDING = 4  # stretches of steps at the end of a search that are not made again


class Move(Protocol):
    """How the K hypotheses of each example go on; a named tuple whose tensors have examples first."""

    def follow(self, state: DecoderState) -> DecoderState:
        """The state after the step, of k' rows an example -> the state the next step starts from, of K rows."""
        ...

    def inputs(self, model: StepDecoder) -> Tensor:
        """What the next step is fed: [B·K,1,E]."""
        ...


class HardMove(NamedTuple):
    """Hypothesis i of example b continues hypothesis ``parents[b,i]`` with the token ``tokens[b,i]``.

    ``parents`` None means that each continues itself; ``width`` is k', the number of hypotheses before the move.
    """

    tokens: Tensor  # [B,K] long
    parents: Tensor | None  # [B,K] long
    width: int

    def follow(self, state: DecoderState) -> DecoderState:
        if self.parents is None:
            return state
        b, k = self.parents.shape
        chosen = torch.arange(0, b * self.width, self.width, device=self.parents.device)
        chosen = (chosen.unsqueeze(1) + self.parents).flatten()
        if k == self.width and torch.equal(chosen, torch.arange(b * k, device=chosen.device)):
            return state  # the beam kept its order: nothing to copy
        return state_rows.reorder(state, chosen)

    def inputs(self, model: StepDecoder) -> Tensor:
        return model.embed(self.tokens.reshape(-1, 1))


class Record(NamedTuple):
    """The C nodes a step adds to the tree of hypotheses: their tokens, and their parents among the nodes before.

    ``parents`` None means that node c follows node c.
    """

    tokens: Tensor  # [B,C] long
    parents: Tensor | None  # [B,C] long


class Selection(NamedTuple):
    """What a selector makes of one step's scores; examples first in every tensor."""

    memory: Tree  # what it accumulates: scores, costs, finished hypotheses
    move: Move
    record: Record | None  # None where nobody will follow the trace
    running: Tensor  # [B] bool: whether the example goes on


class Selector(Protocol):
    """The deciding part of a search. ``width`` is K, the number of hypotheses of each example.

    Selectors hold no state: what they accumulate is their ``memory``, a tree of tensors with examples first, so that
    the loop can drop examples and gradients can flow through it.
    """

    @property
    def width(self) -> int: ...

    def begin(self, limits: Tensor) -> Tree:
        """[B] number of steps each example may take -> the memory before the first step."""
        ...

    def select(self, t: int, scores: Tensor, memory: Any, last: Tensor | None) -> Selection:
        """Choose among the continuations of step ``t`` = 0, 1, …

        ``scores`` is [B,k,V], as the model gave them; k is 1 at the first step, where there is but the empty
        hypothesis, and K from then on. ``last`` [B] says for which examples this is the last step they may take
        (None: for nobody); the loop ends these whatever ``running`` says.
        """
        ...


class Found(NamedTuple):
    """The end of a search: the selector's memory for all examples in their order, and the trace."""

    memory: Any
    trace: list[tuple[Tensor, Record]]  # each step's examples [b], those still running, and their nodes
    examples: int
    copies: int


def search(
    model: StepDecoder,
    batch: Batch,
    selector: Selector,
    limits: Tensor,
    *,
    copies: int = 1,
    state: DecoderState | None = None,
    stretch: int | None = None,
) -> Found:
    """Run ``selector`` over the model's scores until every example has finished or reached its limit.

    ``limits`` is [B]; with ``copies`` each example is searched that many times over, independently (samples), and the
    memory's first dimension is B·copies. An example's first input is ``batch.prefix[:, 0]``. Gradients flow if they are
    enabled and the selector lets them. ``state`` is what ``model.start(batch)`` gave, where that has been called already.

    With ``stretch`` so many steps are taken at a time, and only what stands between stretches is kept for the backward
    pass, which makes the steps again (gradient checkpointing); the last ``ENDING`` stretches, where it begins, are kept
    as they are. Nobody but those at their limit finishes, and there is no trace.
    """
    require(model, "a search", "start", "embed", "advance", "score")
    limits = limits.repeat_interleave(copies)
    examples = limits.numel()
    alive = torch.arange(examples, device=limits.device)
    memory, gone = selector.begin(limits), []
    trace: list[tuple[Tensor, Record]] = []
    move: Any = HardMove(batch.prefix[:, :1].repeat_interleave(copies, dim=0), None, 1)
    if not examples:
        state = DecoderState(None, None)
    state = state_rows.repeat(model.start(batch) if state is None else state, copies)
    running, t, width, nearest = limits > 0, 0, 1, 0
    calm = isinstance(model, nn.Module) and not model.training  # steps that are made again are made in the same mode
    kept = 0 if stretch is None or not examples else int(limits.max()) - ENDING * stretch  # steps from it on
    while True:
        if not examples or not running.all():  # examples leave the batch
            left, stay = (~running).nonzero().squeeze(1), running.nonzero().squeeze(1)
            gone.append((alive[left], _take(memory, left)))
            memory, move, limits, alive = _take((memory, move, limits, alive), stay)
            if not alive.numel():
                break
            state = state_rows.keep(state, _rows_of(stay, width))
        if t >= nearest:
            nearest = int(limits.min())  # nobody's last step comes before it
        if t and selector.width != width:  # after the first step one hypothesis becomes K
            shared = state_rows.repeat(DecoderState(None, state.shared), selector.width).shared
            state, width = state._replace(shared=shared), selector.width
        count = 1 if stretch is None or t == 0 else min(stretch, nearest - t)
        last = limits == t + count if t + count >= nearest else None
        if stretch is None:
            state, (memory, move, record, running) = step(model, selector, t, width, state, move, memory, last)
            if record is not None:
                trace.append((alive, record))
        else:
            forgetting = partial(checkpoint, _steps, use_reentrant=False)
            state, memory, move = (_steps if t >= kept else forgetting)(
                model, selector, range(t, t + count), width, state, move, memory, calm
            )
            running = torch.ones_like(alive, dtype=torch.bool)
        running = running if last is None else running & ~last
        t += count
    order = torch.cat([numbers for numbers, _ in gone]).argsort()
    return Found(_take(_concatenate([m for _, m in gone]), order), trace, examples, copies)


def step(
    model: StepDecoder,
    selector: Selector,
    t: int,
    width: int,
    state: DecoderState,
    move: Move,
    memory: Any,
    last: Tensor | None,
) -> tuple[DecoderState, Selection]:
    """One pass of the loop, a pure function: make the move, advance the ``width`` rows an example has, score, select."""
    state = move.follow(state)
    features, state = model.advance(state, move.inputs(model))
    scores = model.score(features[:, -1])  # [B·k,V]
    return state, selector.select(t, scores.unflatten(0, (-1, width)), memory, last)


def _steps(
    model: StepDecoder,
    selector: Selector,
    times: range,
    width: int,
    state: DecoderState,
    move: Move,
    memory: Any,
    calm: bool,
) -> tuple[DecoderState, Any, Move]:
    """A stretch of steps, nobody's last but the last; made again, it is outside of the pass it was made in."""
    with no_dropout(model) if calm else nullcontext(), stepping(model):
        for t in times:
            state, (memory, move, _, _) = step(model, selector, t, width, state, move, memory, None)
    return state, memory, move


def _take(tree: Tree, examples: Tensor) -> Tree:
    return state_rows.map_rows(lambda leaf: leaf.index_select(0, examples), tree)


def _rows_of(examples: Tensor, width: int) -> Tensor:
    """The rows of some examples: [b] -> [b·width]."""
    return (examples.unsqueeze(1) * width + torch.arange(width, device=examples.device)).flatten()


def _concatenate(trees: list[Tree]) -> Tree:
    first = trees[0]
    if isinstance(first, Tensor):
        return torch.cat(trees) if first.dim() else first
    if isinstance(first, dict):
        return {key: _concatenate([tree[key] for tree in trees]) for key in first}
    if isinstance(first, tuple | list):
        leaves = [_concatenate(list(parts)) for parts in zip(*trees)]
        return type(first)(*leaves) if hasattr(first, "_fields") else type(first)(leaves)
    return first


def follow(found: Found, ends: Tensor, nodes: Tensor, pad: int) -> Tensor:
    """Walk back from node ``nodes[b,n]`` of step ``ends[b,n]`` (−1: nothing at all) to the start.

    Both are [B,N]; the result is [B,N,T], padded behind the end, with T the longest output.
    """
    size = int(ends.max()) + 1 if ends.numel() else 0
    if not size:
        return nodes.new_full((*nodes.shape, 0), pad)

    def whole(numbers: Tensor, leaf: Tensor) -> Tensor:  # the nodes of all examples, whoever has left
        if numbers.numel() == found.examples:
            return leaf
        return leaf.new_zeros(found.examples, leaf.shape[1]).index_copy_(0, numbers, leaf)

    tokens, path = [], []
    for t in reversed(range(size)):
        numbers, record = found.trace[t]
        tokens.append(whole(numbers, record.tokens))
        path.append(nodes)
        if record.parents is not None:
            nodes = torch.where(ends < t, nodes, whole(numbers, record.parents).gather(1, nodes))
    walked = torch.stack(tokens[::-1], dim=2).gather(1, torch.stack(path[::-1], dim=2))  # [B,C,T] -> [B,N,T]
    steps = torch.arange(size, device=ends.device)
    return walked.masked_fill(steps > ends.unsqueeze(2), pad)


def hypotheses(
    found: Found, batch: Batch, ends: Tensor, nodes: Tensor, log_probs: Tensor, scores: Tensor
) -> Hypotheses:
    """The outputs that end at these nodes: all arguments are [B,N], best first, −inf where there is no output.

    With copies of the examples they are [B·copies,1] and the result is [B,copies,…], as the searches came out.
    """
    possible = log_probs > -torch.inf
    if not possible[:, :1].all():
        row = int((~possible[:, 0]).nonzero()[0]) // found.copies
        which = row if batch.ids is None else int(batch.ids[row])
        raise InputError(f"no output is possible for example {which}: the model gives every one the score −inf")
    ends = torch.where(possible, ends, -1)
    tokens = follow(found, ends, nodes, batch.symbols.pad)
    flat = Hypotheses(tokens, ends + 1, log_probs, scores)
    if found.copies == 1:
        return flat
    return Hypotheses(*(leaf.unflatten(0, (-1, found.copies)).squeeze(2) for leaf in flat))
