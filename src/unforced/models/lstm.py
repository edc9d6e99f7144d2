"""LSTM encoder-decoder: Bahdanau attention for sequence to sequence, fixed attention for tagging."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.models._dropout import dropout
from unforced.models._recurrent import LSTMEncoder, Recurrence
from unforced.models._sources import class_vectors
from unforced.models._tokens import TargetTokens
from unforced.models.attention import AdditiveAttention, Keys
from unforced.models.convolution import Convolution, ConvolutionalEncoder
from unforced.types import Batch, DecoderState, Sizes


@dataclass(frozen=True)
class LSTM:
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

    hidden: int = 256
    embedding: int = 256
    layers: int = 1
    bidirectional: bool = True
    attention: Literal["bahdanau", "fixed"] = "bahdanau"
    input_feeding: bool = False
    dropout: float = 0.1
    tie: bool = False
    convolution: Convolution = field(default_factory=Convolution)

    def __post_init__(self) -> None:
        for name in ("hidden", "embedding", "layers"):
            if getattr(self, name) < 1:
                raise InputError(f"the LSTM's {name} must be at least 1, not {getattr(self, name)}")
        if self.attention not in ("bahdanau", "fixed"):
            raise InputError(f"the LSTM's attention is bahdanau or fixed, not {self.attention!r}")
        if not 0 <= self.dropout < 1:
            raise InputError(f"the LSTM's dropout must lie in [0, 1), not {self.dropout}")
        if self.input_feeding and self.attention == "fixed":
            raise InputError("fixed attention always enters the recurrence: leave input_feeding off")

    def build(self, sizes: Sizes) -> LSTMModel:
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
        self.recurrence = Recurrence(
            spec.embedding + (width if early else 0), spec.hidden, spec.layers, spec.dropout
        )
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
