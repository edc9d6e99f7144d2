"""The pieces of the networks against PyTorch's own or plain formulas."""

from typing import Any

import pytest
import torch
from model_cases import CASES, SYMBOLS, batch_for
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from unforced.models.layers import Convolution, ConvolutionalEncoder, Memory
from unforced.models.lstm import AdditiveAttention, LSTMEncoder
from unforced.models.transformer import Cache, DecoderBlock, EncoderBlock, sinusoids, split_heads
from unforced.ops import kernels
from unforced.ops.kernels import additive_scores, dropout
from unforced.ops.masks import length_mask
from unforced.types import Batch, Symbols


def close(a: torch.Tensor, b: torch.Tensor, atol: float = 1e-10) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def plain_context(module: AdditiveAttention, queries: torch.Tensor, memory: Memory) -> torch.Tensor:
    """Bahdanau's equations as the paper prints them."""
    hidden = torch.tanh(module.query(queries).unsqueeze(2) + module.key(memory.states).unsqueeze(1))
    scores = hidden @ module.energy
    if memory.mask is not None:
        scores = scores.masked_fill(~memory.mask.unsqueeze(1), float("-inf"))
    return scores.softmax(dim=-1) @ memory.states


@pytest.mark.parametrize("chunk", [1, 40, 1 << 19])
def test_additive_attention_is_bahdanaus(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_CHUNK", chunk)
    torch.manual_seed(0)
    module = AdditiveAttention(query=4, memory=6, size=5).double()
    states = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    queries = torch.randn(3, 2, 4, dtype=torch.float64, requires_grad=True)
    for mask in (None, length_mask(torch.tensor([4, 1, 2]))):
        memory = Memory(states, mask, states[:, 0])
        ours, plain = module(queries, module.start(memory)), plain_context(module, queries, memory)
        close(ours, plain)
        over = [queries, states, *module.parameters()]
        weights = torch.randn_like(plain)
        for a, b in zip(
            torch.autograd.grad((ours * weights).sum(), over), torch.autograd.grad((plain * weights).sum(), over)
        ):
            close(a, b)


def test_additive_scores_have_the_gradient_of_finite_differences() -> None:
    torch.manual_seed(1)
    q, k, v = (torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in ((2, 3, 4), (2, 5, 4), (4,)))
    assert torch.autograd.gradcheck(lambda q, k, v: additive_scores((2 * q).exp(), (2 * k).exp(), v), (q, k, v))


@pytest.mark.parametrize("size", [1e-6, 1.0, 30.0, 1e4])
def test_additive_attention_is_finite_whatever_its_inputs(size: float) -> None:
    torch.manual_seed(2)
    module = AdditiveAttention(query=4, memory=4, size=4)
    states = (torch.randn(2, 3, 4) * size).requires_grad_()
    queries = (torch.randn(2, 3, 4) * size).requires_grad_()
    context = module(queries, module.start(Memory(states, None, states[:, 0])))
    context.sum().backward()
    assert context.isfinite().all()
    for leaf in (states, queries, *module.parameters()):
        assert leaf.grad is not None
        assert leaf.grad.isfinite().all()


def test_a_row_without_memory_has_the_zero_context() -> None:
    module = AdditiveAttention(query=4, memory=4, size=4)
    states = torch.randn(2, 3, 4, requires_grad=True)
    mask = torch.tensor([[True, True, False], [False, False, False]])
    context = module(torch.randn(2, 1, 4), module.start(Memory(states, mask, states[:, 0])))
    assert torch.equal(context[1], torch.zeros(1, 4))
    context.sum().backward()
    assert states.grad is not None
    assert torch.equal(states.grad[1], torch.zeros(3, 4))


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("bidirectional", [True, False])
def test_the_encoder_equals_packed_sequences(layers: int, bidirectional: bool) -> None:
    torch.manual_seed(3)
    encoder = LSTMEncoder(7, 5, 4, layers, bidirectional, rate=0.0).double().eval()
    packed = nn.LSTM(5, 4, layers, batch_first=True, bidirectional=bidirectional).double()
    ours: Any = encoder.forwards
    if bidirectional:
        ours = [layer for pair in zip(encoder.forwards, encoder.backwards) for layer in pair]
    for layer, target in zip(ours, packed.all_weights):
        for a, b in zip(target, layer.all_weights[0]):
            a.data.copy_(b)
    batch = batch_for(CASES["lstm"].sizes)
    assert batch.source is not None
    assert batch.source_mask is not None
    memory = encoder(batch)
    lengths = batch.source_mask.sum(1)
    inputs = pack_padded_sequence(encoder.embedding(batch.source), lengths, batch_first=True, enforce_sorted=False)
    outputs, (last, _) = packed(inputs)
    expected, _ = pad_packed_sequence(outputs, batch_first=True)
    close(memory.states[batch.source_mask], expected[batch.source_mask])
    directions = 2 if bidirectional else 1
    close(memory.summary, last[-directions:].transpose(0, 1).flatten(1))


def test_an_encoder_block_is_pytorchs_pre_norm_layer() -> None:
    torch.manual_seed(4)
    ours = EncoderBlock(8, 2, 12, rate=0.0).double()
    theirs = nn.TransformerEncoderLayer(8, 2, 12, 0.0, batch_first=True, norm_first=True, bias=False).double()
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(ours.qkv.weight)
        theirs.self_attn.out_proj.weight.copy_(ours.self_out.weight)
        theirs.linear1.weight.copy_(ours.feed_in.weight)
        theirs.linear2.weight.copy_(ours.feed_out.weight)
    x = torch.randn(3, 5, 8, dtype=torch.float64)
    mask = length_mask(torch.tensor([5, 2, 3]))
    expected = theirs.train()(x, src_key_padding_mask=~mask)
    close(ours(x, mask[:, None, None])[mask], expected[mask])
    close(ours(x, None), theirs(x))


def test_a_decoder_block_is_pytorchs_pre_norm_layer() -> None:
    torch.manual_seed(5)
    ours = DecoderBlock(8, 2, 12, rate=0.0, cross=True).double()
    assert ours.cross is not None
    theirs = nn.TransformerDecoderLayer(8, 2, 12, 0.0, batch_first=True, norm_first=True, bias=False).double()
    pairs = nn.Linear(8, 16, bias=False).double()  # the memory's keys and values
    with torch.no_grad():
        theirs.self_attn.in_proj_weight.copy_(ours.qkv.weight)
        theirs.self_attn.out_proj.weight.copy_(ours.self_out.weight)
        theirs.multihead_attn.in_proj_weight.copy_(torch.cat([ours.cross.query.weight, pairs.weight]))
        theirs.multihead_attn.out_proj.weight.copy_(ours.cross.out.weight)
        theirs.linear1.weight.copy_(ours.feed_in.weight)
        theirs.linear2.weight.copy_(ours.feed_out.weight)
    x, memory = torch.randn(3, 5, 8, dtype=torch.float64), torch.randn(3, 4, 8, dtype=torch.float64)
    mask = length_mask(torch.tensor([4, 1, 3]))
    found, cache = ours(x, None, None, Cache(*split_heads(pairs(memory), 2, 2)), mask[:, None, None])
    later = nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64)
    close(found, theirs(x, memory, tgt_mask=later, memory_key_padding_mask=~mask))
    assert cache.keys.shape == (3, 2, 5, 4)


def test_positions_have_no_longest_length() -> None:
    like = torch.zeros(1, 7, dtype=torch.float64)
    whole = sinusoids(0, 600, like)
    assert whole.shape == (600, 7)
    for at in (0, 255, 256, 511, 599):
        close(sinusoids(at, 1, like), whole[at : at + 1])
    assert len({tuple(row) for row in whole.tolist()}) == 600
    model = CASES["causal"].model()
    ids = torch.randint(2, 9, (1, 300), generator=torch.Generator().manual_seed(0))
    gold = torch.zeros(1, 300, dtype=torch.long)
    state = model.start(Batch.of_gold(gold, gold == 0, SYMBOLS))
    whole, _ = model.advance(state, model.embed(ids))
    _, most = model.advance(state, model.embed(ids[:, :299]))
    close(model.advance(most, model.embed(ids[:, 299:]))[0], whole[:, 299:])


def test_dropout_drops_its_share_and_keeps_the_mean() -> None:
    torch.manual_seed(6)
    x = torch.ones(100, 999, requires_grad=True)
    y = dropout(x, 0.3, training=True)
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, y.detach())
    assert abs((y == 0).double().mean().item() - 0.3) < 0.01
    assert abs(y.mean().item() - 1) < 0.01
    dropped = (y == 0).double()
    for side in (dropped[:, 1:] * dropped[:, :-1], dropped[1:] * dropped[:-1]):  # neighbours are independent
        assert abs(side.mean().item() - 0.09) < 0.01
    assert not torch.equal(dropout(x, 0.3, training=True), y)
    assert dropout(x, 0.0, training=True) is x
    assert dropout(x, 0.3, training=False) is x
    torch.manual_seed(7)
    first = dropout(x, 0.3, training=True)
    torch.manual_seed(7)
    assert torch.equal(dropout(x, 0.3, training=True), first)


@pytest.mark.parametrize("image", [(1, 1, 1), (1, 8, 8), (3, 24, 24), (3, 7, 10)])
def test_the_convolutional_encoder_takes_any_size(image: tuple[int, int, int]) -> None:
    encoder = ConvolutionalEncoder(image, Convolution((4, 8, 6)), width=5)

    def encode(images: torch.Tensor) -> torch.Tensor:
        gold = torch.zeros(len(images), 1, dtype=torch.long)
        return encoder(Batch(gold, gold, gold == 0, Symbols(0, 1, 2), source=images)).states

    states = encode(torch.randn(2, *image))
    assert states.shape == (2, -(-image[1] // 4) * -(-image[2] // 4), 5)
    alone = encode(torch.zeros(1, *image))
    close(encode(torch.cat([torch.zeros(1, *image), torch.ones(1, *image)]))[:1], alone, atol=1e-6)
