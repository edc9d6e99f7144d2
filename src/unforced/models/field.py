"""Random field over strings from two LSTMs, one for what stands before a token and one for what stands behind it."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.models.lstm import lstm_layer, run_layer
from unforced.models.masked import LengthTable, MaskedTokens, Rows, check_nothing_to_read, refuse_source, rows_of
from unforced.models.transformer import linear
from unforced.ops.kernels import dropout
from unforced.options import Count, Fraction, Options
from unforced.types import Batch, Sizes

Side = Literal["left", "right"]


@dataclass(frozen=True)
class Field(Options):
    """score(y_t = w) = P_w · tanh(L f(y_<t) + R b(y_>t) + c) + bias_w: Goyal (2021), section 6.2.3.

    f is the last state of an LSTM over the tokens before t, and b of one over those behind t, read from the end. So a token
    never has a part in its own score, hidden or not, and one pass scores every position given all others.
    ``lengths`` adds a table of how likely each length is, which objectives of masked models learn along; ``normalizer`` one
    of log Z by length, which only ``noise_contrastive`` learns.

    >>> model = Field(hidden=8, embedding=6).build(Sizes(target=10))
    >>> model.score(torch.zeros(1, 8)).shape
    torch.Size([1, 10])
    """

    hidden: Count = 64
    embedding: Count = 64
    dropout: Fraction = 0.0
    lengths: Count | None = None  # learn how long sequences are, up to so many tokens
    normalizer: Count | None = None  # longest sequence that has a learnt log Z

    def build(self, sizes: Sizes) -> "FieldModel":
        check_nothing_to_read("field", sizes)
        return FieldModel(self, sizes)


class Context(NamedTuple):
    """What an LSTM knows of N strings."""

    h: Tensor  # [N,H]
    c: Tensor  # [N,H]
    gates: Tensor | None = None  # [N,4H]: what h adds to the gates of the next token, where that has been computed


class FieldModel(MaskedTokens):
    """The network of a ``Field`` specification."""

    def __init__(self, spec: Field, sizes: Sizes) -> None:
        super().__init__(sizes.target, spec.embedding, features=spec.hidden, normalizer=spec.normalizer)
        self.spec = spec
        self.left, self.right = (lstm_layer(spec.embedding, spec.hidden) for _ in range(2))
        self.join_left, self.join_right = (linear(spec.hidden, spec.hidden) for _ in range(2))
        self.join_bias = nn.Parameter(torch.zeros(spec.hidden))
        self.length_scores = None if spec.lengths is None else LengthTable(spec.lengths)

    def features(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        refuse_source(batch, "field")
        rows = rows_of(batch, tokens, masked)
        x = dropout(self.inputs(rows), self.spec.dropout, self.training)
        mirror = _mirror(rows)
        before = self.join_left(_context(self.left, x))
        behind = _picked(self.join_right(_context(self.right, _picked(x, mirror))), mirror)
        return dropout(torch.tanh(before + behind + self.join_bias), self.spec.dropout, self.training)

    def conditional_scores(self, batch: Batch, tokens: Tensor) -> Tensor:
        """[R,T] ids -> [R,T,V]: the scores of each position when it alone is hidden, in one pass."""
        return self.scores(batch, tokens, torch.zeros_like(tokens, dtype=torch.bool))

    # ---- the same in parts, for contexts that many strings share: ``unforced.energy.partition`` ----
    # tanh(x) is written as 2 σ(2x) − 1: on a CPU it takes three times as long as σ

    def steady(self) -> bool:
        """Whether parts give what ``scores`` gives, which has dropout while training."""
        return not self.training or not self.spec.dropout

    def empty(self) -> Context:
        """The context of the empty string, on either side."""
        zeros = self.join_bias.new_zeros(1, self.spec.hidden)
        return Context(zeros, zeros)

    def kept(self, side: Side, contexts: Context) -> Context:
        """Contexts that are going to be extended more than once."""
        return contexts._replace(gates=F.linear(contexts.h, self._gates(side)[1]))

    def extend(self, side: Side, contexts: Context, ids: Tensor) -> Context:
        """N strings, each longer by each of n tokens: N·n contexts, in alphabetical order of the strings.

        On the left, tokens are put behind the strings; on the right, in front of them.
        """
        into, recurrent, bias = self._gates(side)
        states = F.linear(contexts.h, recurrent) if contexts.gates is None else contexts.gates
        tokens = F.linear(self.embed(ids), into, bias)  # [n,4H]
        if side == "left":
            gates, cells = states.unsqueeze(1) + tokens, contexts.c.unsqueeze(1)  # [N,n,4H]
        else:
            gates, cells = states + tokens.unsqueeze(1), contexts.c.unsqueeze(0)  # [n,N,4H]
        enter, forget, new, leave = gates.sigmoid_().chunk(4, dim=-1)
        c = (forget * cells).addcmul_(enter, new, value=2).sub_(enter)
        h = ((2 * c).sigmoid_() * leave).mul_(2).sub_(leave)
        return Context(h.flatten(0, 1), c.flatten(0, 1))

    def _gates(self, side: Side) -> tuple[Tensor, Tensor, Tensor]:
        """Weights of inputs [4H,E] and states [4H,H], and biases [4H], with those of the new cell's tanh twice as large."""
        into, recurrent, bias, other = (self.left if side == "left" else self.right).all_weights[0]
        twice = torch.ones_like(bias)
        twice[2 * self.spec.hidden : 3 * self.spec.hidden] = 2.0
        return into * twice.unsqueeze(1), recurrent * twice.unsqueeze(1), (bias + other) * twice

    def joined(self, side: Side, contexts: Context) -> Tensor:
        """[N,H]: what contexts add to the σ's input; the bias comes with the left ones."""
        if side == "left":
            return F.linear(contexts.h, 2 * self.join_left.weight, 2 * self.join_bias)
        return F.linear(contexts.h, 2 * self.join_right.weight)

    def activated(self, x: Tensor) -> Tensor:
        """σ(x), written over x."""
        return x.sigmoid_()

    def output(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Weights [n,H] and bias [n] of n tokens: score(w) = weights_w · σ(left + right) + bias_w."""
        weights = self._output[ids]
        return 2 * weights, self.bias[ids] - weights.sum(dim=1)


def _mirror(rows: Rows) -> Tensor:
    """[R,T] places that read each row from its end, with padding left where it is."""
    here = torch.arange(rows.ids.shape[1], device=rows.ids.device)
    lengths = rows.there.sum(dim=1, keepdim=True)
    return torch.where(here < lengths, lengths - 1 - here, here)


def _picked(x: Tensor, places: Tensor) -> Tensor:
    """The vectors of x [R,T,E] at places [R,P]: [R,P,E]."""
    return x.gather(1, places.unsqueeze(-1).expand(-1, -1, x.shape[-1]))


def _context(layer: nn.LSTM, x: Tensor) -> Tensor:
    """[R,T,E] -> [R,T,H]: the state before each input, zero before the first."""
    states, _ = run_layer(layer, x[:, :-1]) if x.shape[1] > 1 else (None, None)
    first = x.new_zeros(len(x), 1, layer.hidden_size)
    return first if states is None else torch.cat([first.to(states.dtype), states], dim=1)
