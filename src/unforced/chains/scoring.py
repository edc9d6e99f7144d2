"""Score lines of text with a masked model: what ``unforced score`` does."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from unforced.chains.readers import Reader, Sentence
from unforced.energy import energies
from unforced.energy.energies import Kind
from unforced.energy.pseudo_log_likelihood import token_scores
from unforced.errors import InputError
from unforced.options import Count, check_value
from unforced.tasks.files import decode_line


class Score(NamedTuple):
    """Scores of a sentence under a masked model."""

    text: str
    energy_raw: float
    energy_local: float
    pseudo_log_likelihood: float
    tokens: list[tuple[str, float]]  # each token and its log-probability

    def energy(self, kind: Kind) -> float:
        return self.energy_raw if kind == "raw" else self.energy_local


def score_lines(
    reader: Reader, lines: Iterable[bytes], *, whole_words: bool = False, size: int = 32
) -> Iterator[Score]:
    """Yield the scores of UTF-8 lines in their order, computed ``size`` lines at a time.

    Raise `InputError` with the line number at an invalid line, after the scores of the lines before it.
    """
    check_value("batch", Count, size)
    waiting: list[Sentence] = []
    for number, line in enumerate(lines, start=1):
        try:
            waiting.append(reader.read(decode_line(line, number)))
        except InputError as error:
            yield from score_sentences(reader, waiting, whole_words)
            raise InputError(f"standard input:{number}: {error}") from None
        if len(waiting) == size:
            yield from score_sentences(reader, waiting, whole_words)
            waiting = []
    yield from score_sentences(reader, waiting, whole_words)


def score_sentences(reader: Reader, sentences: Sequence[Sentence], whole_words: bool) -> list[Score]:
    """Score sentences as one batch."""
    if not sentences:
        return []
    batch = reader.collate(sentences)
    words = reader.words(sentences, batch) if whole_words else None
    found = token_scores(reader.model, batch, words, reader.over)
    raw, local, total = found.energy("raw"), found.energy("local"), found.pseudo_log_likelihood
    free, scores = energies.variables(batch), []
    for row, sentence in enumerate(sentences):
        names = reader.token_names(batch.gold[row][free[row]].tolist())
        tokens = list(zip(names, found.log_probs[row][free[row]].tolist()))
        scores.append(Score(sentence.text, float(raw[row]), float(local[row]), float(total[row]), tokens))
    return scores
