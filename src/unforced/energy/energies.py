"""Energies of sequences from masked models (Goyal 2021, section 6.2).

    E_raw(y)   = −Σ_t f(y_t, h(y\\t))                      the raw score of token t while t alone is masked
    E_local(y) = −Σ_t log softmax f(·, h(y\\t))[y_t]       the same, normalised among the tokens that are allowed

Both need a copy of y for each position, with that position masked. The copies of all sequences are run together in
micro-batches of bounded size, those of like length beside each other, so that little of a micro-batch is padding.

Rows are those of ``unforced.types``: R = B·K, the K rows of an example adjacent. Beside ``scores`` a model may offer,
each with the same results and less work,

- ``features`` and ``score``, which make up ``scores``: only the features at positions that are asked for are scored then;
  or ``features_at(batch, tokens, masked, positions [R,P]) -> [R,P,H]`` beside ``score``, which makes no others at all;
- ``conditional_scores(batch, tokens [R,T]) -> [R,T,V]``: the scores at each position while it alone is masked;
- ``encoded(batch) -> Batch``: the same batch with its sources encoded, which its other methods take as they take any.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from unforced.errors import InputError
from unforced.ops.masks import length_mask, widened
from unforced.options import check_value
from unforced.types import Batch, Symbols

Kind = Literal["raw", "local"]
ROWS = 256  # masked copies that a model is given at once


def special(symbols: Symbols) -> list[int]:
    """The ids that no variable takes: those that are banned, and the end symbol."""
    return sorted({*symbols.banned, *([] if symbols.eos is None else [symbols.eos])})


def allowed(symbols: Symbols, size: int, device: torch.device | str | None = None) -> Tensor:
    """Of ``size`` token ids, those that a variable may take: [V] bool.

    >>> allowed(Symbols(pad=0, bos=1, eos=2, banned=(0, 1)), 5)
    tensor([False, False, False,  True,  True])
    """
    kept = torch.ones(size, dtype=torch.bool, device=device)
    kept[[i for i in special(symbols) if i < size]] = False
    return kept


def variables(batch: Batch) -> Tensor:
    """The positions whose tokens the energy is a function of: [B,T] bool.

    They are those that count, but for the end symbol and other special tokens: the length of a sequence is given, and
    its end stands where it stands.

    >>> gold = torch.tensor([[5, 6, 2], [7, 2, 0]])
    >>> variables(Batch.of_gold(gold, gold != 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1))))
    tensor([[ True,  True, False],
            [ True, False, False]])
    """
    fixed = torch.tensor(special(batch.symbols), dtype=torch.long, device=batch.gold.device)
    return batch.mask & ~torch.isin(batch.gold, fixed)


def canvas(batch: Batch, lengths: Tensor) -> Batch:
    """The examples with room for outputs of ``lengths`` [B] variables each, and the end symbol behind them if there is one.

    What stands in their place is the first id that is allowed.

    >>> gold = torch.zeros(2, 1, dtype=torch.long)
    >>> batch = Batch.of_gold(gold, gold > 0, Symbols(pad=0, bos=1, eos=2, banned=(0, 1)))
    >>> canvas(batch, torch.tensor([2, 1])).gold
    tensor([[3, 3, 2],
            [3, 2, 0]])
    """
    symbols = batch.symbols
    taken = {symbols.pad, *special(symbols)}
    filler = next(i for i in range(len(taken) + 1) if i not in taken)
    whole = lengths if symbols.eos is None else lengths + 1
    mask = length_mask(whole, max(1, int(whole.max())) if len(whole) else 1)
    gold = torch.full(mask.shape, filler, dtype=torch.long, device=lengths.device)
    if symbols.eos is not None:
        gold.scatter_(1, lengths.unsqueeze(1), symbols.eos)
    gold = gold.masked_fill(~mask, symbols.pad)
    made = Batch.of_gold(gold, mask, symbols)
    return replace(batch, prefix=made.prefix, gold=gold, mask=mask, length=None if batch.length is None else whole)


def prepare(model: Any, batch: Batch) -> Batch:
    """The batch with its sources encoded, where the model offers that; else as it is."""
    own: Callable[[Batch], Batch] | None = getattr(model, "encoded", None)
    return batch if own is None else own(batch)


def copies(batch: Batch, tokens: Tensor) -> int:
    """K, the number of rows an example has."""
    k, rest = divmod(len(tokens), max(1, len(batch)))
    if rest or tokens.shape[1:] != batch.gold.shape[1:]:
        raise InputError(
            f"tokens of shape {tuple(tokens.shape)} are no rows of a batch of shape {tuple(batch.gold.shape)}"
        )
    return k


def examples(batch: Batch, tokens: Tensor) -> Tensor:
    """The example that each row belongs to: [R]."""
    return torch.arange(len(tokens), device=tokens.device) // max(1, copies(batch, tokens))


def expand(batch: Batch, k: int) -> Batch:
    """A batch with each example k times, adjacent."""
    if k == 1:
        return batch
    return batch.select(torch.arange(len(batch), device=batch.gold.device).repeat_interleave(k))


def at(model: Any, batch: Batch, tokens: Tensor, row: Tensor, position: Tensor, rows: int = ROWS) -> Tensor:
    """The scores of all tokens at single positions while these are masked: position[n] of tokens[row[n]], [N,V].

    ``tokens`` is [R,T], ``row`` and ``position`` are [N]; at most ``rows`` masked copies are run at once.
    """
    return at_blocks(model, batch, tokens, row, position.unsqueeze(1), None, rows).squeeze(1)


def at_blocks(
    model: Any,
    batch: Batch,
    tokens: Tensor,
    row: Tensor,
    positions: Tensor,
    valid: Tensor | None = None,
    rows: int = ROWS,
) -> Tensor:
    """The scores at blocks of positions that are masked together: positions[n] of tokens[row[n]], [N,P] -> [N,P,V].

    ``valid`` [N,P] says which of the positions a block has (all if None); the first always. What stands at the others in
    the result means nothing.
    """
    parts = list(block_parts(model, batch, examples(batch, tokens), tokens, row, positions, valid, rows))
    order = torch.cat([numbers for numbers, _, _ in parts])
    return torch.cat([scores for _, scores, _ in parts]).index_select(0, order.argsort())


def terms(
    model: Any, batch: Batch, tokens: Tensor, kind: Kind = "local", rows: int = ROWS, where: Tensor | None = None
) -> Tensor:
    """What each position adds to −E, [R,T]: the score of its token while it alone is masked, raw or normalised.

    It is 0 at what isn't a variable. ``where`` [R,T] bool asks for some of the variables only, the others being 0 as well.
    Tokens that aren't allowed have −inf. Gradients flow.
    """
    return terms_of(model, batch, examples(batch, tokens), tokens, kind, rows, where)


def terms_of(
    model: Any, batch: Batch, example: Tensor, tokens: Tensor, kind: Kind, rows: int = ROWS, where: Tensor | None = None
) -> Tensor:
    """``terms`` of rows [N,T] in any order and number; ``example`` [N] says which example of the batch each belongs to."""
    return found_of(model, batch, example, tokens, kind, rows, where).terms


class Found(NamedTuple):
    """What masked copies of rows came to."""

    terms: Tensor  # [N,T], what each position adds to −E
    features: Tensor  # [N,T,H], what the model scores it from; H is 0 where a model has no features, or none are kept


def found_of(
    model: Any,
    batch: Batch,
    example: Tensor,
    tokens: Tensor,
    kind: Kind,
    rows: int = ROWS,
    where: Tensor | None = None,
    *,
    keep: bool = False,
) -> Found:
    """``terms_of``, and with ``keep`` the features that they were scored from, 0 where no term was asked for."""
    check_value("kind", Kind, kind)
    batch = prepare(model, batch)
    wanted = variables(batch)[example]
    row, position = (wanted if where is None else wanted & where).nonzero(as_tuple=True)
    if not len(row):
        return Found(torch.zeros(tokens.shape, device=tokens.device), no_features(tokens))
    whole = callable(getattr(model, "conditional_scores", None))
    numbers, values, kept = [], [], []
    for part, scores, features in (_all_parts if whole else _single_parts)(
        model, batch, example, tokens, row, position, rows
    ):
        numbers.append(part)
        values.append(pick(scores, tokens[row[part], position[part]], kind, batch.symbols))
        if keep and features is not None:
            kept.append(features)
    order, flat = torch.cat(numbers), torch.cat(values)
    places = (row[order], position[order])
    terms = flat.new_zeros(tokens.shape).index_put(places, flat)
    if not kept:
        return Found(terms, no_features(tokens))
    joined = torch.cat(kept)
    return Found(terms, joined.new_zeros(*tokens.shape, joined.shape[1]).index_put(places, joined))


def no_features(tokens: Tensor) -> Tensor:
    """[N,T,0]."""
    return torch.zeros(*tokens.shape, 0, device=tokens.device)


def energy(model: Any, batch: Batch, tokens: Tensor, kind: Kind = "local", rows: int = ROWS) -> Tensor:
    """E(y) of each row of tokens [R,T]: [R], minus the sum of its terms. Gradients flow."""
    return -terms(model, batch, tokens, kind, rows).sum(dim=1)


def pick(scores: Tensor, tokens: Tensor, kind: Kind, symbols: Symbols) -> Tensor:
    """The terms of tokens [...] among scores [...,V]; −inf for tokens that aren't allowed.

    >>> symbols = Symbols(pad=0, bos=0, eos=None, banned=(0,))
    >>> pick(torch.tensor([[9.0, 1.0, 1.0]]), torch.tensor([2]), "local", symbols)
    tensor([-0.6931])
    """
    scores = widened(scores)
    kept = allowed(symbols, scores.shape[-1], scores.device)
    if kind == "local":  # log_softmax is some times as fast as logsumexp
        scores = scores.masked_fill(~kept, -torch.inf).log_softmax(dim=-1)
    chosen = scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return chosen.masked_fill(~kept[tokens], -torch.inf)


Part = tuple[Tensor, Tensor, Tensor | None]  # numbers [n] of some of what was asked for, scores, features if any


def block_parts(
    model: Any,
    batch: Batch,
    example: Tensor,
    tokens: Tensor,
    row: Tensor,
    positions: Tensor,
    valid: Tensor | None,
    rows: int,
) -> Iterator[Part]:
    """``at_blocks`` in micro-batches, long sequences first: numbers [n] of some blocks, scores [n,P,V], features [n,P,H].

    ``example`` [R] says which example of the batch a row of tokens belongs to.
    """
    batch = prepare(model, batch)
    if valid is not None:  # masking the first position twice does no harm
        positions = torch.where(valid, positions, positions[:, :1])
    for numbers, size in alike(extents(batch)[example[row]], rows):
        here, which = positions[numbers], row[numbers]
        masked = torch.zeros(len(numbers), size, dtype=torch.bool, device=tokens.device)
        masked.scatter_(1, here, True)
        part = cut(batch.select(example[which]), size)
        yield numbers, *_scores_at(model, part, tokens[which, :size], masked, here)


def _single_parts(
    model: Any, batch: Batch, example: Tensor, tokens: Tensor, row: Tensor, position: Tensor, rows: int
) -> Iterator[Part]:
    """Single positions: their numbers [n], scores [n,V] and features [n,H]."""
    for numbers, scores, features in block_parts(model, batch, example, tokens, row, position.unsqueeze(1), None, rows):
        yield numbers, scores.squeeze(1), None if features is None else features.squeeze(1)


def _all_parts(
    model: Any, batch: Batch, example: Tensor, tokens: Tensor, row: Tensor, position: Tensor, rows: int
) -> Iterator[Part]:
    """The same by ``conditional_scores``; the rows ascend."""
    present, counts = row.unique_consecutive(return_counts=True)
    begin = counts.cumsum(0) - counts
    for numbers, size in alike(extents(batch)[example[present]], rows):
        which, n = present[numbers], counts[numbers]
        scores = model.conditional_scores(cut(batch.select(example[which]), size), tokens[which, :size])
        local = torch.arange(len(which), device=row.device).repeat_interleave(n)
        within = torch.arange(len(local), device=row.device) - (n.cumsum(0) - n)[local]
        asked = begin[numbers][local] + within
        yield asked, scores[local, position[asked]], None


def _scores_at(
    model: Any, batch: Batch, tokens: Tensor, masked: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor | None]:
    """[n,P,V], and [n,P,H] where the model has features."""
    number = torch.arange(len(tokens), device=tokens.device).unsqueeze(1)
    features: Tensor | None = None
    if callable(getattr(model, "score", None)):
        if callable(getattr(model, "features_at", None)):
            features = model.features_at(batch, tokens, masked, positions)
        elif callable(getattr(model, "features", None)):
            features = model.features(batch, tokens, masked)[number, positions]
    if features is not None:
        return model.score(features), features
    return model.scores(batch, tokens, masked)[number, positions], None


def alike(sizes: Tensor, rows: int) -> Iterator[tuple[Tensor, int]]:
    """Parts of at most ``rows`` sequences of like size: their numbers, and the largest size."""
    if rows < 1:
        raise InputError(f"rows must be at least 1, not {rows}")
    order = sizes.argsort(descending=True, stable=True)
    parts = max(1, -(-len(order) // rows))
    for numbers in order.split(max(1, -(-len(order) // parts))):
        yield numbers, int(sizes[numbers[0]]) if len(numbers) else 1


def extents(batch: Batch) -> Tensor:
    """How many columns each example needs, [B]: all up to its last token."""
    here = batch.mask
    if batch.source_mask is not None and _reads_itself(batch):
        here = here | batch.source_mask
    columns = torch.arange(1, here.shape[1] + 1, device=here.device)
    return (here * columns).amax(dim=1).clamp(min=1)


def cut(batch: Batch, size: int) -> Batch:
    """The batch without its columns from ``size`` on, which are padding."""
    if size >= batch.gold.shape[1]:
        return batch
    names = ["prefix", "gold", "mask", *(["source", "source_mask"] if _reads_itself(batch) else [])]
    return replace(batch, **{name: getattr(batch, name)[:, :size] for name in names})


def _reads_itself(batch: Batch) -> bool:
    """Whether the source is the sequence itself, as for masked models of Hugging Face."""
    source, mask = batch.source, batch.source_mask
    return (
        source is not None
        and mask is not None
        and source.shape == batch.prefix.shape
        and torch.equal(source, batch.prefix)
    )
