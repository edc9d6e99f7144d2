"""Random field over strings: one LSTM reads the tokens before a position, another those after it."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from unforced.models.lstm import lstm_layer, run_layer
from unforced.models.masked import LengthTable, MaskedTokens, check_no_source, masked_rows, refuse_source
from unforced.models.transformer import linear
from unforced.ops.kernels import dropout
from unforced.ops.masks import gather_positions, mirror_positions
from unforced.options import Count, Fraction, Options
from unforced.protocols import Side
from unforced.types import Batch, Sizes


@dataclass(frozen=True)
class Field(Options):
    """score(y_t = w) = P_w · tanh(L f(y_<t) + R b(y_>t) + c) + bias_w: Goyal (2021), section 6.2.3.

    f is the last state of an LSTM over the tokens before t, and b that of an LSTM over the tokens after t, read from
    the end. A token never contributes to its own score, so one pass scores every position given all others.
    """

    hidden: Count = 64  # width of each LSTM
    embedding: Count = 64  # width of token embeddings
    dropout: Fraction = 0.0  # share of units dropped in training
    lengths: Count | None = None  # learn a distribution over output lengths up to this many tokens
    normalizer: Count | None = None  # learn log Z by length up to this many tokens (noise_contrastive only)

    def build(self, sizes: Sizes) -> "FieldModel":
        check_no_source("field", sizes)
        return FieldModel(self, sizes)


class Context(NamedTuple):
    """The state of an LSTM after N strings."""

    h: Tensor  # [N,H]
    c: Tensor  # [N,H]
    gates: Tensor | None = None  # [N,4H]: what h adds to the gates of the next token, if computed


class FieldModel(MaskedTokens):
    """The network of `Field`."""

    def __init__(self, spec: Field, sizes: Sizes) -> None:
        super().__init__(sizes.target, spec.embedding, features=spec.hidden, normalizer=spec.normalizer)
        self.spec = spec
        self.left, self.right = (lstm_layer(spec.embedding, spec.hidden) for _ in range(2))
        self.join_left, self.join_right = (linear(spec.hidden, spec.hidden) for _ in range(2))
        self.join_bias = nn.Parameter(torch.zeros(spec.hidden))
        self.length_table = None if spec.lengths is None else LengthTable(spec.lengths)

    def features(self, batch: Batch, tokens: Tensor, masked: Tensor) -> Tensor:
        refuse_source(batch, "field")
        rows = masked_rows(batch, tokens, masked)
        x = dropout(self.inputs(rows), self.spec.dropout, self.training)
        mirror = mirror_positions(rows.valid.sum(dim=1), rows.ids.shape[1])
        before = self.join_left(_context(self.left, x))
        after = gather_positions(self.join_right(_context(self.right, gather_positions(x, mirror))), mirror)
        return dropout(torch.tanh(before + after + self.join_bias), self.spec.dropout, self.training)

    def conditional_scores(self, batch: Batch, tokens: Tensor) -> Tensor:
        return self.scores(batch, tokens, torch.zeros_like(tokens, dtype=torch.bool))

    # ---- SupportsContexts: scores from contexts that many strings share ----
    # tanh(x) is computed as 2 σ(2x) − 1: on a CPU tanh takes three times as long as σ

    def contexts_are_exact(self) -> bool:
        """Return whether contexts give the result of ``scores``, which applies dropout in training."""
        return not self.training or not self.spec.dropout

    def empty_context(self) -> Context:
        """Return the context of the empty string, on either side."""
        zeros = self.join_bias.new_zeros(1, self.spec.hidden)
        return Context(zeros, zeros)

    def prepare_contexts(self, side: Side, contexts: Context) -> Context:
        """Compute what contexts add to the gates of any next token."""
        return contexts._replace(gates=F.linear(contexts.h, self._gates(side)[1]))

    def extend_contexts(self, side: Side, contexts: Context, ids: Tensor) -> Context:
        """Extend each of N strings by each of n tokens: append on the left side, prepend on the right side."""
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
        """Return weights [4H,E] and [4H,H] and biases [4H], with those of the new cell's tanh doubled."""
        into, recurrent, bias, other = (self.left if side == "left" else self.right).all_weights[0]
        twice = torch.ones_like(bias)
        twice[2 * self.spec.hidden : 3 * self.spec.hidden] = 2.0
        return into * twice.unsqueeze(1), recurrent * twice.unsqueeze(1), (bias + other) * twice

    def project_contexts(self, side: Side, contexts: Context) -> Tensor:
        """Return what contexts add to the input of σ: [N,H]; the bias comes with the left ones."""
        if side == "left":
            return F.linear(contexts.h, 2 * self.join_left.weight, 2 * self.join_bias)
        return F.linear(contexts.h, 2 * self.join_right.weight)

    def activate(self, x: Tensor) -> Tensor:
        """Return σ(x), computed in place."""
        return x.sigmoid_()

    def output_weights(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return weights [n,H] and bias [n] of n tokens: score(w) = weights_w · σ(left + right) + bias_w."""
        weights = self._output[ids]
        return 2 * weights, self.bias[ids] - weights.sum(dim=1)


def _context(layer: nn.LSTM, x: Tensor) -> Tensor:
    """Return the state before each input [R,T,E]: [R,T,H], zero before the first."""
    states, _ = run_layer(layer, x[:, :-1]) if x.shape[1] > 1 else (None, None)
    first = x.new_zeros(len(x), 1, layer.hidden_size)
    return first if states is None else torch.cat([first.to(states.dtype), states], dim=1)
