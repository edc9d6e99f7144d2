"""Energies and pseudo-log-likelihoods of sequences under a masked model.

An energy is a sum over positions, each scored while it alone is masked (Goyal 2021, section 6.2):

    E_raw(y)   = −Σ_t f(y_t, h(y\\t))                      f: the model's score of token t
    E_local(y) = −Σ_t log softmax f(·, h(y\\t))[y_t]       normalised over the allowed tokens

The pseudo-log-likelihood is −E_local, or normalised over all tokens (Salazar et al. 2020). It can mask whole words.

Every position needs a copy of the sequence in which it is masked. Copies run in micro-batches of similar length.
Optional methods of a model (``unforced.protocols``: `SupportsFeatures`, `SupportsFeaturesAt`, `SupportsConditionals`,
`SupportsEncoding`) save work and do not change the results.

Shapes: B examples with K rows each, R = B·K rows with the K rows of an example adjacent, T positions, V tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.ops.masks import length_mask, widened
from unforced.options import check_value
from unforced.protocols import SupportsConditionals, SupportsEncoding, SupportsFeatures, SupportsFeaturesAt, require
from unforced.types import Batch, Symbols

Kind = Literal["raw", "local"]
ROWS = 256  # masked copies in a micro-batch


# ---- variables: the positions and tokens that an energy is a function of ----


def special_ids(symbols: Symbols) -> list[int]:
    """Return the ids that no variable takes: banned ids and the end symbol."""
    return sorted({*symbols.banned, *([] if symbols.eos is None else [symbols.eos])})


def allowed(symbols: Symbols, size: int, device: torch.device | str | None = None) -> Tensor:
    """Return a mask [V] of the ids below ``size`` that a variable may take.

    >>> allowed(Symbols(pad=0, bos=1, eos=2, banned=(0, 1)), 5)
    tensor([False, False, False,  True,  True])
    """
    mask = torch.ones(size, dtype=torch.bool, device=device)
    mask[[i for i in special_ids(symbols) if i < size]] = False
    return mask


def variables(batch: Batch) -> Tensor:
    """Return the positions [B,T] (bool) whose tokens vary: all but padding, the end symbol and other special tokens.

    >>> gold = torch.tensor([[5, 6, 2], [7, 2, 0]])
    >>> variables(Batch.of_gold(gold, gold != 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1))))
    tensor([[ True,  True, False],
            [ True, False, False]])
    """
    fixed = torch.tensor(special_ids(batch.symbols), dtype=torch.long, device=batch.gold.device)
    return batch.mask & ~torch.isin(batch.gold, fixed)


def canvas(batch: Batch, lengths: Tensor) -> Batch:
    """Replace the targets by placeholders with ``lengths`` [B] variables, followed by the end symbol if there is one.

    The placeholder is the first allowed id.

    >>> gold = torch.zeros(2, 1, dtype=torch.long)
    >>> batch = Batch.of_gold(gold, gold > 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1)))
    >>> canvas(batch, torch.tensor([2, 1])).gold
    tensor([[3, 3, 2],
            [3, 2, 0]])
    """
    symbols = batch.symbols
    excluded = {symbols.pad, *special_ids(symbols)}
    placeholder = next(i for i in range(len(excluded) + 1) if i not in excluded)
    sizes = lengths if symbols.eos is None else lengths + 1
    mask = length_mask(sizes, max(1, int(sizes.max())) if len(sizes) else 1)
    gold = torch.full(mask.shape, placeholder, dtype=torch.long, device=lengths.device)
    if symbols.eos is not None:
        gold.scatter_(1, lengths.unsqueeze(1), symbols.eos)
    gold = gold.masked_fill(~mask, symbols.pad)
    prefix = Batch.of_gold(gold, mask, symbols).prefix
    return replace(batch, prefix=prefix, gold=gold, mask=mask, length=None if batch.length is None else sizes)


def encode_sources(model: Any, batch: Batch) -> Batch:
    """Encode the sources once for many passes if the model supports it, else return the batch unchanged."""
    return model.encoded(batch) if isinstance(model, SupportsEncoding) else batch


def rows_per_example(batch: Batch, tokens: Tensor) -> int:
    """Return K for tokens [B·K,T]."""
    k, rest = divmod(len(tokens), max(1, len(batch)))
    if rest or tokens.shape[1:] != batch.gold.shape[1:]:
        raise InputError(
            f"tokens of shape {tuple(tokens.shape)} do not fit a batch of shape {tuple(batch.gold.shape)}: "
            "pass the same number of rows for each example"
        )
    return k


def example_of_row(batch: Batch, tokens: Tensor) -> Tensor:
    """Return the number of the example that each row belongs to: [R]."""
    return torch.arange(len(tokens), device=tokens.device) // max(1, rows_per_example(batch, tokens))


def repeat_examples(batch: Batch, k: int) -> Batch:
    """Repeat each example k times, copies adjacent."""
    if k == 1:
        return batch
    return batch.select(torch.arange(len(batch), device=batch.gold.device).repeat_interleave(k))


# ---- energies ----


class Terms(NamedTuple):
    """Terms of N sequences, and the features that they were computed from."""

    values: Tensor  # [N,T], the summands of −E
    features: Tensor  # [N,T,H], the model's features at each position while it is masked; H is 0 if they are not kept


def energy(model: Any, batch: Batch, tokens: Tensor, kind: Kind = "local", rows: int = ROWS) -> Tensor:
    """Return E(y) of each row of tokens [R,T]: [R]. Gradients flow."""
    return -terms(model, batch, tokens, kind, rows).sum(dim=1)


def terms(
    model: Any, batch: Batch, tokens: Tensor, kind: Kind = "local", rows: int = ROWS, where: Tensor | None = None
) -> Tensor:
    """Return the summands of −E at each position of tokens [R,T]: [R,T].

    They are 0 where there is no variable, and −inf for tokens that are not allowed. A mask ``where`` [R,T] restricts
    the computation to some variables; the others are 0. Gradients flow.
    """
    return terms_and_features(model, batch, example_of_row(batch, tokens), tokens, kind, rows, where).values


def terms_and_features(
    model: Any,
    batch: Batch,
    example: Tensor,
    tokens: Tensor,
    kind: Kind,
    rows: int = ROWS,
    where: Tensor | None = None,
    *,
    keep_features: bool = False,
) -> Terms:
    """Compute `terms` of rows [N,T] in any order, where row n belongs to example ``example[n]``.

    With ``keep_features`` the features are returned too, 0 where no term was computed.
    """
    check_value("kind", Kind, kind)
    wanted = variables(batch)[example]
    wanted = wanted if where is None else wanted & where
    row, position = wanted.nonzero(as_tuple=True)
    numbers, values, kept = [], [], []
    for part in score_positions(model, batch, example, tokens, wanted, partial(even_batches, rows=rows)):
        numbers.append(part.numbers)
        values.append(pick(part.scores, tokens[row[part.numbers], position[part.numbers]], kind, batch.symbols))
        if keep_features and part.features is not None:
            kept.append(part.features)
    found = _scatter(wanted, numbers, values)
    return Terms(found, _scatter(wanted, numbers, kept) if kept else no_features(tokens))


def no_features(tokens: Tensor) -> Tensor:
    """Return an empty tensor [N,T,0] for tokens [N,T]."""
    return torch.zeros(*tokens.shape, 0, device=tokens.device)


def pick(scores: Tensor, tokens: Tensor, kind: Kind, symbols: Symbols) -> Tensor:
    """Return the terms of tokens [...] from scores [...,V]; −inf for tokens that are not allowed.

    >>> symbols = Symbols(pad=0, bos=0, eos=None, banned=(0,))
    >>> pick(torch.tensor([[9.0, 1.0, 1.0]]), torch.tensor([2]), "local", symbols)
    tensor([-0.6931])
    """
    scores = widened(scores)
    mask = allowed(symbols, scores.shape[-1], scores.device)
    if kind == "local":  # log_softmax is faster than logsumexp
        scores = scores.masked_fill(~mask, -torch.inf).log_softmax(dim=-1)
    chosen = scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return chosen.masked_fill(~mask[tokens], -torch.inf)


# ---- scores of masked copies, in micro-batches ----

Batching = Callable[[Tensor], Iterator[tuple[Tensor, int]]]  # sizes [N] -> numbers [n] and largest size of each part
Masks = Callable[[Tensor, Tensor, int], Tensor]  # rows [n], positions [n,P], size -> what is masked [n,size]


class Scored(NamedTuple):
    """Scores of a micro-batch; P is absent where single positions are scored."""

    numbers: Tensor  # [n], which copies or positions
    scores: Tensor  # [n,P,V]
    features: Tensor | None  # [n,P,H], if the model has features


def scores_at(
    model: Any,
    batch: Batch,
    tokens: Tensor,
    row: Tensor,
    positions: Tensor,
    valid: Tensor | None = None,
    rows: int = ROWS,
) -> Tensor:
    """Score blocks of positions that are masked together: ``positions[n]`` of ``tokens[row[n]]``, [N,P] -> [N,P,V].

    A mask ``valid`` [N,P] tells which positions a block has; the first is always valid. Other results are arbitrary.
    """
    if valid is not None:  # masking the first position twice does no harm
        positions = torch.where(valid, positions, positions[:, :1])
    batching = partial(even_batches, rows=rows)
    parts = list(score_copies(model, batch, example_of_row(batch, tokens), tokens, row, positions, batching))
    order = torch.cat([part.numbers for part in parts]).argsort()
    return torch.cat([part.scores for part in parts]).index_select(0, order)


def score_copies(
    model: Any,
    batch: Batch,
    example: Tensor,
    tokens: Tensor,
    row: Tensor,
    positions: Tensor,
    batching: Batching,
    masks: Masks | None = None,
) -> Iterator[Scored]:
    """Run one copy of ``tokens[row[n]]`` per block of positions [N,P], and score the block.

    ``example`` [R] tells which example of the batch each row of tokens belongs to. The block itself is masked unless
    ``masks`` is passed.
    """
    batch = encode_sources(model, batch)
    for numbers, size in batching(extents(batch)[example[row]]):
        where, which = positions[numbers], row[numbers]
        if masks is None:
            masked = torch.zeros(len(numbers), size, dtype=torch.bool, device=tokens.device).scatter_(1, where, True)
        else:
            masked = masks(which, where, size)
        part, inputs = trim(batch.select(example[which]), size), tokens[which, :size]
        number = torch.arange(len(numbers), device=tokens.device).unsqueeze(1)
        if isinstance(model, SupportsFeaturesAt):
            features = model.features_at(part, inputs, masked, where)
        elif isinstance(model, SupportsFeatures):
            features = model.features(part, inputs, masked)[number, where]
        else:
            yield Scored(numbers, model.scores(part, inputs, masked)[number, where], None)
            continue
        yield Scored(numbers, model.score(features), features)


def score_positions(
    model: Any,
    batch: Batch,
    example: Tensor,
    tokens: Tensor,
    where: Tensor,
    batching: Batching,
    masks: Masks | None = None,
) -> Iterator[Scored]:
    """Score each of the N positions in the mask ``where`` [R,T] by itself: scores [n,V] in each part.

    The position alone is masked unless ``masks`` is passed.
    """
    row, position = where.nonzero(as_tuple=True)
    if not len(row):
        return
    if masks is not None or not isinstance(model, SupportsConditionals):
        for part in score_copies(model, batch, example, tokens, row, position.unsqueeze(1), batching, masks):
            features = None if part.features is None else part.features.squeeze(1)
            yield Scored(part.numbers, part.scores.squeeze(1), features)
        return
    batch = encode_sources(model, batch)  # one pass scores all positions of a row
    present, counts = row.unique_consecutive(return_counts=True)
    first = counts.cumsum(0) - counts
    for numbers, size in batching(extents(batch)[example[present]]):
        which, n = present[numbers], counts[numbers]
        scores = model.conditional_scores(trim(batch.select(example[which]), size), tokens[which, :size])
        local = torch.arange(len(which), device=row.device).repeat_interleave(n)
        within = torch.arange(len(local), device=row.device) - (n.cumsum(0) - n)[local]
        found = first[numbers][local] + within
        yield Scored(found, scores[local, position[found]], None)


def _scatter(where: Tensor, numbers: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
    """Put the values [n,…] of numbered positions of ``where`` [R,T] into a tensor [R,T,…] of zeros."""
    if not numbers:
        return torch.zeros(where.shape, device=where.device)
    row, position = where.nonzero(as_tuple=True)
    order, flat = torch.cat(list(numbers)), torch.cat(list(values))
    return flat.new_zeros(*where.shape, *flat.shape[1:]).index_put((row[order], position[order]), flat)


def even_batches(sizes: Tensor, rows: int) -> Iterator[tuple[Tensor, int]]:
    """Split sequences by size into equal parts of at most ``rows``: yield their numbers and the largest size."""
    if rows < 1:
        raise InputError(f"rows must be at least 1, got {rows}")
    order = sizes.argsort(descending=True, stable=True)
    parts = max(1, -(-len(order) // rows))
    for numbers in order.split(max(1, -(-len(order) // parts))):
        yield numbers, int(sizes[numbers[0]]) if len(numbers) else 1


def token_batches(sizes: Tensor, tokens: int) -> Iterator[tuple[Tensor, int]]:
    """Split sequences by size into parts of at most ``tokens`` tokens with padding, or of one sequence.

    >>> [(numbers.tolist(), size) for numbers, size in token_batches(torch.tensor([2, 9, 3, 4]), 8)]
    [([1], 9), ([3, 2], 4), ([0], 2)]
    """
    if tokens < 1:
        raise InputError(f"tokens must be at least 1, got {tokens}")
    order = sizes.argsort(descending=True, stable=True)
    done = 0
    while done < len(order):
        size = int(sizes[order[done]])
        count = max(1, tokens // max(1, size))
        yield order[done : done + count], size
        done += count


def extents(batch: Batch) -> Tensor:
    """Return the number of columns that each example needs, up to its last token: [B]."""
    mask = batch.mask
    if batch.source_mask is not None and _source_is_prefix(batch):
        mask = mask | batch.source_mask
    columns = torch.arange(1, mask.shape[1] + 1, device=mask.device)
    return (mask * columns).amax(dim=1).clamp(min=1)


def trim(batch: Batch, size: int) -> Batch:
    """Drop the columns from ``size`` on, which are padding."""
    if size >= batch.gold.shape[1]:
        return batch
    short = replace(batch, prefix=batch.prefix[:, :size], gold=batch.gold[:, :size], mask=batch.mask[:, :size])
    if batch.source is not None and batch.source_mask is not None and _source_is_prefix(batch):
        short = replace(short, source=batch.source[:, :size], source_mask=batch.source_mask[:, :size])
    return short


def _source_is_prefix(batch: Batch) -> bool:
    """Return whether the source is the sequence itself, as for masked models of Hugging Face."""
    source, mask = batch.source, batch.source_mask
    if source is None or mask is None or source.shape != batch.prefix.shape:
        return False
    return torch.equal(source, batch.prefix)


# ---- pseudo-log-likelihood ----

Masking = Literal["single", "left_to_right", "whole"]
Over = Literal["all", "allowed"]
TOKENS = 4096  # tokens of masked copies in a micro-batch


class TokenScores(NamedTuple):
    """Scores of the target tokens, [B,T] each; 0 where there is no variable."""

    raw: Tensor  # scores; E_raw = −Σ
    local: Tensor  # log-softmax over the allowed tokens; E_local = −Σ
    log_probs: Tensor  # log-softmax with the chosen masking; the pseudo-log-likelihood is Σ

    def energy(self, kind: Kind) -> Tensor:
        """Return the energy of each sequence: [B]."""
        return -(self.raw if kind == "raw" else self.local).double().sum(dim=1)

    @property
    def pseudo_log_likelihood(self) -> Tensor:
        """The pseudo-log-likelihood of each sequence: [B]."""
        return self.log_probs.double().sum(dim=1)


def token_scores(
    model: Any,
    batch: Batch,
    words: Tensor | None = None,
    masking: Masking = "single",
    over: Over = "all",
    tokens: int = TOKENS,
) -> TokenScores:
    """Compute both energies and the pseudo-log-likelihood of the targets, token by token.

    Energies always mask single tokens. Probabilities are over all tokens or the ``allowed`` ones, with ``masking``:

    - "single": each token alone.
    - "left_to_right": a token with all later tokens of its word (PLL-word-l2r of Kauf and Ivanova 2023).
    - "whole": all tokens of a word together (PLL-whole-word). Tokens of a word otherwise predict each other.

    ``words`` [B,T] numbers the word of each token, −1 for none. A micro-batch has at most ``tokens`` tokens, or one copy.
    """
    blocks = _checked(model, batch, words, masking, over)
    with evaluation_mode(model):

        def measure(scores: Tensor, gold: Tensor) -> Tensor:
            raw, local = pick(scores, gold, "raw", batch.symbols), pick(scores, gold, "local", batch.symbols)
            return torch.stack([raw, local, local if over == "allowed" else _log_softmax_at(scores, gold)], dim=1)

        raw, local, log_probs = _measure(model, batch, variables(batch), None, measure, 3, tokens).unbind(dim=2)
        if blocks is not None:
            again = blocks.several()
            log_prob = _log_prob(over, batch.symbols)
            found = _measure(model, batch, again, blocks, log_prob, 1, tokens).squeeze(2)
            log_probs = torch.where(again, found, log_probs)
    return TokenScores(raw, local, log_probs)


def pseudo_log_likelihood(
    model: Any,
    batch: Batch,
    words: Tensor | None = None,
    masking: Masking = "single",
    over: Over = "all",
    tokens: int = TOKENS,
) -> Tensor:
    """Return the log-probability of each target token, [B,T]: ``token_scores(…).log_probs`` without the energies."""
    blocks = _checked(model, batch, words, masking, over)
    with evaluation_mode(model):
        log_prob = _log_prob(over, batch.symbols)
        return _measure(model, batch, variables(batch), blocks, log_prob, 1, tokens).squeeze(2)


class WordBlocks(NamedTuple):
    """Tokens that are masked together because they belong to one word."""

    free: Tensor  # [B,T] bool, the variables
    words: Tensor  # [B,T] long, the number of each token's word; −1 for none
    left_to_right: bool  # mask only the later tokens of a word

    def several(self) -> Tensor:
        """Return the positions [B,T] (bool) that are not masked alone."""
        inside = self.free & (self.words >= 0)
        word, rows = torch.where(inside, self.words, 0), len(self.words)
        columns = torch.arange(word.shape[1], device=word.device).expand_as(word)

        def extreme(start: int, how: str) -> Tensor:
            """Return the first or last column of each token's word: [B,T]."""
            found = word.new_full((rows, int(word.max()) + 1), start)
            return found.scatter_reduce(1, word, torch.where(inside, columns, start), how).gather(1, word)

        first = columns if self.left_to_right else extreme(word.shape[1], "amin")
        return inside & (first < extreme(-1, "amax"))

    def masks(self, row: Tensor, positions: Tensor, size: int) -> Tensor:
        """Return what is masked while token ``positions[n,0]`` of ``row[n]`` is scored: [n,size] bool.

        >>> free = torch.tensor([[True, True, True]])
        >>> rows, positions = torch.tensor([0, 0, 0]), torch.tensor([[0], [1], [2]])
        >>> WordBlocks(free, torch.tensor([[0, 0, 1]]), left_to_right=True).masks(rows, positions, 3).int()
        tensor([[1, 1, 0],
                [0, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
        """
        word, columns = self.words[row].gather(1, positions), torch.arange(size, device=row.device)
        same = (self.words[row, :size] == word) & (word >= 0) & self.free[row, :size]
        if self.left_to_right:
            same = same & (columns >= positions)
        return same | (columns == positions)


def _checked(model: Any, batch: Batch, words: Tensor | None, masking: Masking, over: Over) -> WordBlocks | None:
    """Check the arguments; return the blocks, None if every token is masked alone."""
    require(model, "scoring", "scores")
    check_value("over", Over, over)
    check_value("masking", Masking, masking)
    if masking == "single":
        return None
    if words is None:
        raise InputError(f'masking "{masking}" needs the words that tokens belong to')
    return WordBlocks(variables(batch), words, masking == "left_to_right")


Measure = Callable[[Tensor, Tensor], Tensor]  # scores [n,V] and tokens [n] -> [n,K]


def _measure(
    model: Any, batch: Batch, where: Tensor, blocks: WordBlocks | None, measure: Measure, width: int, tokens: int
) -> Tensor:
    """Apply ``measure`` to the scores of the target tokens in the mask ``where`` [B,T]: [B,T,K] with K = ``width``."""
    row, position = where.nonzero(as_tuple=True)
    example, batching = torch.arange(len(batch), device=row.device), partial(token_batches, tokens=tokens)
    masks = None if blocks is None else blocks.masks
    numbers, values = [], []
    for part in score_positions(model, batch, example, batch.gold, where, batching, masks):
        numbers.append(part.numbers)
        values.append(measure(part.scores, batch.gold[row[part.numbers], position[part.numbers]]))
    return _scatter(where, numbers, values) if numbers else torch.zeros(*where.shape, width, device=row.device)


def _log_prob(over: Over, symbols: Symbols) -> Measure:
    if over == "all":
        return lambda scores, gold: _log_softmax_at(scores, gold).unsqueeze(1)
    return lambda scores, gold: pick(scores, gold, "local", symbols).unsqueeze(1)


def _log_softmax_at(scores: Tensor, gold: Tensor) -> Tensor:
    """Return the log-probabilities of tokens [n] over all tokens, from scores [n,V]: [n]."""
    scores = widened(scores)
    return scores.gather(1, gold.unsqueeze(1)).squeeze(1) - scores.logsumexp(dim=1)
