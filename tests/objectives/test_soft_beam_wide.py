"""The relaxed beam search over a vocabulary so large that only the best continuations are weighed."""

import copy

import pytest
import torch
from test_soft_beam_training import BOTH, ENDED, FIXED, SPECS, gradient, loss_of, reversing
from torch import nn

from unforced.decoding import soft_beam
from unforced.decoding.soft_beam import SoftBeamSearch as Decoder
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.objectives.soft_beam import SoftBeam
from unforced.types import Sizes

WIDE, BEAM = 900, 3
ALL = BEAM * WIDE / soft_beam.SHARE  # from so many on all are weighed
LOSSES = pytest.mark.parametrize(
    "fields",
    [{}, {"loss": "hinge"}, {"scores": "global"}, {"loss": "hinge", "scores": "global"}],
    ids=["direct", "hinge", "direct, global", "hinge, global"],
)


def untrained(kind: str, scale: float = 1.0) -> nn.Module:
    torch.manual_seed(0)
    model = SPECS[kind].build(Sizes(target=WIDE, source=9)).double()
    with torch.no_grad():
        (model.embedding if model.projection is None else model.projection).mul_(scale)
    return model


@pytest.fixture(scope="module")
def trained() -> dict[str, nn.Module]:
    """Models that know which tokens come at all."""
    found = {}
    for kind in SPECS:
        model = untrained(kind).float()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for number in range(60):
            optimizer.zero_grad()
            loss_of(CrossEntropy(), model, reversing(64, number, noise=0.2)).mean.backward()
            optimizer.step()
        found[kind] = model.double()
    return found


@BOTH
@LOSSES
@pytest.mark.parametrize("symbols", [ENDED, FIXED], ids=["ended", "fixed"])
@pytest.mark.parametrize("alpha", [0.5, 3.0])
def test_the_best_few_give_the_loss_and_gradient_of_all(trained, kind, fields, symbols, alpha):
    model, batch = trained[kind], reversing(5, 2, symbols)
    full = loss_of(SoftBeam(beam=BEAM, alpha=alpha, keep=None, **fields), model, batch)
    few = loss_of(SoftBeam(beam=BEAM, alpha=alpha, keep=4, tolerance=1e-7, **fields), model, batch)
    assert float(few.total) == pytest.approx(float(full.total), rel=1e-5)
    expected = gradient(full, model)
    assert expected.norm() > 0.1
    assert (gradient(few, model) - expected).norm() < 1e-4 * expected.norm()
    kept, steps = few.metrics["kept"]
    assert 4 < kept / steps < ALL
    assert few.metrics["bound"][0] / few.metrics["bound"][1] <= 1e-7


@BOTH
@LOSSES
@pytest.mark.parametrize("scale", [0.05, 1.0])
def test_more_are_weighed_where_nothing_stands_out(kind, fields, scale):
    model, batch = untrained(kind, scale), reversing(5, 2)
    full = loss_of(SoftBeam(beam=BEAM, alpha=3.0, keep=None, **fields), model, batch)
    few = loss_of(SoftBeam(beam=BEAM, alpha=3.0, keep=8, tolerance=1e-7, **fields), model, batch)
    assert float(few.total) == pytest.approx(float(full.total), rel=1e-5)
    torch.testing.assert_close(gradient(few, model), gradient(full, model), rtol=1e-3, atol=1e-5)
    kept, steps = few.metrics["kept"]
    assert kept / steps > 100


@BOTH
@LOSSES
@pytest.mark.parametrize("symbols", [ENDED, FIXED], ids=["ended", "fixed"])
def test_nothing_is_nan_from_tiny_to_huge_alpha(trained, kind, fields, symbols):
    model, batch = copy.deepcopy(trained[kind]).float(), reversing(4, 1, symbols)
    for power in (-3, -1, 0, 2, 4, 6):
        loss = loss_of(SoftBeam(beam=BEAM, alpha=10.0**power, keep=4, **fields), model, batch)
        assert loss.total.isfinite()
        assert gradient(loss, model).isfinite().all()


@BOTH
@LOSSES
@pytest.mark.parametrize("keep", [64, None])
def test_single_precision_gives_the_gradient_of_double(trained, kind, fields, keep, monkeypatch):
    """Also where so many are weighed that it isn't done in double precision, as it is for fewer."""
    monkeypatch.setattr(soft_beam, "EXACT", 0)
    exact, single = trained[kind], copy.deepcopy(trained[kind]).float()
    objective = SoftBeam(beam=BEAM, alpha=100.0, keep=keep, **fields)
    for number in range(2):
        batch = reversing(16, 1000 + number, noise=0.2)
        found = [gradient(loss_of(objective, model, batch), model).double() for model in (single, exact)]
        assert found[1].norm() > 1
        assert float(torch.cosine_similarity(*found, dim=0)) > 0.99


@BOTH
@pytest.mark.parametrize("symbols", [ENDED, FIXED], ids=["ended", "fixed"])
def test_decoding_by_the_best_few_finds_what_decoding_by_all_finds(trained, kind, symbols):
    model, batch = trained[kind], reversing(12, 7, symbols, noise=0.3)
    longest = None if symbols.eos is None else 8
    for alpha in (0.1, 10.0):
        few, all_ = (Decoder(BEAM, alpha, keep=keep, max_length=longest)(model, batch) for keep in (4, None))
        assert few.ids(symbols) == all_.ids(symbols)
        torch.testing.assert_close(few.scores, all_.scores, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(("beam", "keep", "vocabulary"), [(6, 1, 5), (24, 4, 20)])
@pytest.mark.parametrize("kind", SPECS)
def test_more_places_than_continuations_and_few_kept(kind, beam, keep, vocabulary):
    torch.manual_seed(0)
    model, batch = (
        SPECS[kind].build(Sizes(target=vocabulary, source=9)).double(),
        reversing(3, 1, vocabulary=vocabulary),
    )
    losses = [loss_of(SoftBeam(beam=beam, alpha=2.0, keep=k), model, batch).total for k in (keep, None)]
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-6)
    found = [Decoder(beam, 2.0, keep=k, max_length=6)(model, batch).ids(ENDED) for k in (keep, None)]
    assert found[0] == found[1]
