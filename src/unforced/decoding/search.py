"""The search loop that all decoders share, and the limits of outputs: lengths and banned tokens.

Every decoder has two fields for lengths, which equal ``min_new_tokens`` and ``max_new_tokens`` of Hugging Face's
``generate``. ``min_length`` is the smallest number of tokens before the end symbol. ``max_length`` is the largest
number of tokens, end symbol included: a search makes at most that many steps, and an output that has not ended by
then is returned without an end symbol. The probabilities of all outputs therefore sum to one.
"""

from contextlib import nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from unforced.errors import InputError
from unforced.models.modes import no_dropout
from unforced.ops import state_rows
from unforced.ops.masks import widened
from unforced.protocols import StepDecoder, require
from unforced.types import Batch, DecoderState, Hypotheses, Symbols, Tree

UNKNOWN_LENGTH = 256  # default limit if neither the task nor a source of tokens suggests one

ScoreType = Literal["local", "global"]  # sum log-probabilities, or the model's unnormalised scores


def check_lengths(min_length: int, max_length: int | None) -> None:
    """Raise `InputError` if ``max_length`` is below ``min_length``."""
    if max_length is not None and max_length < min_length:
        raise InputError(f"max_length must be at least min_length, {min_length}, got {max_length}")


def limits(batch: Batch, min_length: int = 0, max_length: int | None = None) -> Tensor:
    """Return the number of steps [B] that each example may take; it does not depend on the rest of the batch.

    Outputs without an end symbol take exactly ``batch.length`` steps. Otherwise the limit is ``max_length``, and if
    that is None: ``batch.length`` if the task sets it, 2 S + 10 for a source of S tokens, else 256; at least
    ``min_length`` + 1.

    >>> gold = torch.tensor([[3, 2], [4, 2]])
    >>> source = torch.tensor([[5, 6, 7], [8, 0, 0]])
    >>> symbols = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
    >>> limits(Batch.of_gold(gold, gold > 0, symbols, source=source, source_mask=source > 0))
    tensor([16, 12])
    """
    if batch.symbols.eos is None:
        if batch.length is None:
            raise InputError("outputs without an end symbol need the length of each output: set Batch.length")
        if min_length or max_length is not None:
            raise InputError("the task fixes the length of each output: leave min_length and max_length unset")
        return batch.length
    zeros = torch.zeros(len(batch), dtype=torch.long, device=batch.gold.device)
    if max_length is not None:
        return zeros + max_length
    if batch.length is not None:
        default = batch.length
    elif batch.source is None or batch.source.dim() != 2 or batch.source.is_floating_point():
        default = zeros + UNKNOWN_LENGTH
    else:
        mask = torch.ones_like(batch.source) if batch.source_mask is None else batch.source_mask
        default = 2 * mask.sum(dim=1) + 10
    return default.clamp(min=min_length + 1)


class Constraints(NamedTuple):
    """The tokens that may be emitted at each step: banned ones never, EOS not before ``min_length`` tokens."""

    eos: int | None
    pad: int
    min_length: int
    banned: Tensor  # [·] long
    banned_early: Tensor  # [·] long, including EOS
    kind: ScoreType = "local"

    @classmethod
    def of(cls, batch: Batch, min_length: int = 0, kind: ScoreType = "local") -> "Constraints":
        symbols: Symbols = batch.symbols
        banned = sorted(set(symbols.banned) - {symbols.eos})
        early = banned if symbols.eos is None else [*banned, symbols.eos]
        never, not_yet = (torch.tensor(ids, dtype=torch.long, device=batch.gold.device) for ids in (banned, early))
        return cls(symbols.eos, symbols.pad, min_length, never, not_yet, kind)

    def token_scores(self, t: int, scores: Tensor) -> Tensor:
        """Turn the model's scores [...,V] at step t into what each token adds to a hypothesis: a new tensor [...,V].

        This is their log-softmax ("local") or the scores themselves ("global"), with −inf for tokens that may not be
        emitted. Banned tokens keep their share of the probability: a ban does not renormalise the others.
        """
        scores = widened(scores)
        banned = self.banned_at(t)
        if self.kind == "global":
            check_finite(scores, t)
            return scores.index_fill(-1, banned, -torch.inf)
        log_probs = scores.log_softmax(dim=-1)
        if log_probs[..., 0].isnan().any():  # then the whole row is NaN: all scores are −inf, or the model is broken
            check_finite(scores, t)
            log_probs.masked_fill_(log_probs.isnan(), -torch.inf)
        return log_probs.index_fill_(-1, banned, -torch.inf)

    def banned_at(self, t: int) -> Tensor:
        """Return the ids that may not be emitted at step t."""
        return self.banned if t >= self.min_length else self.banned_early

    def is_end(self, tokens: Tensor) -> Tensor:
        """Return a mask of the tokens that are the end symbol."""
        return torch.zeros_like(tokens, dtype=torch.bool) if self.eos is None else tokens == self.eos


def check_finite(scores: Tensor, t: int) -> None:
    """Raise `InputError` if a score is NaN or +inf; −inf excludes a token."""
    if not bool((scores < torch.inf).all()):
        raise InputError(f"the model gave NaN or infinite scores at step {t}")


# The search loop: it runs the model, and a selector chooses

ENDING = 4  # number of final segments that are not recomputed


class Move(Protocol):
    """How the K hypotheses of each example continue: a named tuple of tensors with examples first."""

    def follow(self, state: DecoderState) -> DecoderState:
        """Turn the state after a step, with k' rows per example, into the state of the next step, with K rows."""
        ...

    def inputs(self, model: StepDecoder) -> Tensor:
        """Return the inputs of the next step: [B·K,1,E]."""
        ...


class HardMove(NamedTuple):
    """Hypothesis i of example b continues hypothesis ``parents[b,i]`` with the token ``tokens[b,i]``.

    If ``parents`` is None, each hypothesis continues itself. ``width`` is k', the number of hypotheses before the move.
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
            return state  # the order did not change
        return state_rows.reorder(state, chosen)

    def inputs(self, model: StepDecoder) -> Tensor:
        return model.embed(self.tokens.reshape(-1, 1))


class Nodes(NamedTuple):
    """The C nodes that a step adds to the tree of hypotheses; without ``parents`` node c follows node c."""

    tokens: Tensor  # [B,C] long
    parents: Tensor | None  # [B,C] long, nodes of the previous step


class Selection(NamedTuple):
    """The choice of a selector at one step; every tensor has examples first."""

    memory: Tree  # what the selector accumulates: scores, costs, finished hypotheses
    move: Move
    record: Nodes | None  # None if outputs will not be read back
    running: Tensor  # [B] bool: whether the example continues


class Selector(Protocol):
    """The part of a search that chooses among continuations.

    Selectors have no state. What they accumulate is their ``memory``, a tree of tensors with examples first: the loop
    can drop examples from it, and gradients flow through it.
    """

    @property
    def width(self) -> int:
        """K, the number of hypotheses per example."""
        ...

    def begin(self, limits: Tensor) -> Tree:
        """Return the memory before the first step; ``limits`` [B] is the number of steps each example may take."""
        ...

    def select(self, t: int, scores: Tensor, memory: Any, last: Tensor | None) -> Selection:
        """Choose among the continuations of step ``t`` = 0, 1, …

        ``scores`` [B,k,V] are the model's scores; k is 1 at the first step, which has only the empty hypothesis, and K
        afterwards. ``last`` [B] marks the examples for which this is the last step (None: no example); the loop ends
        them even if the selection is ``running``.
        """
        ...


class SearchResult(NamedTuple):
    """The result of a search: the selector's memory for all examples in their order, and the trace."""

    memory: Any
    trace: list[tuple[Tensor, Nodes]]  # for each step the running examples [b] and their nodes
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
    segment: int | None = None,
) -> SearchResult:
    """Run a selector over the model's scores until every example has finished or reached its limit [B].

    Args:
        copies: Number of independent searches per example (for samples); the memory then has B·copies rows.
        state: The result of ``model.start(batch)`` if that has been called already.
        segment: Use gradient checkpointing: run this many steps at a time, keep only what is between these segments,
            and recompute the steps in the backward pass, except for the last `ENDING` segments. Examples then finish
            at their limit only, and there is no trace.

    The first input of an example is ``batch.prefix[:, 0]``. Gradients flow if they are enabled and the selector is
    differentiable.
    """
    require(model, "a search", "start", "embed", "advance", "score")
    limits = limits.repeat_interleave(copies)
    examples = limits.numel()
    alive = torch.arange(examples, device=limits.device)
    memory, finished = selector.begin(limits), []
    trace: list[tuple[Tensor, Nodes]] = []
    move: Any = HardMove(batch.prefix[:, :1].repeat_interleave(copies, dim=0), None, 1)
    if not examples:
        state = DecoderState(None, None)
    state = state_rows.repeat(model.start(batch) if state is None else state, copies)
    running, t, width, nearest = limits > 0, 0, 1, 0
    dropout = not isinstance(model, nn.Module) or model.training  # recomputed steps run in the same mode
    kept = 0 if segment is None or not examples else int(limits.max()) - ENDING * segment  # first step to keep
    while True:
        if not examples or not running.all():  # examples leave the batch
            leave, stay = (~running).nonzero().squeeze(1), running.nonzero().squeeze(1)
            finished.append((alive[leave], state_rows.take(memory, leave)))
            memory, move, limits, alive = state_rows.take((memory, move, limits, alive), stay)
            if not alive.numel():
                break
            state = state_rows.keep(state, _rows_of(stay, width))
        if t >= nearest:
            nearest = int(limits.min())  # no example reaches its limit before this step
        if t and selector.width != width:  # after the first step one hypothesis becomes K
            shared = state_rows.repeat(DecoderState(None, state.shared), selector.width).shared
            state, width = state._replace(shared=shared), selector.width
        count = 1 if segment is None or t == 0 else min(segment, nearest - t)
        last = limits == t + count if t + count >= nearest else None
        if segment is None:
            state, (memory, move, record, running) = step(model, selector, t, width, state, move, memory, last)
            if record is not None:
                trace.append((alive, record))
        else:
            recomputed = partial(checkpoint, _steps, use_reentrant=False)
            state, memory, move = (_steps if t >= kept else recomputed)(
                model, selector, range(t, t + count), width, state, move, memory, dropout
            )
            running = torch.ones_like(alive, dtype=torch.bool)
        running = running if last is None else running & ~last
        t += count
    order = torch.cat([numbers for numbers, _ in finished]).argsort()
    return SearchResult(
        state_rows.take(state_rows.concatenate([m for _, m in finished]), order), trace, examples, copies
    )


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
    """Make one step, without side effects: move, advance the ``width`` rows per example, score, select."""
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
    dropout: bool,
) -> tuple[DecoderState, Any, Move]:
    """Make a segment of steps. Modes are set here because recomputation happens outside of the caller's contexts."""
    with nullcontext() if dropout else no_dropout(model):
        for t in times:
            state, (memory, move, _, _) = step(model, selector, t, width, state, move, memory, None)
    return state, memory, move


def _rows_of(examples: Tensor, width: int) -> Tensor:
    """Return the rows [b·width] of examples [b]."""
    return (examples.unsqueeze(1) * width + torch.arange(width, device=examples.device)).flatten()


def follow(found: SearchResult, ends: Tensor, nodes: Tensor, pad: int) -> Tensor:
    """Read back the tokens that lead to node ``nodes`` [B,N] of step ``ends`` [B,N] (−1: the empty output).

    The result is [B,N,T], padded after the end, with T the longest output.
    """
    size = int(ends.max()) + 1 if ends.numel() else 0
    if not size:
        return nodes.new_full((*nodes.shape, 0), pad)

    def all_examples(numbers: Tensor, leaf: Tensor) -> Tensor:  # zeros for those that have finished
        if numbers.numel() == found.examples:
            return leaf
        return leaf.new_zeros(found.examples, leaf.shape[1]).index_copy_(0, numbers, leaf)

    tokens, path = [], []
    for t in reversed(range(size)):
        numbers, record = found.trace[t]
        tokens.append(all_examples(numbers, record.tokens))
        path.append(nodes)
        if record.parents is not None:
            nodes = torch.where(ends < t, nodes, all_examples(numbers, record.parents).gather(1, nodes))
    outputs = torch.stack(tokens[::-1], dim=2).gather(1, torch.stack(path[::-1], dim=2))  # [B,C,T] -> [B,N,T]
    steps = torch.arange(size, device=ends.device)
    return outputs.masked_fill(steps > ends.unsqueeze(2), pad)


def hypotheses(
    found: SearchResult, batch: Batch, ends: Tensor, nodes: Tensor, log_probs: Tensor, scores: Tensor
) -> Hypotheses:
    """Return the outputs that end at these nodes: [B,N] each, best first, −inf where there is no output.

    With copies the arguments are [B·copies,1] and the result is [B,copies,…] in the order of the searches.
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
