"""The toy model is its table: what enumeration in other tests relies on."""

from itertools import product

import torch
from model_cases import SYMBOLS, batch_for

from unforced.models.toy import Toy
from unforced.types import Batch, Sizes


def log_prob(model: torch.nn.Module, tokens: tuple[int, ...]) -> torch.Tensor:
    gold = torch.tensor([tokens])
    batch = Batch.of_gold(gold, torch.ones_like(gold, dtype=torch.bool), SYMBOLS)
    features, _ = model.advance(model.start(batch), model.embed(batch.prefix))  # type: ignore[operator]
    log_probs = model.score(features).log_softmax(-1)  # type: ignore[operator]
    return log_probs.gather(-1, gold.unsqueeze(-1)).sum()


def test_scores_are_rows_of_the_table() -> None:
    first = Toy().build(Sizes(target=4)).double()
    second = Toy(order=2).build(Sizes(target=4)).double()
    batch = batch_for(Sizes(target=4), examples=1)
    ids = torch.tensor([[1, 3, 2]])
    one, _ = first.advance(first.start(batch), first.embed(ids))
    assert torch.equal(first.score(one), first.table[ids])
    two, state = second.advance(second.start(batch), second.embed(ids))
    pairs = torch.tensor([[1 * 4 + 1, 1 * 4 + 3, 3 * 4 + 2]])  # another start symbol precedes the first
    assert torch.equal(second.score(two), second.table[pairs])
    assert torch.equal(state.carry, second.embed(torch.tensor([2])))


def test_source_tokens_add_their_rows() -> None:
    sizes = Sizes(target=4, source=3)
    model = Toy().build(sizes).double()
    batch = batch_for(sizes, examples=2)
    assert batch.source is not None
    assert batch.source_mask is not None
    features, _ = model.advance(model.start(batch), model.embed(torch.tensor([[1], [2]])))
    added = [model.table[4 + batch.source[b][batch.source_mask[b]]].sum(0) for b in range(2)]
    expected = torch.stack([model.table[1] + added[0], model.table[2] + added[1]])
    torch.testing.assert_close(model.score(features)[:, 0], expected)


def test_probabilities_of_all_outputs_sum_to_one() -> None:
    for order in (1, 2):
        model = Toy(order=order, scale=2.0).build(Sizes(target=4)).double()
        total = sum(log_prob(model, tokens).exp() for tokens in product(range(4), repeat=3))
        torch.testing.assert_close(total, torch.ones((), dtype=torch.float64))
