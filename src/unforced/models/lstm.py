"""Bahdanau's additive attention (2015), without ever holding its [R,T,S,A] tensor for the backward pass."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from unforced.errors import InputError
from unforced.models.layers import Convolution, ConvolutionalEncoder, Memory, TargetTokens, class_vectors, source_tokens
from unforced.ops.kernels import dropout
from unforced.ops.masks import FLOOR, full_precision, widened
from unforced.options import Count, Fraction, Options
from unforced.types import Batch, DecoderState, Sizes

LIMIT = 20.0  # |Wq|, |Uk| beyond this saturate: e^(2·2·20) is still a float32
_CHUNK = 1 << 19  # entries of [rows,T,S,A] worked on at a time, so that they stay in the cache


class Keys(NamedTuple):
    """A memory made ready for attention; rows first, so that it can be part of a decoder's shared state."""

    powers: Tensor  # [R,S,A], e^(2 U k)
    values: Tensor  # [R,S,M]
    mask: Tensor | None  # [R,S] bool


class AdditiveAttention(nn.Module):
    """Context of each query: Σ_s a_ts · m_s with a_ts = softmax_s(vᵀ tanh(W q_t + U m_s)).

    ``start`` projects the memory once; calling the module with queries [R,T,Q] then gives contexts [R,T,M]. A row
    whose memory is entirely masked has the zero context.

    >>> attention = AdditiveAttention(query=4, memory=6, size=5)
    >>> keys = attention.start(Memory(torch.randn(2, 3, 6), None, torch.zeros(2, 6)))
    >>> attention(torch.randn(2, 7, 4), keys).shape
    torch.Size([2, 7, 6])
    """

    def __init__(self, query: int, memory: int, size: int) -> None:
        super().__init__()
        self.query = nn.Linear(query, size)
        self.key = nn.Linear(memory, size, bias=False)
        self.energy = nn.Parameter(torch.empty(size).uniform_(-1, 1) / math.sqrt(size))
        for layer in (self.query, self.key):
            nn.init.xavier_uniform_(layer.weight)
        nn.init.zeros_(self.query.bias)

    def start(self, memory: Memory) -> Keys:
        return Keys(_powers(self.key(memory.states)), memory.states, memory.mask)

    def forward(self, queries: Tensor, keys: Keys) -> Tensor:
        scores = additive_scores(_powers(self.query(queries)), keys.powers, self.energy)  # [R,T,S]
        if keys.mask is None:
            return scores.softmax(dim=-1) @ keys.values
        hidden = ~keys.mask.unsqueeze(1)
        weights = scores.masked_fill(hidden, FLOOR).softmax(dim=-1).masked_fill(hidden, 0.0)
        return weights @ keys.values


def _powers(x: Tensor) -> Tensor:
    wide = widened(x)
    return (wide.clamp(-LIMIT, LIMIT) * 2).exp()


def additive_scores(queries: Tensor, keys: Tensor, energy: Tensor) -> Tensor:
    """vᵀ tanh(q_t + k_s) for all t and s, given e^(2q) [R,T,A], e^(2k) [R,S,A] and v [A]; scores are [R,T,S].

    tanh(q + k) = 1 − 2 / (1 + e^(2q) e^(2k)), so a pair costs a product and a reciprocal, and the exponentials are
    taken T + S times, not T · S times.

    >>> q, k, v = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(4)
    >>> plain = torch.tanh(q[:, :, None] + k[:, None]) @ v
    >>> torch.allclose(additive_scores((2 * q).exp(), (2 * k).exp(), v), plain, atol=1e-5)
    True
    """
    with full_precision(queries.device):
        return _AdditiveScores.apply(queries, keys, energy.to(queries.dtype))


class _AdditiveScores(torch.autograd.Function):
    """Σ_a v_a (1 − 2 r) with r = 1 / (1 + Q K); the backward pass makes r again rather than keeping it."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, keys: Tensor, energy: Tensor) -> Tensor:
        ctx.save_for_backward(queries, keys, energy)
        n = _rows_at_a_time(queries, keys)
        parts = [_shares(q, k) @ energy for q, k in zip(queries.split(n), keys.split(n))]
        return energy.sum() - 2 * (parts[0] if len(parts) == 1 else torch.cat(parts))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        queries, keys, energy = ctx.saved_tensors
        with full_precision(grad.device):
            return _gradients(queries, keys, energy, grad.contiguous())


def _gradients(queries: Tensor, keys: Tensor, energy: Tensor, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    to_queries, to_keys, to_energy = [], [], torch.zeros_like(energy)
    rows = _rows_at_a_time(queries, keys)
    for q, k, g in zip(queries.split(rows), keys.split(rows), grad.split(rows)):
        r = _shares(q, k)  # [n,T,S,A]
        to_energy += g.reshape(-1) @ r.flatten(0, 2)
        slope = torch.addcmul(r, r, r, value=-1)  # r − r² = Q·∂(−r)/∂Q = K·∂(−r)/∂K
        n, t, s, a = slope.shape
        to_queries.append(torch.bmm(g.reshape(n * t, 1, s), slope.view(n * t, s, a)).view(n, t, a))
        to_keys.append(slope.mul_(g.unsqueeze(-1)).sum(dim=1))
    twice = 2 * energy
    return (
        torch.cat(to_queries).mul_(twice).div_(queries),
        torch.cat(to_keys).mul_(twice).div_(keys),
        grad.sum() - 2 * to_energy,
    )


def _shares(q: Tensor, k: Tensor) -> Tensor:
    return (q.unsqueeze(2) * k.unsqueeze(1)).add_(1).reciprocal_()


def _rows_at_a_time(queries: Tensor, keys: Tensor) -> int:
    return max(1, _CHUNK // max(1, queries.shape[1] * keys.shape[1] * keys.shape[2]))


# LSTM layers as the encoder and the decoder use them: exact under padding, and fast for one step and for many.


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

    def __init__(self, size: int, embedding: int, hidden: int, layers: int, bidirectional: bool, rate: float) -> None:
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


# LSTM encoder-decoder: Bahdanau attention for sequence to sequence, fixed attention for tagging.


@dataclass(frozen=True)
class LSTM(Options):
    """An LSTM decoder over an LSTM encoder (token ids) or a convolutional one (images); a language model without.

    ``attention="bahdanau"`` scores the memory additively (Bahdanau et al. 2015). Contexts are read from the state
    after the recurrence, so that teacher forcing is one fused call:

        h_t = LSTM(h_{t−1}, y_{t−1}),  c_t = attend(h_t),  features_t = tanh(W [h_t; c_t])

    With ``input_feeding`` they are read before it and enter it, as in the paper, one step at a time:

        c_t = attend(h_{t−1}),  h_t = LSTM(h_{t−1}, [y_{t−1}; c_t]),  features_t = tanh(W [h_t; c_t])

    ``attention="fixed"`` is for tagging: c_t is encoder state t and enters the recurrence, and the decoder starts
    from zeros. A language model may have classes: an embedding of the class is then added to every input.

    ``hidden`` is the width of each direction of the encoder, of the decoder and of the attention; ``tie`` makes
    the features as wide as the embedding and shares its matrix with the output; ``convolution`` matters for images.

    >>> model = LSTM(hidden=8, embedding=4).build(Sizes(target=10, source=12))
    >>> model.score(torch.zeros(1, 8)).shape
    torch.Size([1, 10])
    """

    hidden: Count = 256
    embedding: Count = 256
    layers: Count = 1
    bidirectional: bool = True
    attention: Literal["bahdanau", "fixed"] = "bahdanau"
    input_feeding: bool = False
    dropout: Fraction = 0.1
    tie: bool = False
    convolution: Convolution = field(default_factory=Convolution)

    def check(self) -> None:
        if self.input_feeding and self.attention == "fixed":
            raise InputError("fixed attention always enters the recurrence: leave input_feeding off")

    def build(self, sizes: Sizes) -> "LSTMModel":
        if self.attention == "fixed" and sizes.source is None:
            raise InputError("fixed attention tags a source of token ids, and this data has none")
        if self.input_feeding and sizes.source is None and sizes.image is None:
            raise InputError("input_feeding feeds contexts of token ids or images, and this data has neither")
        return LSTMModel(self, sizes)


class _Shared(NamedTuple):
    memory: Any  # Keys for additive attention, S states [R,1,M] for fixed, a class [R,E], or None
    position: int  # tokens read so far


class LSTMModel(TargetTokens):
    """The network of an ``LSTM`` specification; its state carries (h, c), each [R,layers,H]."""

    def __init__(self, spec: LSTM, sizes: Sizes) -> None:
        features = spec.embedding if spec.tie else spec.hidden
        super().__init__(sizes.target, spec.embedding, features, spec.tie)
        self.spec = spec
        self.encoder: LSTMEncoder | ConvolutionalEncoder | None = None
        if sizes.source is not None:
            self.encoder = LSTMEncoder(
                sizes.source, spec.embedding, spec.hidden, spec.layers, spec.bidirectional, spec.dropout
            )
        elif sizes.image is not None:
            self.encoder = ConvolutionalEncoder(sizes.image, spec.convolution, spec.hidden, spec.dropout)
        self.classes = None
        if self.encoder is None and sizes.classes is not None:
            self.classes = nn.Embedding(sizes.classes, spec.embedding)
        width = 0 if self.encoder is None else self.encoder.width
        early = spec.attention == "fixed" or spec.input_feeding  # contexts enter the recurrence
        self.recurrence = Recurrence(spec.embedding + (width if early else 0), spec.hidden, spec.layers, spec.dropout)
        self.attend = self.bridge = None
        if spec.attention == "bahdanau" and self.encoder is not None:
            self.attend = AdditiveAttention(spec.hidden, width, spec.hidden)
            self.bridge = nn.Linear(width, 2 * spec.layers * spec.hidden)
            nn.init.xavier_uniform_(self.bridge.weight)
            nn.init.zeros_(self.bridge.bias)
        self.combine = nn.Linear(spec.hidden + width, features)
        nn.init.xavier_uniform_(self.combine.weight)
        nn.init.zeros_(self.combine.bias)

    def start(self, batch: Batch) -> DecoderState:
        shape = (len(batch), self.spec.layers, self.spec.hidden)
        zeros = self.embedding.new_zeros(shape)
        if self.encoder is None:
            return DecoderState((zeros, zeros), _Shared(class_vectors(self.classes, batch), 0))
        memory = self.encoder(batch)
        if self.attend is None or self.bridge is None:  # fixed attention
            states = memory.states
            if memory.mask is not None:
                states = states.masked_fill(~memory.mask.unsqueeze(-1), 0.0)
            # apart, so that a step's gradient is that of its own state and not zeros for all the others as well
            return DecoderState((zeros, zeros), _Shared(states.split(1, dim=1), 0))
        h, c = self.bridge(memory.summary).chunk(2, dim=-1)
        carry = (torch.tanh(h).view(shape), c.reshape(shape))
        return DecoderState(carry, _Shared(self.attend.start(memory), 0))

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        shared: _Shared = state.shared
        memory = shared.memory
        inputs = dropout(inputs, self.spec.dropout, self.training)
        if self.encoder is None:
            inputs = inputs if memory is None else inputs + memory.unsqueeze(1)
            found, carry = self.recurrence(inputs, state.carry)
        elif self.attend is None:  # fixed attention
            contexts = positions(memory, shared.position, inputs.shape[1])
            hidden, carry = self.recurrence(torch.cat([inputs, contexts], dim=-1), state.carry)
            found = torch.cat([hidden, contexts], dim=-1)
        elif self.spec.input_feeding:
            found, carry = self._advance_fed(self.attend, state.carry, memory, inputs)
        else:
            hidden, carry = self.recurrence(inputs, state.carry)
            found = torch.cat([hidden, self.attend(hidden, memory)], dim=-1)
        features = dropout(torch.tanh(self.combine(found)), self.spec.dropout, self.training)
        return features, DecoderState(carry, shared._replace(position=shared.position + inputs.shape[1]))

    def _advance_fed(
        self, attend: AdditiveAttention, carry: tuple[Tensor, Tensor], keys: Keys, inputs: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        found = []
        for step in inputs.split(1, dim=1):  # [R,1,E]
            context = attend(carry[0][:, -1:], keys)  # the top layer's state before this step
            hidden, carry = self.recurrence(torch.cat([step, context], dim=-1), carry)
            found.append(torch.cat([hidden, context], dim=-1))
        return torch.cat(found, dim=1), carry


def positions(memory: tuple[Tensor, ...], first: int, count: int) -> Tensor:
    """States ``first`` … ``first + count − 1`` of a memory of S states [R,1,M], as [R,count,M]; those behind its end are zeros.

    >>> positions((torch.ones(1, 1, 1), torch.ones(1, 1, 1)), 1, 2).flatten()
    tensor([1., 0.])
    """
    found = memory[first : first + count]
    return torch.cat([*found, *[torch.zeros_like(memory[0])] * (count - len(found))], dim=1)
