"""The best few continuations, against a full stable sort."""

import pytest
import torch

from unforced.ops import topk
from unforced.ops.topk import top, top_continuations


def reference(token_scores: torch.Tensor, so_far: torch.Tensor, count: int):
    flat = (token_scores + so_far.unsqueeze(2)).flatten(1)
    values, indices = flat.sort(dim=1, descending=True, stable=True)
    v = token_scores.shape[2]
    return values[:, :count], indices[:, :count] // v, indices[:, :count] % v


@pytest.mark.parametrize("v", [3, 64, 1000, 1024, 2049])
@pytest.mark.parametrize("levels", [0, 4, 50], ids=["distinct", "many ties", "some ties"])
@pytest.mark.parametrize("small", [80_000, 0], ids=["plain", "blocks"])
def test_equals_a_full_stable_sort(v, levels, small, monkeypatch):
    monkeypatch.setattr(topk, "SMALL", small)
    torch.manual_seed(v)
    for k, count in ((1, 1), (1, 6), (5, 10), (3, 3)):
        count = min(count, k * v)
        scores, so_far = torch.randn(4, k, v, dtype=torch.float64), torch.randn(4, k, dtype=torch.float64)
        if levels:
            scores, so_far = (scores * levels).round() / levels, so_far.round()
        scores[:, :, [0, v // 2]] = -torch.inf
        so_far[1, 1:] = -torch.inf
        found = top_continuations(scores, so_far, count)
        for ours, expected in zip(found, reference(scores, so_far, count)):
            possible = found[0] > -torch.inf
            assert torch.equal(ours[possible], expected[possible])


def test_fewer_outputs_than_requested():
    values, indices = top(torch.tensor([[1.0, 2.0]]), 4)
    assert values.tolist() == [[2.0, 1.0, -torch.inf, -torch.inf]]
    assert indices.tolist() == [[1, 0, 0, 0]]
