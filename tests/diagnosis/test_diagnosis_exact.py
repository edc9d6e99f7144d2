"""Every measurement of a diagnosis on models whose answer is known by counting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from unforced.diagnosis.confidence import measure_confidence
from unforced.diagnosis.history import aligned_cut, measure_history
from unforced.diagnosis.normalisation import measure_normalisation
from unforced.diagnosis.ranking import measure_ranking
from unforced.diagnosis.search_errors import measure_search
from unforced.diagnosis.subject import Subject
from unforced.metrics.tagging import TokenAccuracy
from unforced.metrics.text import ErrorRate
from unforced.protocols import FittedTask
from unforced.tasks.codecs import PairCodec, TagCodec
from unforced.tasks.tokenization import TextCoder, Vocabulary
from unforced.types import Batch, DecoderState, Example

NEVER = -30.0  # the score of a token that a model excludes


class Table(nn.Module):
    """A tagger that reads its input one symbol at a time: score(y_t = w) = table[y_{t−1}, x_t, w]."""

    def __init__(self, codec: TagCodec, scores: Mapping[tuple[str, str], Mapping[str, float]]) -> None:
        super().__init__()
        tags, words = codec.tags, codec.words
        self.table = nn.Parameter(torch.full((len(tags), len(words), len(tags)), NEVER, dtype=torch.float64))
        with torch.no_grad():
            for (before, word), row in scores.items():
                first = codec.symbols.bos if before == "" else tags.encode([before], eos=False)[0]
                for tag, score in row.items():
                    self.table[first, words.encode([word], eos=False)[0], tags.encode([tag], eos=False)[0]] = score

    def start(self, batch: Batch) -> DecoderState:
        assert batch.source is not None
        return DecoderState(None, (batch.source, torch.zeros((), dtype=torch.long)))

    def embed(self, ids: Tensor) -> Tensor:
        return ids.unsqueeze(-1)

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        source, t = state.shared
        steps = (t + torch.arange(inputs.shape[1])).clamp(max=source.shape[1] - 1)
        return torch.cat([inputs, source[:, steps].unsqueeze(-1)], dim=-1), DecoderState(
            None, (source, t + inputs.shape[1])
        )

    def score(self, features: Tensor) -> Tensor:
        return self.table[features[..., 0], features[..., 1]]


@dataclass(frozen=True)
class Labels:
    """A task that has nothing but its metric."""

    def metrics(self) -> tuple[TokenAccuracy]:
        return (TokenAccuracy(),)


def tagger(scores: Mapping[tuple[str, str], Mapping[str, float]], examples: Sequence[tuple[str, str]]) -> Subject:
    """A table with these scores, and examples as pairs of words and tags, a letter each."""
    pairs = [Example(tuple(words), tuple(tags)) for words, tags in examples]
    tags = {tag for _, row in scores.items() for tag in row}
    codec = TagCodec(
        Vocabulary.learn([word for pair in pairs for word in pair.source], eos=False),
        Vocabulary.learn([sorted(tags)], eos=False),
    )
    return Subject(Table(codec, scores), FittedTask(Labels(), codec), pairs)  # type: ignore[arg-type]


def test_a_model_without_history_has_no_exposure_gap() -> None:
    row = {"A": 1.0, "B": 0.5}
    scores = {(before, word): row for before in ("", "A", "B") for word in "xy"}
    finding = measure_history(tagger(scores, [("xyxy", "ABBA"), ("yyyy", "BBBB")] * 40))
    assert finding.headroom == (0.0, 0.0, 0.0)
    assert all(point["points"] == 0 for point in finding.details["by_position"])
    assert finding.details["recovery"]
    assert all(step["log_prob"]["points"] == step["accuracy"]["points"] == 0 for step in finding.details["recovery"])


def test_a_copied_first_mistake_costs_every_position_after_it() -> None:
    """The first tag is A in half of the examples, and the model always says A; all other tags repeat the one before."""
    keep = {"A": {"A": 9.0, "B": 0.0}, "B": {"A": 0.0, "B": 9.0}}
    scores = {("", "x"): {"A": 1.0, "B": 0.0}} | {(tag, "x"): row for tag, row in keep.items()}
    finding = measure_history(tagger(scores, [("xxxx", "AAAA"), ("xxxx", "BBBB")] * 40))
    assert finding.headroom.value == pytest.approx(100 * (0.5 + 3) / 4 - 50)
    assert [point["points"] for point in finding.details["by_position"]] == [0.0, 50.0, 50.0, 50.0]
    assert [point["gold"] for point in finding.details["by_position"]] == [50.0, 100.0, 100.0, 100.0]
    first, *later = finding.details["recovery"]  # the only mistakes are at the first position of BBBB
    assert first["distance"] == 1
    assert first["accuracy"]["points"] == -100.0
    assert first["log_prob"]["points"] == pytest.approx(-9.0)  # log p(B | A) − log p(B | B)
    assert [step["accuracy"]["points"] for step in later] == [0.0, 0.0]  # only one token of the history changes


def test_evidence_that_normalisation_removes_is_found() -> None:
    """The model of Lafferty et al. (2001): rib → 123, rob → 453. After 1 only 2 is possible, after 4 only 5.

    The first tag is decided before the vowel is read. The scores of the second tag know the vowel, but its probability
    is one after either first tag.
    """
    scores = {
        ("", "r"): {"1": 0.2, "4": 0.0},
        ("1", "i"): {"2": 5.0}, ("1", "o"): {"2": -5.0}, ("4", "i"): {"5": -5.0}, ("4", "o"): {"5": 5.0},
        ("2", "b"): {"3": 1.0}, ("5", "b"): {"3": 1.0},
    }  # fmt: skip
    finding = measure_normalisation(tagger(scores, [("rib", "123"), ("rob", "453")] * 30))
    assert finding.headroom.value == pytest.approx(100 - 100 * (3 + 1) / 6)
    widest = finding.details["by_width"][-1]
    assert widest["log_probs"]["points"] == pytest.approx(100 * 4 / 6)
    assert widest["raw"]["points"] == pytest.approx(100 * 2 / 6)
    assert finding.details["by_width"][0]["raw"]["points"] == 0.0  # greedy search decides too early either way
    leaves = {entry["width"]: entry for entry in finding.details["gold_leaves_beam"]}
    assert leaves[1] == {"width": 1, "examples": 50.0, "after": 0.0}
    assert leaves[16]["examples"] == 0.0


def test_a_normalised_model_has_no_label_bias() -> None:
    """All scores are log-probabilities, so log Z is zero and no weight of it changes anything."""
    half = float(torch.tensor(0.5).log())
    scores = {(before, word): {"A": half, "B": half} for before in ("", "A", "B") for word in "xy"}
    finding = measure_normalisation(tagger(scores, [("xyxy", "ABBA"), ("yyyy", "BBAB")] * 20))
    assert finding.headroom == (0.0, 0.0, 0.0)
    assert finding.details["log_z"]["mean"] == pytest.approx(0.0, abs=1e-9)
    assert finding.details["log_z"]["variance"] == pytest.approx(0.0, abs=1e-9)


def test_planted_search_errors_are_counted() -> None:
    """A beam of 4 drops the best first tag, one of 8 does not.

    Five first tags of 0.17 lead to ten equal ones; B, of 0.15, leads to one.
    """
    many = dict.fromkeys("0123456789", 0.0)
    first = {tag: float(torch.tensor(0.17).log()) for tag in "VWXYZ"} | {"B": float(torch.tensor(0.15).log())}
    scores = {("", "x"): first, ("B", "x"): {"0": 0.0}} | {(tag, "x"): many for tag in "VWXYZ"}
    finding = measure_search(tagger(scores, [("xx", "B0"), ("xx", "V1")] * 30))
    widths = {entry["width"]: entry for entry in finding.details["by_width"]}
    assert [widths[w]["search_errors"] for w in (1, 2, 4, 8)] == [50.0, 50.0, 50.0, 0.0]
    assert [widths[w]["model_errors"] for w in (1, 2, 4, 8)] == [50.0, 50.0, 50.0, 50.0]
    # a beam of 4 finds V0: half right for V1, and one in two for B0, which the repair makes two in two
    assert widths[4]["score"]["points"] == pytest.approx(50.0)
    assert finding.headroom.value == pytest.approx(25.0)


def test_ranking_counts_the_best_of_the_n_best() -> None:
    """The n best hold the target if it is among the first n tags by probability."""
    row = {"A": 1.0, "B": 0.9, "C": 0.8, "D": 0.7, "E": 0.6}
    finding = measure_ranking(tagger({("", "x"): row}, [("x", tag) for tag in "ABCDE"] * 20))
    found = {entry["outputs"]: entry["best"]["points"] for entry in finding.details["nbest"]}
    assert finding.details["first"] == pytest.approx(20.0)
    assert found == pytest.approx({2: 20.0, 4: 60.0, 8: 80.0, 16: 80.0})
    assert finding.headroom.value == pytest.approx(60.0)
    means = {entry["outputs"]: entry["mean"]["points"] for entry in finding.details["nbest"]}
    assert means[4] == pytest.approx(0.0)  # every tag is right as often as the first


def test_temperature_and_calibration_of_a_known_model() -> None:
    """The model gives 0.9 to a tag that is right in 3 of 4 cases: T = log 9 / log 3 = 2 repairs it."""
    nine = float(torch.tensor(9.0).log())
    finding = measure_confidence(tagger({("", "x"): {"A": nine, "B": 0.0}}, [("x", tag) for tag in "AAAAABAB"] * 50))
    assert finding.details["temperature"] == 2.0
    assert finding.details["calibration_error"]["points"] == pytest.approx(15.0, abs=1e-4)
    before = -(0.75 * torch.tensor(0.9).log() + 0.25 * torch.tensor(0.1).log())
    after = -(0.75 * torch.tensor(0.75).log() + 0.25 * torch.tensor(0.25).log())
    assert finding.headroom.value == pytest.approx(float(before - after), abs=3e-3)
    assert [entry["tokens"] for entry in finding.details["reliability"]] == [400.0]


def test_the_cut_follows_the_alignment() -> None:
    assert aligned_cut([1, 2, 3, 4], [1, 2, 3, 4], 2) == 2
    assert aligned_cut([1, 2, 3, 4], [3, 4], 2) == 0
    assert aligned_cut([1, 2], [1], 1) == 1


class Speller(nn.Module):
    """A model of text whose next token depends on the last token alone: score(w) = table[y_{t−1}, w]."""

    def __init__(self, size: int, follows: Mapping[int, int]) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(size, size, dtype=torch.float64))
        with torch.no_grad():
            for before, after in follows.items():
                self.table[before, after] = 9.0

    def start(self, batch: Batch) -> DecoderState:
        return DecoderState(None, None)

    def embed(self, ids: Tensor) -> Tensor:
        return nn.functional.one_hot(ids, self.table.shape[0]).to(self.table.dtype)

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        return inputs, state

    def score(self, features: Tensor) -> Tensor:
        return features @ self.table


@dataclass(frozen=True)
class Text:
    def metrics(self) -> tuple[ErrorRate]:
        return (ErrorRate("error"),)


def test_free_lengths_compare_the_rest_of_the_output() -> None:
    """The model spells a b c d from <bos>, and w x y z after w. Targets are both, so own output is right for one only.

    Given any part of the target, the rest is right. Without, the rest of w x y z is that of a b c d: all wrong.
    """
    pairs = [Example("s", "a b c d"), Example("s", "w x y z")] * 30
    target = TextCoder.learn([pair.target for pair in pairs], "words")
    codec = PairCodec(TextCoder.learn(["s"], "words"), target)
    ids = {token: target.encode(token, eos=False)[0] for token in "abcdwxyz"}
    chain = [codec.symbols.bos, *(ids[token] for token in "abcd"), codec.symbols.eos]
    other = [*(ids[token] for token in "wxyz"), codec.symbols.eos]
    follows = {**dict(pairwise(other)), **dict(pairwise(chain))}
    subject = Subject(Speller(codec.sizes.target, follows), FittedTask(Text(), codec), pairs)  # type: ignore[arg-type]
    finding = measure_history(subject)
    assert [(cut["given"], cut["own"], cut["gold"]) for cut in finding.details["by_cut"]] == [
        (0.25, 50.0, 0.0), (0.5, 50.0, 0.0), (0.75, 50.0, 0.0),
    ]  # fmt: skip
    assert finding.headroom.value == pytest.approx(50.0)
