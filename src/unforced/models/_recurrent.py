"""LSTM layers as the encoder and the decoder use them: exact under padding, and fast for one step and for many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from unforced.masking import full_precision
from unforced.models._dropout import dropout
from unforced.models._sources import Memory, source_tokens
from unforced.types import Batch


def lstm_layer(inputs: int, hidden: int) -> nn.LSTM:
    """One LSTM layer: Xavier inputs, orthogonal recurrence, zero biases but for a forget gate that starts open."""
    layer = nn.LSTM(inputs, hidden, batch_first=True)
    into, recurrent, bias, other_bias = layer.all_weights[0]
    nn.init.xavier_uniform_(into)
    for gate in recurrent.data.chunk(4):
        nn.init.orthogonal_(gate)
    nn.init.zeros_(bias)
    nn.init.zeros_(other_bias)
    bias.data[hidden : 2 * hidden] = 1.0  # gates are input, forget, cell, output
    return layer


def run_layer(layer: nn.LSTM, x: Tensor, carry: tuple[Tensor, Tensor] | None = None) -> Any:
    """[R,T,E] and (h, c), each [1,R,H], through the fused kernel: its outputs and its last (h, c).

    Under autocast on a CPU this keeps the parameters' precision, since few CPUs have an LSTM kernel in a lower one.
    """
    if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return layer(x, carry)
    dtype = layer.all_weights[0][0].dtype
    with full_precision(x.device):
        return layer(x.to(dtype), None if carry is None else (carry[0].to(dtype), carry[1].to(dtype)))


class LSTMEncoder(nn.Module):
    """Token ids -> a memory of H states (2H with both directions); the summary is the last state of each direction.

    The backward direction reads each source reversed within its own length, so that padding stays behind the end in
    both: the outcome is that of packed sequences, while the fused kernels see one dense batch.

    >>> LSTMEncoder(10, embedding=4, hidden=3, layers=1, bidirectional=True, rate=0.1).width
    6
    """

    def __init__(
        self, size: int, embedding: int, hidden: int, layers: int, bidirectional: bool, rate: float
    ) -> None:
        super().__init__()
        self.rate = rate
        self.width = 2 * hidden if bidirectional else hidden
        self.embedding = nn.Embedding(size, embedding)
        widths = [embedding] + [self.width] * (layers - 1)
        self.forwards = nn.ModuleList(lstm_layer(width, hidden) for width in widths)
        self.backwards = nn.ModuleList(lstm_layer(width, hidden) for width in widths if bidirectional)

    def forward(self, batch: Batch) -> Memory:
        ids, mask = source_tokens(batch)
        b, s = ids.shape
        lengths = torch.full((b,), s, device=ids.device) if mask is None else mask.sum(dim=1).clamp(min=1)
        here = torch.arange(s, device=ids.device)
        mirror = torch.where(here < lengths.unsqueeze(1), lengths.unsqueeze(1) - 1 - here, here)  # [B,S]
        rows = torch.arange(b, device=ids.device)
        mirror = (mirror + s * rows.unsqueeze(1)).flatten()

        def mirrored(x: Tensor) -> Tensor:
            return x.flatten(0, 1).index_select(0, mirror).view(b, s, -1)

        states = self.embedding(ids)
        backwards = cast("Sequence[nn.LSTM]", self.backwards)
        for number, forwards in enumerate(cast("Sequence[nn.LSTM]", self.forwards)):
            states = dropout(states, self.rate, self.training)
            ahead, _ = run_layer(forwards, states)
            summary = ahead[rows, lengths - 1]
            if backwards:
                back, _ = run_layer(backwards[number], mirrored(states))
                summary = torch.cat([summary, back[rows, lengths - 1]], dim=-1)
                states = torch.cat([ahead, mirrored(back)], dim=-1)
            else:
                states = ahead
        return Memory(dropout(states, self.rate, self.training), mask, summary)


class Recurrence(nn.Module):
    """The decoder's LSTM layers over [R,T,E] inputs from a state (h, c) with rows first, each [R,layers,H].

    Many steps go through the fused kernel; a single one through the cell, which is up to three times faster there.

    >>> recurrence = Recurrence(4, 3, layers=2, rate=0.0)
    >>> zeros = torch.zeros(5, 2, 3)
    >>> outputs, (h, c) = recurrence(torch.randn(5, 7, 4), (zeros, zeros))
    >>> outputs.shape, h.shape
    (torch.Size([5, 7, 3]), torch.Size([5, 2, 3]))
    """

    def __init__(self, inputs: int, hidden: int, layers: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.layers = nn.ModuleList(lstm_layer(width, hidden) for width in [inputs] + [hidden] * (layers - 1))

    def forward(self, x: Tensor, carry: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        states, cells = [], []
        layers = cast("Sequence[nn.LSTM]", self.layers)
        for number, (layer, h, c) in enumerate(zip(layers, carry[0].unbind(1), carry[1].unbind(1))):
            if number:
                x = dropout(x, self.rate, self.training)
            if x.shape[1] == 1:
                h, c = torch.lstm_cell(x[:, 0], (h, c), *layer.all_weights[0])
                x = h.unsqueeze(1)
            else:
                x, (h, c) = run_layer(layer, x, (h.unsqueeze(0).contiguous(), c.unsqueeze(0).contiguous()))
                h, c = h[0], c[0]
            states.append(h)
            cells.append(c)
        return x, (torch.stack(states, dim=1), torch.stack(cells, dim=1))
