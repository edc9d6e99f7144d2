"""Pseudo-log-likelihoods and energies of sentences against one forward pass for each token."""

from typing import Any

import pytest
import torch
from energy_cases import MODELS, alone, ended, free_of, kept_of, model_and_batch, plain_energy, plain_scores

from unforced.energy.pseudo_log_likelihood import WordMasks, pseudo_log_likelihood, token_scores
from unforced.errors import InputError
from unforced.types import Batch

ROWS = [[4, 3, 5, 5, 3], [5], [3, 4, 4, 5], [4, 4]]
WORDS = [[0, 0, 1, 1, 1], [0], [0, 1, 1, 2], [0, 1]]  # the number of each token's word


def words_of(batch: Batch, masking: str) -> WordMasks | None:
    """The words of a batch; the end symbol and padding belong to none."""
    rows = torch.full(batch.gold.shape, -1)
    for row, words in zip(rows, WORDS):
        row[: len(words)] = torch.tensor(words)
    return None if masking == "single" else WordMasks(rows, left_to_right=masking == "left_to_right")


def plain_log_probs(model: Any, batch: Batch, b: int, masking: str, over: str) -> list[float]:
    """log p of each token, one pass each."""
    training, _ = model.training, model.eval()
    one, words, found = alone(batch, b), WORDS[b], []
    tokens = one.gold[0].tolist()
    for t in free_of(one, 0):
        hidden = [t]
        if masking != "single":
            hidden = [s for s, word in enumerate(words) if word == words[t]]
        if masking == "left_to_right":
            hidden = [s for s in hidden if s >= t]
        scores = plain_scores(model, one, tokens, hidden)[t]
        among = range(len(scores)) if over == "all" else kept_of(batch.symbols, len(scores))
        found.append(float(scores[tokens[t]] - scores[list(among)].logsumexp(0)))
    model.train(training)
    return found


CASES = [
    (name, masking, over, tokens)
    for name in MODELS
    for masking in ("single", "left_to_right", "whole")
    for over, tokens in (("all", 1), ("all", 4096), ("allowed", 7))
]
QUICK = CASES[2:36:5]  # every model and masking


@pytest.mark.parametrize(
    ("name", "masking", "over", "tokens"),
    [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES if case not in QUICK)],
)
def test_scores_equal_one_forward_pass_each(name: str, masking: Any, over: Any, tokens: int) -> None:
    model, batch = model_and_batch(name, ROWS, dropout=0.3)
    words = words_of(batch, masking)
    found = token_scores(model, batch, words, over, tokens)
    alone_ = pseudo_log_likelihood(model, batch, words, over, tokens)
    torch.testing.assert_close(alone_, found.log_probs, rtol=0, atol=1e-12)
    for b in range(len(batch)):
        expected = plain_log_probs(model, batch, b, masking, over)
        row = found.log_probs[b]
        assert row[: len(expected)].tolist() == pytest.approx(expected, abs=1e-10)
        assert not row[len(expected) :].any()
        assert float(found.pseudo_log_likelihood[b]) == pytest.approx(sum(expected), abs=1e-10)
        model.eval()
        for kind in ("raw", "local"):
            plain = plain_energy(model, alone(batch, b), batch.gold[b][batch.mask[b]].tolist(), kind)
            assert float(found.energy(kind)[b]) == pytest.approx(plain, abs=1e-10)
        model.train()


def test_micro_batches_are_bounded_by_tokens() -> None:
    model, batch = model_and_batch("table", ROWS, dropout=0.3)
    model.seen.clear()
    token_scores(model, batch, words_of(batch, "whole"), tokens=12)
    assert max(rows * size for rows, size in model.seen) <= 12
    assert all(size <= 6 for _, size in model.seen)
    assert {size for _, size in model.seen} == {3, 5, 6}  # short sentences aren't padded to the longest


def test_invalid_input() -> None:
    model, batch = model_and_batch("table", ROWS, dropout=0.3)
    with pytest.raises(InputError, match="over must be one of all, allowed, got 'some'"):
        token_scores(model, batch, over="some")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="scoring needs a model with scores"):
        token_scores(object(), batch)
    with pytest.raises(InputError, match="no token to score"):
        token_scores(model, ended([[]], [[1]]))


def test_hugging_face_models_project_masked_positions_only() -> None:
    from unforced.huggingface.batches import make_batch
    from unforced.huggingface.wrap import wrap

    torch.manual_seed(1)
    tf = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    bare = tf.BertForMaskedLM(tf.BertConfig(vocab_size=17, **sizes, pad_token_id=0)).train()
    for parameter in bare.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    model, whole = wrap(bare, mask=3), wrap(bare, mask=3)
    assert model.body
    whole.body = ""
    assert bare.training
    ids = torch.randint(4, 17, (3, 7), generator=torch.Generator().manual_seed(2))
    attended = torch.ones_like(ids)
    attended[1, 4:] = attended[2, 6:] = 0
    batch = make_batch(model, ids.masked_fill(attended == 0, 0), attended)
    plain, quick = pseudo_log_likelihood(whole, batch), pseudo_log_likelihood(model, batch)
    torch.testing.assert_close(quick, plain, rtol=0, atol=1e-4)
    assert int((plain != 0).sum()) == int(attended.sum())


def test_a_model_with_other_scores_than_its_head_runs_as_one() -> None:
    from unforced.huggingface.wrap import wrap

    tf = pytest.importorskip("transformers")

    class Scaled(tf.BertForMaskedLM):  # type: ignore[misc]
        """Its scores depend on more than what its body gives."""

        def forward(self, input_ids: Any = None, **rest: Any) -> Any:
            output = super().forward(input_ids, **rest)
            output.logits = output.logits * (1.0 if input_ids is None else 1.5)
            return output

    sizes = {"vocab_size": 17, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}
    model = wrap(Scaled(tf.BertConfig(**sizes, num_hidden_layers=1, pad_token_id=0)), mask=3)
    assert not model.body
