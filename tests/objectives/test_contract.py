"""Properties of every objective; each row of the table is a configuration."""

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
from masked_toy import ToyMasked
from objective_cases import ENDED, assert_equal_bits, assert_same, codec, gradient
from torch.autograd import gradcheck

from unforced.decoding import search
from unforced.models.field import Field
from unforced.models.lstm import LSTM
from unforced.models.masked import ConditionalMasked
from unforced.models.toy import Toy
from unforced.models.transformer import Transformer
from unforced.objectives.sequence_smoothing import SequenceSmoothing
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.protocols import fitted
from unforced.registry import REGISTRY, resolve
from unforced.types import Batch, Encoded, Loss, Progress, Sizes

SIZES = Sizes(target=6, source=5)
ALONE = Sizes(target=6)  # without a source
CODEC = codec(6)
EXAMPLES = [Encoded(None, [3, 4, 5, 2], (3, 4, 5)), Encoded(None, [4, 5, 2], (4, 5))]


def fixed() -> torch.nn.Module:
    """A frozen masked model: a teacher, or a source of noise."""
    torch.manual_seed(8)
    return ToyMasked().build(ALONE).double()


# objective -> configurations, the slow ones after `SLOW`
SLOW: dict[str, Any] = {}
TABLE: dict[str, list[dict[str, Any]]] = {
    "cross_entropy": [{}],
    "label_smoothing": [{"smoothing": 0.1}, SLOW, {"smoothing": 0.0}],
    "scheduled_sampling": [
        {"feed": "sample", "mixing": 0.5},
        {"feed": "soft_sample", "mixing": 0.3, "alpha": 2.0},
        SLOW,
        {"feed": "argmax", "mixing": 0.5},
        {"feed": "soft_argmax", "mixing": 0.5, "alpha": 2.0},
        {"feed": "argmax", "mixing": 1.0},
        {"feed": "soft_sample", "mixing": 1.0},
    ],
    "parallel_scheduled_sampling": [
        {"p": 0.75, "passes": 3},
        SLOW,
        {"p": 0.5},
        {"p": 1.0, "passes": 2, "pick": "argmax"},
        {"p": 0.0},
    ],
    "token_smoothing": [
        {"tau": 0.3, "mix": 0.6, "nearest": 3},
        SLOW,
        {"tau": 0.5, "nearest": None},
        {"tau": 0.5, "vectors": "uniform"},
    ],
    "sequence_smoothing": [
        {"tau": 0.3, "proposal_tau": 1.0, "reward": "bleu", "samples": 4},
        {"tau": 0.7, "lazy": True, "mix": 0.6, "samples": 2},
        SLOW,
        {"tau": 0.7},
        {"tau": 1.0, "mix": 0.4, "samples": 3, "vocabulary": "references"},
        {"tau": 0.7, "reward": "edit", "proposal": "edit", "samples": 4, "mix": 0.7},
        {"tau": 0.7, "lazy": True, "samples": None},
        {"tau": 0.7, "lazy": True, "samples": None, "vocabulary": "references"},
    ],
    "token_sequence_smoothing": [
        {"token": TokenSmoothing(tau=0.3, mix=0.6, nearest=3), "sequence": SequenceSmoothing(tau=0.7, mix=0.5)},
        SLOW,
        {
            "token": TokenSmoothing(tau=0.5, nearest=2),
            "sequence": SequenceSmoothing(tau=0.7, lazy=True, samples=2, reward="edit"),
        },
    ],
    "self_normalized": [{"strength": 0.1}, SLOW, {"strength": 0.0}],
    "beam_search_optimization": [{"beam": 3}, SLOW, {"beam": 2, "scores": "local", "beyond": 1}],
    "minimum_risk": [
        {"samples": 3, "alpha": 1.0, "gold": False, "cost": "edit", "max_length": 3},
        SLOW,
        {"samples": 4, "alpha": 0.5, "max_length": 4},
    ],
    "soft_beam": [
        {"beam": 3, "alpha": 2.0, "loss": "hinge", "beyond": 1},
        {"beam": 2, "alpha": 1.0, "scores": "global", "mix": 0.5, "strength": 0.1, "dropout": True},
        {"beam": 3, "alpha": 2.0, "checkpoint": True, "keep": 2, "tolerance": 0.0},
        SLOW,
        {"alpha": 2.0},
        {"beam": 2, "alpha": 1.0, "loss": "hinge", "scores": "global"},
        {"beam": 3, "alpha": 2.0, "scores": "global", "beyond": 1},
        {"beam": 4, "alpha": 5.0, "keep": None, "beyond": 2},
    ],
    "masked_lm": [
        {"hidden": "fixed", "rate": 0.6, "length_weight": 1.0},
        SLOW,
        {},
        {"hidden": "one"},
        {"hidden": "each"},
    ],
    "pseudo_likelihood": [{"positions": 1, "rows": 30}, SLOW, {}, {"energy": "local", "rows": 40}],
    "exact_likelihood": [{"energy": "local", "rows": 50}, SLOW, {}],
    "kl_projection": [
        {"teacher": fixed(), "positions": 2, "energy": "local"},
        SLOW,
        {},
        {"teacher": fixed(), "pseudo_likelihood": 0.0, "rows": 20},
    ],
    "noise_contrastive": [
        {"noise": "uniform", "samples": 3},
        SLOW,
        {"noise": "uniform", "samples": 4, "form": "ranking", "energy": "local", "rows": 12},
        {"model": fixed(), "samples": 2, "log_z": 1.5},
    ],
}


def rows() -> list[Any]:
    """Return the configurations as parameters of a test."""
    found = []
    for name, configurations in TABLE.items():
        slow = next((i for i, fields in enumerate(configurations) if fields is SLOW), len(configurations))
        for i, fields in enumerate(configurations):
            if fields is not SLOW:
                found.append(pytest.param(name, fields, id=f"{name}-{i}", marks=[pytest.mark.slow] if i > slow else []))
    return found


ROWS = pytest.mark.parametrize(("name", "fields"), rows())
MODELS = pytest.mark.parametrize(
    "model_name",
    ["lstm", pytest.param("toy", marks=pytest.mark.slow), pytest.param("transformer", marks=pytest.mark.slow)],
)
# configurations without model tokens and without smoothing equal cross-entropy, bit for bit
GOLD_ONLY = [
    ("label_smoothing", {"smoothing": 0.0}),
    ("self_normalized", {"strength": 0.0}),
    ("token_smoothing", {"tau": 0.0}),
    ("token_smoothing", {"mix": 0.0}),
    ("sequence_smoothing", {"tau": 0.0}),
    ("sequence_smoothing", {"mix": 0.0}),
    ("token_sequence_smoothing", {"token": TokenSmoothing(tau=0.0), "sequence": SequenceSmoothing(tau=0.0)}),
    ("scheduled_sampling", {"feed": "argmax", "mixing": 1.0}),
    ("scheduled_sampling", {"feed": "soft_sample", "mixing": 1.0}),
    ("parallel_scheduled_sampling", {"p": 0.0}),
    ("parallel_scheduled_sampling", {"p": 0.5, "warmup": 6, "schedule": "step"}),
]

# models by the protocol that an objective needs
SHAPE: dict[str, Any] = {"width": 8, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "feedforward": 8}
FAMILIES: dict[str, dict[str, tuple[Any, Sizes]]] = {
    "StepDecoder": {
        "toy": (Toy(order=2), SIZES),
        "lstm": (LSTM(hidden=6, embedding=5, dropout=0.0), SIZES),
        "transformer": (Transformer(**SHAPE, dropout=0.0), SIZES),
    },
    "MaskedModel": {
        "toy": (ToyMasked(), SIZES),
        "lstm": (Field(hidden=6, embedding=5), ALONE),
        "transformer": (ConditionalMasked(**SHAPE, dropout=0.0, longest=4), SIZES),
    },
}


def chosen(name: str, model_name: str) -> tuple[Any, Sizes]:
    """Return a model with the protocol that the objective needs, and the sizes of the data."""
    family = inspect.signature(resolve("objectives", name).__call__).parameters["model"].annotation
    return FAMILIES[family.__name__][model_name]


def make_batch(name: str = "cross_entropy", model_name: str = "toy", wider: int = 0) -> Batch:
    """Return four examples of different lengths, with ``wider`` more columns of padding."""
    gold = torch.tensor([[3, 4, 5, 2], [4, 2, 0, 0], [5, 5, 2, 0], [3, 3, 4, 2]])
    source = torch.tensor([[1, 2, 3], [4, 0, 0], [2, 2, 0], [3, 1, 0]])
    gold, source = (torch.nn.functional.pad(ids, (0, wider)) for ids in (gold, source))
    sources: dict[str, Any] = {}
    if chosen(name, model_name)[1].source is not None:
        sources = {"source": source, "source_mask": source != 0}
    references = torch.tensor([[3, 4, 5], [4, 5, 0], [5, 3, 0], [3, 4, 0]])
    return Batch.of_gold(gold, gold != 0, ENDED, **sources, ids=torch.tensor([10, 11, 12, 13]), references=references)


def make_model(name: str, model_name: str) -> torch.nn.Module:
    torch.manual_seed(3)
    spec, sizes = chosen(name, model_name)
    return spec.build(sizes).double()


def loss_of(name: str, fields: dict[str, Any], model: torch.nn.Module, batch: Batch, seed: int = 7) -> Loss:
    objective = fitted(resolve("objectives", name)(**fields), CODEC, EXAMPLES)
    return objective(
        model, batch, progress=Progress(step=5, epoch=1.5, total=10), rng=torch.Generator().manual_seed(seed)
    )


@pytest.fixture(autouse=True)
def recompute_short_searches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "ENDING", 0)


def test_every_registered_objective_has_a_row() -> None:
    assert set(TABLE) == set(REGISTRY["objectives"])


@MODELS
@ROWS
def test_sum_count_and_metrics(name: str, fields: dict[str, Any], model_name: str) -> None:
    batch = make_batch(name, model_name)
    loss = loss_of(name, fields, make_model(name, model_name), batch)
    assert loss.total.dim() == 0
    assert torch.isfinite(loss.total)
    assert loss.total.requires_grad
    assert loss.count > 0
    for value, count in loss.metrics.values():
        assert not value.requires_grad
        assert not count.requires_grad


@MODELS
@ROWS
def test_padding_changes_nothing(name: str, fields: dict[str, Any], model_name: str) -> None:
    model, batch = make_model(name, model_name), make_batch(name, model_name)
    padded = make_batch(name, model_name, wider=2)
    plain, more = loss_of(name, fields, model, batch), loss_of(name, fields, model, padded)
    torch.testing.assert_close(more.total, plain.total, rtol=1e-10, atol=1e-10)
    assert more.count == plain.count


@MODELS
@ROWS
def test_micro_batches_add_up(name: str, fields: dict[str, Any], model_name: str) -> None:
    model, batch = make_model(name, model_name), make_batch(name, model_name)
    whole = loss_of(name, fields, model, batch)
    parts = [loss_of(name, fields, model, batch.select(torch.tensor(rows))) for rows in ([0, 2], [3], [1])]
    assert sum(p.count for p in parts) == whole.count
    assert_same(model, sum(p.total for p in parts), whole.total)


@ROWS
def test_order_of_examples_changes_nothing(name: str, fields: dict[str, Any]) -> None:
    model, batch = make_model(name, "lstm"), make_batch(name, "lstm")
    shuffled = batch.select(torch.tensor([2, 0, 3, 1]))
    plain, other = loss_of(name, fields, model, batch), loss_of(name, fields, model, shuffled)
    torch.testing.assert_close(other.total, plain.total, rtol=1e-10, atol=1e-10)


@ROWS
def test_gradients_agree_with_finite_differences(name: str, fields: dict[str, Any]) -> None:
    model, batch = make_model(name, "toy"), make_batch(name, "toy").select(torch.tensor([1, 2]))
    caller = Caller(model, name, fields)

    def total(table: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(caller, {"model.table": table}, (batch,))

    assert gradcheck(total, (model.table.detach().clone().requires_grad_(),), eps=1e-6, atol=1e-5, fast_mode=True)


class Caller(torch.nn.Module):
    """A model and an objective as one module, whose parameters can be replaced."""

    def __init__(self, model: torch.nn.Module, name: str, fields: dict[str, Any]) -> None:
        super().__init__()
        self.model, self.name, self.fields = model, name, fields

    def forward(self, batch: Batch) -> torch.Tensor:
        return loss_of(self.name, self.fields, self.model, batch).total


@ROWS
def test_the_same_generator_gives_the_same_bits(name: str, fields: dict[str, Any]) -> None:
    model, batch = make_model(name, "transformer"), make_batch(name, "transformer")
    assert_equal_bits(model, *(loss_of(name, fields, model, batch) for _ in range(2)))


@MODELS
@pytest.mark.parametrize(("name", "fields"), GOLD_ONLY)
def test_gold_only_is_cross_entropy(name: str, fields: dict[str, Any], model_name: str) -> None:
    model, batch = make_model(name, model_name), make_batch(name, model_name)
    losses = [loss_of(name, fields, model, batch), loss_of("cross_entropy", {}, model, batch)]
    assert_equal_bits(model, *losses)


@ROWS
def test_examples_without_target_tokens_cost_nothing(name: str, fields: dict[str, Any]) -> None:
    if name == "minimum_risk" or chosen(name, "toy")[0] == ToyMasked():
        pytest.skip("outputs have a risk without a target too, and masked models need tokens")
    model, batch = make_model(name, "toy"), make_batch(name)
    loss = loss_of(name, fields, model, replace(batch, mask=torch.zeros_like(batch.mask)))
    assert loss.total.item() == 0
    assert not gradient(loss.total, model).any()
    assert all(torch.isfinite(torch.stack(pair)).all() for pair in loss.metrics.values())


@pytest.mark.parametrize("dropout", [False, True])
@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("scheduled_sampling", {"feed": "argmax", "mixing": 0.0}),
        ("parallel_scheduled_sampling", {"p": 1.0, "pick": "argmax"}),
        ("beam_search_optimization", {"beam": 2}),
        ("minimum_risk", {"samples": 3, "max_length": 4}),
    ],
)
def test_dropout_in_passes_without_gradient_is_optional(name: str, fields: dict[str, Any], dropout: bool) -> None:
    model = LSTM(hidden=6, embedding=5, dropout=0.5).build(SIZES).double()
    modes: list[tuple[bool, bool]] = []
    model.recurrence.register_forward_hook(lambda module, *_: modes.append((torch.is_grad_enabled(), module.training)))
    loss_of(name, {**fields, "dropout": dropout}, model, make_batch(name, "lstm"))
    assert set(modes) == {(False, dropout), (True, True)}
    assert model.recurrence.training


@pytest.mark.slow
@ROWS
def test_gradients_are_finite_under_bf16_autocast(name: str, fields: dict[str, Any]) -> None:
    model, batch = make_model(name, "transformer").float(), make_batch(name, "transformer")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of(name, fields, model, batch)
    loss.total.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
    assert any(p.grad.abs().sum() > 0 for p in model.parameters() if p.grad is not None)
