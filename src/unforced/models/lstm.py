"""LSTM encoder-decoder: Bahdanau attention for sequence to sequence, fixed attention for tagging."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.models.layers import Convolution, ConvolutionalEncoder, Memory, TargetTokens, class_vectors, source_tokens
from unforced.ops.kernels import additive_scores, dropout
from unforced.ops.masks import FLOOR, full_precision, gather_positions, mirror_positions, widened
from unforced.options import Count, Fraction, Options
from unforced.types import Batch, DecoderState, Sizes

LIMIT = 20.0  # |Wq| and |Uk| saturate here: e^(2·2·20) is still a float32


class Keys(NamedTuple):
    """A memory prepared for attention; rows first, so that it can be part of a decoder's shared state."""

    powers: Tensor  # [R,S,A], e^(2 U k)
    values: Tensor  # [R,S,M]
    mask: Tensor | None  # [R,S] bool


class AdditiveAttention(nn.Module):
    """Bahdanau's additive attention (2015): Σ_s a_ts · m_s with a_ts = softmax_s(vᵀ tanh(W q_t + U m_s)).

    ``start`` projects the memory once. The module then maps queries [R,T,Q] to contexts [R,T,M]. A row whose memory is
    entirely masked has the zero context.

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


# LSTM layers


def lstm_layer(inputs: int, hidden: int) -> nn.LSTM:
    """Return an LSTM layer: Xavier inputs, orthogonal recurrence, zero biases except 1 for the forget gate."""
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
    """Run the fused kernel on inputs [R,T,E] from (h, c), each [1,R,H]; return its outputs and its last (h, c).

    Under autocast on a CPU this keeps the precision of the parameters: few CPUs have an LSTM kernel in lower precision.
    """
    if x.device.type != "cpu" or not torch.is_autocast_enabled("cpu"):
        return layer(x, carry)
    dtype = layer.all_weights[0][0].dtype
    with full_precision(x.device):
        return layer(x.to(dtype), None if carry is None else (carry[0].to(dtype), carry[1].to(dtype)))


class LSTMEncoder(nn.Module):
    """Encode token ids as a memory of H features (2H if bidirectional); the summary is each direction's last state.

    The backward direction reads each source reversed within its own length, so padding is at the end for both. The
    result equals that of packed sequences, but the fused kernels read one dense batch.
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
        mirror, rows = mirror_positions(lengths, s), torch.arange(b, device=ids.device)
        states = self.embedding(ids)
        backwards = cast("Sequence[nn.LSTM]", self.backwards)
        for number, forwards in enumerate(cast("Sequence[nn.LSTM]", self.forwards)):
            states = dropout(states, self.rate, self.training)
            ahead, _ = run_layer(forwards, states)
            summary = ahead[rows, lengths - 1]
            if backwards:
                back, _ = run_layer(backwards[number], gather_positions(states, mirror))
                summary = torch.cat([summary, back[rows, lengths - 1]], dim=-1)
                states = torch.cat([ahead, gather_positions(back, mirror)], dim=-1)
            else:
                states = ahead
        return Memory(dropout(states, self.rate, self.training), mask, summary)


class Recurrence(nn.Module):
    """The decoder's LSTM layers over inputs [R,T,E] from a state (h, c) with rows first, each [R,layers,H].

    Several steps use the fused kernel. A single step uses the cell, which is then up to three times faster.

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


# The network


@dataclass(frozen=True)
class LSTM(Options):
    """An LSTM decoder over an LSTM encoder (token ids) or a convolutional one (images).

    Without a source it is a language model.

    With ``attention="bahdanau"`` (Bahdanau et al. 2015) contexts are computed after the recurrence, so that teacher
    forcing is one fused call:

        h_t = LSTM(h_{t−1}, y_{t−1}),  c_t = attend(h_t),  features_t = tanh(W [h_t; c_t])

    With ``input_feeding`` they are computed before it and enter it, as in the paper, one step at a time:

        c_t = attend(h_{t−1}),  h_t = LSTM(h_{t−1}, [y_{t−1}; c_t]),  features_t = tanh(W [h_t; c_t])

    With ``attention="fixed"``, for tagging, c_t is encoder state t and enters the recurrence, and the decoder starts
    from zeros. If the data has classes, an embedding of the class is added to every input of the language model.
    """

    hidden: Count = 256  # width of the decoder, of the attention and of each direction of the encoder
    embedding: Count = 256  # width of token embeddings
    layers: Count = 1  # LSTM layers of the encoder and of the decoder
    bidirectional: bool = True  # encoder
    # to all encoder states, or "fixed": to encoder state t at step t
    attention: Literal["bahdanau", "fixed"] = "bahdanau"
    input_feeding: bool = False  # attend before the recurrence instead of after it
    dropout: Fraction = 0.1  # share of units dropped in training
    tie: bool = False  # share the embedding with the output projection; features are then as wide as the embedding
    convolution: Convolution = field(default_factory=Convolution)  # encoder of images

    def check(self) -> None:
        if self.input_feeding and self.attention == "fixed":
            raise InputError("fixed attention always enters the recurrence: remove input_feeding")

    def build(self, sizes: Sizes) -> "LSTMModel":
        if self.attention == "fixed" and sizes.source is None:
            raise InputError("fixed attention needs a source of token ids, and this data has none")
        if self.input_feeding and sizes.source is None and sizes.image is None:
            raise InputError("input_feeding needs a source of token ids or images, and this data has neither")
        return LSTMModel(self, sizes)


class LSTMShared(NamedTuple):
    """What all hypotheses of an example share."""

    memory: Any  # Keys for additive attention, S states [R,1,M] for fixed, a class [R,E], or None
    position: int  # number of tokens read


class LSTMModel(TargetTokens):
    """The network of `LSTM`; its state carries (h, c), each [R,layers,H]."""

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
            return DecoderState((zeros, zeros), LSTMShared(class_vectors(self.classes, batch), 0))
        memory = self.encoder(batch)
        if self.attend is None or self.bridge is None:  # fixed attention
            states = memory.states
            if memory.mask is not None:
                states = states.masked_fill(~memory.mask.unsqueeze(-1), 0.0)
            # split, so that the gradient of a step is that of its own state, without zeros for all others
            return DecoderState((zeros, zeros), LSTMShared(states.split(1, dim=1), 0))
        h, c = self.bridge(memory.summary).chunk(2, dim=-1)
        carry = (torch.tanh(h).view(shape), c.reshape(shape))
        return DecoderState(carry, LSTMShared(self.attend.start(memory), 0))

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        shared: LSTMShared = state.shared
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
    """Return ``count`` states from ``first`` on of a memory of S states [R,1,M]: [R,count,M], zeros after its end.

    >>> positions((torch.ones(1, 1, 1), torch.ones(1, 1, 1)), 1, 2).flatten()
    tensor([1., 0.])
    """
    found = memory[first : first + count]
    return torch.cat([*found, *[torch.zeros_like(memory[0])] * (count - len(found))], dim=1)
