"""The nouns of the library: what flows between data, models, objectives, decoders and the loop.

Shapes use one alphabet everywhere: B batch, K beam, R rows (B·K, the K rows of an example adjacent), T time,
S source, V vocabulary, E embedding, H features.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

Tree = Any  # a tensor, or nested tuples, named tuples, lists and dicts of tensors, ints and None


class Symbols(NamedTuple):
    """The token ids with a meaning of their own.

    ``eos is None`` says that outputs have no end symbol: their length is known (``Batch.length``), as in tagging.
    ``banned`` are ids that decoding and sampling never emit (padding, the start symbol, a mask symbol).
    """

    pad: int
    bos: int
    eos: int | None
    banned: tuple[int, ...] = ()


class Sizes(NamedTuple):
    """What the data asks of a model: vocabulary sizes and the shape of its input.

    Sources are token ids (``source`` is their vocabulary size), images (``image`` is channels, height, width),
    class labels (``classes``), or absent (all three None).
    """

    target: int
    source: int | None = None
    image: tuple[int, int, int] | None = None
    classes: int | None = None


@dataclass(frozen=True)
class Batch:
    """One padded batch of examples.

    ``prefix`` is what a teacher-forced decoder is fed, ``gold`` what it must predict: ``prefix[:, t + 1]`` is
    ``gold[:, t]`` and ``prefix[:, 0]`` the start symbol. A position where ``mask`` is false is neither scored nor
    replaced by anything.

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
    length: Tensor | None = None  # [B] long, where the task fixes the output's length
    ids: Tensor | None = None  # [B] long, the examples' numbers in their split
    references: Tensor | None = None  # [B,R] long, the tokens of each example's references, in any order, padded

    @classmethod
    def of_gold(cls, gold: Tensor, mask: Tensor, symbols: Symbols, **rest: Any) -> "Batch":
        """A batch whose prefix is the gold shifted right behind the start symbol, padding where it ended."""
        start = torch.full_like(gold[:, :1], symbols.bos)
        shifted = torch.where(mask, gold, gold.new_tensor(symbols.pad))[:, :-1]
        return cls(torch.cat([start, shifted], dim=1), gold, mask, symbols, **rest)

    def __len__(self) -> int:
        return self.gold.shape[0]

    @property
    def tokens(self) -> int:
        """Number of target positions that count."""
        return int(self.mask.sum())

    def _map(self, change: Any) -> "Batch":
        tensors = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: change(v) for k, v in tensors.items() if isinstance(v, Tensor)})

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return self._map(lambda leaf: leaf.to(device, non_blocking=True))

    def select(self, rows: Tensor) -> "Batch":
        """The batch of the examples numbered by ``rows``, in that order (padding is kept)."""
        return self._map(lambda leaf: leaf.index_select(0, rows))


class DecoderState(NamedTuple):
    """A decoder's memory between steps; never updated in place.

    ``carry`` differs between hypotheses (recurrent state, key/value layers); ``shared`` is equal for all
    hypotheses of an example (encoder memory, masks, position). Tensors of one or more dimensions have rows first
    in both; zero-dimensional tensors, numbers and None belong to all rows.
    """

    carry: Tree
    shared: Tree


class Loss(NamedTuple):
    """A sum and what to divide it by: the loop normalises over micro-batches and processes, so both are exact."""

    total: Tensor
    count: Tensor  # type: ignore[assignment]  # shadows tuple.count on purpose
    metrics: dict[str, tuple[Tensor, Tensor]]  # name -> (sum, count), detached

    @property
    def mean(self) -> Tensor:
        return self.total / self.count.clamp(min=1)


class Progress(NamedTuple):
    """How far training has come: updates made, epochs made (fractional), and updates planned if known."""

    step: int = 0
    epoch: float = 0.0
    total: int | None = None


class Hypotheses(NamedTuple):
    """Decoded outputs, best first: N for each example, padded behind their end.

    ``log_probs`` is the sum of the tokens' scores (EOS included), ``scores`` what they were ranked by;
    ``lengths`` counts tokens, EOS included.
    """

    tokens: Tensor  # [B,N,T] long
    lengths: Tensor  # [B,N] long
    log_probs: Tensor  # [B,N]
    scores: Tensor  # [B,N]

    def ids(self, symbols: Symbols, best: int = 0) -> list[list[int]]:
        """The ``best``-th output of each example as plain lists, without EOS and padding."""
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
    """A raw example, as a file gives it; ``references`` are all acceptable outputs (``target`` if empty)."""

    source: Any
    target: Any
    references: tuple[Any, ...] = ()

    @property
    def answers(self) -> tuple[Any, ...]:
        return self.references or (self.target,)


class Examples(list[Example]):
    """The examples a file gave, with a count of the lines left out for each reason: read = kept + dropped."""

    def __init__(self, examples: Iterable[Example] = (), dropped: dict[str, int] | None = None) -> None:
        super().__init__(examples)
        self.dropped = dict(dropped or {})


class Encoded(NamedTuple):
    """An example in numbers: see ``unforced.protocols.Codec``."""

    source: Any  # None, a 1-d integer array (tokens), a 3-d float array (image, channels first) or an int (class)
    target: Sequence[int]  # token ids; EOS included where there is one
    references: Sequence[int] = ()  # the ids that occur in the example's references, if it has any beside the target
