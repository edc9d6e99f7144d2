"""Costs of tokens, given the gold."""

from types import SimpleNamespace

import pytest
import torch

import unforced
from unforced.errors import InputError
from unforced.objectives.costs import Confusions, Hamming, Table, WeightedHamming
from unforced.tasks.codecs import TagCodec
from unforced.tasks.tokenization import Vocabulary
from unforced.types import Batch, Symbols

SYMBOLS = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))


def make_batch() -> Batch:
    gold = torch.tensor([[3, 4, 2], [5, 2, 0]])
    return Batch.of_gold(gold, gold != 0, SYMBOLS)


def dense(cost, batch: Batch, steps: int, size: int = 6) -> torch.Tensor:
    prepared = cost.prepare(batch, steps)
    tokens = torch.arange(size).expand(len(batch), size)
    return torch.stack([cost(prepared[:, t], tokens) for t in range(steps)], dim=1)


def test_hamming_costs():
    found = dense(Hamming(), make_batch(), 4)
    gold = torch.tensor([[3, 4, 2, 0], [5, 2, 0, 0]])
    assert torch.equal(found, 1 - torch.nn.functional.one_hot(gold, 6).float())


def test_weighted_hamming_costs():
    tags = Vocabulary.learn([["O", "O", "B-PER"]], eos=False)
    codec = TagCodec(Vocabulary.learn([["a"]], eos=False), tags)
    cost = WeightedHamming(weight=2.0).fitted(codec)
    outside, person = tags.encode(["O", "B-PER"], eos=False)
    gold = torch.tensor([[outside, person]])
    batch = Batch.of_gold(gold, gold > 0, codec.symbols, length=torch.tensor([2]))
    now = cost.prepare(batch, 2)
    tokens = torch.tensor([[outside, person]])
    assert cost(now[:, 0], tokens).tolist() == [[0.0, 1.0]]
    assert cost(now[:, 1], tokens).tolist() == [[2.0, 0.0]]


def test_weights_end_with_the_target():
    codec = SimpleNamespace(token_names=lambda: ("<pad>", "<bos>", "<eos>", "a", "O", "b"))
    found = dense(WeightedHamming(weight=2.0).fitted(codec), make_batch(), 4)
    assert found[0, :, 4].tolist() == [2.0, 0.0, 2.0, 1.0]
    assert found[1, :, 4].tolist() == [2.0, 2.0, 1.0, 1.0]
    assert torch.equal(found[:, 3], dense(Hamming(), make_batch(), 4)[:, 3])


def test_weighted_hamming_needs_a_known_token():
    tags = Vocabulary.learn([["X"]], eos=False)
    codec = TagCodec(Vocabulary.learn([["a"]], eos=False), tags)
    with pytest.raises(InputError, match='"O" is not among the tokens of this data'):
        WeightedHamming().fitted(codec)


def test_a_table_of_hamming_costs_equals_hamming():
    batch = make_batch()
    own = Table(lambda batch: 1 - torch.nn.functional.one_hot(batch.gold, 6).float())
    for steps in (2, 3, 5):
        assert torch.equal(dense(own, batch, steps), dense(Hamming(), batch, steps))
    for table, message in (
        (torch.zeros(1, 1, 6), "must have the shape"),
        (torch.full((2, 3, 6), torch.nan), "must have finite entries"),
        (torch.zeros(2, 3, 4), "costs of 4 tokens, none for token 5"),
    ):
        with pytest.raises(InputError, match=message):
            dense(Table(lambda _, table=table: table), batch, 3)


def test_costs_can_be_objects_in_python():
    own = Table(lambda batch: torch.zeros(*batch.gold.shape, 6))
    assert unforced.objective("soft_beam", cost=own).cost is own
    with pytest.raises(InputError, match=r"soft_beam\.cost must be a Cost, got 3"):
        unforced.objective("soft_beam", cost=3)


class Letters:
    """A codec with token names only."""

    symbols = SYMBOLS

    def token_names(self) -> tuple[str, ...]:
        return ("<pad>", "<bos>", "<eos>", "a", "b", "c")


def test_confusions_read_costs_from_a_file(tmp_path):
    file = tmp_path / "costs.tsv"
    file.write_text("a\tb\t3\n\nb\ta\t0.25\r\n<eos>\tc\t7\n", encoding="utf-8")
    cost = Confusions(str(file), other=0.5)
    assert cost.files == (file,)
    found = dense(cost.fitted(Letters()), make_batch(), 4)
    wrong = dense(Hamming(), make_batch(), 4)
    expected = 0.5 * wrong
    expected[0, 0, 4], expected[0, 1, 3] = 3.0, 0.25  # a b <eos>
    expected[0, 2, 5] = expected[1, 1, 5] = 7.0
    expected[0, 3:], expected[1, 2:] = wrong[0, 3:], wrong[1, 2:]  # after the end
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"a\tb\n", "costs.tsv:1: "),
        (b"\na\tb\tnan\n", "costs.tsv:2: a cost must be"),
        (b"a\tb\t-1\n", "costs.tsv:1: a cost must be"),
        (b"a\tz\t1\n", 'costs.tsv:1: "z" is not among the tokens of this data'),
        (b"a\ta\t1\n", 'costs.tsv:1: "a" for itself is not a mistake'),
        (b"a\tb\t1\na\tb\t2\n", "costs.tsv:2: this mistake is already listed"),
    ],
)
def test_malformed_files_of_costs_raise(text, message, tmp_path):
    file = tmp_path / "costs.tsv"
    file.write_bytes(text)
    with pytest.raises(InputError, match=message):
        Confusions(str(file)).fitted(Letters())


@pytest.mark.parametrize("cost", [Confusions("costs.tsv"), WeightedHamming()])
def test_costs_that_name_tokens_must_be_fitted(cost):
    with pytest.raises(InputError, match="call fitted"):
        dense(cost, make_batch(), 3)
