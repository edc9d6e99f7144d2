"""The data types that tasks, models, objectives, decoders and the training loop exchange.

Letters of shapes: B batch, K beam, R rows (B·K; the K rows of an example are adjacent), T time, S source, V vocabulary,
E embedding, H features.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

Tree = Any  # a tensor, or nested tuples, named tuples, lists and dicts of tensors, ints and None


class Symbols(NamedTuple):
    """The ids of special tokens."""

    pad: int
    bos: int
    eos: int | None  # None: outputs have no end symbol and a known length (`Batch.length`), as in tagging
    banned: tuple[int, ...] = ()  # ids that are never emitted: padding, the start symbol, a mask symbol


class Sizes(NamedTuple):
    """The sizes of the data that a model is built for; without a source, all but ``target`` are None."""

    target: int  # vocabulary of the target
    source: int | None = None  # vocabulary of the source, if sources are token ids
    image: tuple[int, int, int] | None = None  # channels, height, width, if sources are images
    classes: int | None = None  # number of classes, if sources are class labels


@dataclass(frozen=True)
class Batch:
    """One padded batch of examples.

    ``prefix`` is the input of a teacher-forced decoder and ``gold`` its target: ``prefix[:, t + 1]`` is ``gold[:, t]``
    and ``prefix[:, 0]`` the start symbol. Positions where ``mask`` is false are neither scored nor replaced.

    >>> import torch
    >>> from unforced.types import Batch, Symbols
    >>> gold = torch.tensor([[5, 6, 2], [7, 2, 0]])
    >>> batch = Batch.of_gold(gold, gold != 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1)))
    >>> batch.prefix
    tensor([[1, 5, 6],
            [1, 7, 2]])
    >>> batch.select(torch.tensor([1])).gold
    tensor([[7, 2, 0]])
    """

    prefix: Tensor  # [B,T] long
    gold: Tensor  # [B,T] long
    mask: Tensor  # [B,T] bool
    symbols: Symbols
    source: Tensor | None = None  # [B,S] long, [B,C,H,W] float, or [B] long (class labels)
    source_mask: Tensor | None = None  # [B,S] bool, for sources of token ids
    length: Tensor | None = None  # [B] long, if the task fixes the length of the output
    ids: Tensor | None = None  # [B] long, number of each example in its split
    references: Tensor | None = None  # [B,R] long, all tokens of each example's references, padded

    @classmethod
    def of_gold(cls, gold: Tensor, mask: Tensor, symbols: Symbols, **rest: Any) -> "Batch":
        """Return a batch whose prefix is the target shifted right after the start symbol."""
        start = torch.full_like(gold[:, :1], symbols.bos)
        shifted = torch.where(mask, gold, gold.new_tensor(symbols.pad))[:, :-1]
        return cls(torch.cat([start, shifted], dim=1), gold, mask, symbols, **rest)

    def __len__(self) -> int:
        return self.gold.shape[0]

    @property
    def tokens(self) -> int:
        """The number of target positions where ``mask`` is true."""
        return int(self.mask.sum())

    def _map(self, change: Any) -> "Batch":
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: change(v) for k, v in tensors.items() if isinstance(v, Tensor)})

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch on another device."""
        return self._map(lambda leaf: leaf.to(device, non_blocking=True))

    def select(self, rows: Tensor) -> "Batch":
        """Return the batch of the examples ``rows``, in that order; padding is kept."""
        return self._map(lambda leaf: leaf.index_select(0, rows))


class DecoderState(NamedTuple):
    """The state of a decoder between steps; never changed in place.

    Tensors of one or more dimensions have rows first. Zero-dimensional tensors, numbers and None belong to all rows.
    """

    carry: Tree  # differs between hypotheses: recurrent state, keys and values
    shared: Tree  # equal for all hypotheses of an example: encoder memory, masks, position


class Loss(NamedTuple):
    """A summed loss and the count to divide it by, so that micro-batches and processes add up exactly."""

    total: Tensor
    count: Tensor  # type: ignore[assignment]  # shadows tuple.count on purpose
    metrics: dict[str, tuple[Tensor, Tensor]]  # name -> (sum, count), without gradient

    @property
    def mean(self) -> Tensor:
        return self.total / self.count.clamp(min=1)


class Progress(NamedTuple):
    """The progress of training.

    Schedules of the objective need what their unit says: epochs, or a fraction of the total.
    """

    step: int = 0  # updates made
    epoch: float | None = None  # epochs made, fractional, if known
    total: int | None = None  # updates planned, if known


class Hypotheses(NamedTuple):
    """Decoded outputs: N per example, best first, padded after their end."""

    tokens: Tensor  # [B,N,T] long
    lengths: Tensor  # [B,N] long, number of tokens, EOS included
    log_probs: Tensor  # [B,N] sum of the tokens' log-probabilities (or global scores), EOS included
    scores: Tensor  # [B,N] what the outputs are ranked by

    def ids(self, symbols: Symbols, best: int = 0) -> list[list[int]]:
        """Return output number ``best`` of each example as a list of ids without EOS and padding."""
        out = []
        for row, n in zip(self.tokens[:, best].tolist(), self.lengths[:, best].tolist()):
            row = row[:n]
            out.append(row[:-1] if row and row[-1] == symbols.eos else row)
        return out


class ChainState(NamedTuple):
    """R Markov chains within a sweep; never updated in place."""

    tokens: Tensor  # [R,T] long
    terms: Tensor  # [R,T] what each position adds to −E
    features: Tensor  # [R,T,H] features that score each position while it alone is masked; H is 0 if not computed
    energy: Tensor  # [R] float64, E of the tokens
    sweep: Tensor  # [] long, number of complete sweeps
    place: Tensor  # [R] long, number of positions visited in this sweep
    order: Tensor  # [R,T] long, the order of the positions in this sweep
    keys: Tensor  # [R] long, keys of this sweep's random streams


class ChainInfo(NamedTuple):
    """Diagnostics of one step of R Markov chains."""

    active: Tensor  # [R] bool: whether the chain took part in the step
    accepted: Tensor  # [R] bool
    novel: Tensor  # [R] bool: accepted, and the tokens changed
    energy: Tensor  # [R] float64, after the step
    log_ratio: Tensor  # [R] float64, accepted with probability min(1, exp)
    positions: Tensor  # [R,T] bool: the masked positions


class Kernel(NamedTuple):
    """A Markov chain for one model and one batch."""

    init: Callable[[Tensor], ChainState]  # tokens [R,T] -> the first state
    step: Callable[[torch.Generator, ChainState], tuple[ChainState, ChainInfo]]


class Example(NamedTuple):
    """A raw example, as read from a file."""

    source: Any
    target: Any
    references: tuple[Any, ...] = ()  # all acceptable outputs; ``target`` if empty

    @property
    def answers(self) -> tuple[Any, ...]:
        """All acceptable outputs."""
        return self.references or (self.target,)


class Examples(list[Example]):
    """The examples of a file, and the number of lines left out for each reason."""

    def __init__(self, examples: Iterable[Example] = (), dropped: dict[str, int] | None = None) -> None:
        super().__init__(examples)
        self.dropped = dict(dropped or {})


class Encoded(NamedTuple):
    """An example as numbers; see `unforced.protocols.Codec`."""

    source: Any  # None, a 1-d integer array (tokens), a 3-d float array (image, channels first) or an int (class)
    target: Sequence[int]  # token ids; EOS included where there is one
    references: Sequence[int] = ()  # ids that occur in the references, if there are any
