"""Enumerate all outputs of a small model: the oracle of search and sampling."""

from functools import partial

import torch
from torch import Tensor

from unforced.decoding.search import Constraints, ScoreType, check_lengths, limits
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.ops import state_rows
from unforced.protocols import StepDecoder
from unforced.types import Batch, Hypotheses


def enumerate_sequences(
    model: StepDecoder,
    batch: Batch,
    max_length: int | None = None,
    *,
    min_length: int = 0,
    scores: ScoreType = "local",
    most: int = 1_000_000,
) -> Hypotheses:
    """Return all N possible outputs of the single example in ``batch``, the most probable first: [1,N,T].

    Outputs end in EOS or have as many tokens as the example's limit (`unforced.decoding.search`). Outputs of
    probability zero are left out. Both scores of the result are sums of log-probabilities, or with
    ``scores="global"`` sums of the model's scores. Raise `InputError` if there may be more than ``most`` outputs.

    >>> from unforced.models.toy import Toy
    >>> from unforced.types import Sizes, Symbols
    >>> model = Toy(scale=0).build(Sizes(target=3))  # all tokens are equally probable
    >>> nothing = torch.zeros(1, 1, dtype=torch.long)
    >>> batch = Batch.of_gold(nothing, nothing > 0, Symbols(pad=0, bos=0, eos=1, banned=(0,)))
    >>> enumerate_sequences(model, batch, max_length=2).tokens
    tensor([[[1, 0],
             [2, 1],
             [2, 2]]])
    """
    check_lengths(min_length, max_length)
    if len(batch) != 1:
        raise InputError(f"enumeration takes one example at a time, got a batch of {len(batch)}")
    constraints = Constraints.of(batch, min_length, scores)
    steps = int(limits(batch, min_length, max_length))
    prefixes = batch.gold.new_full((1, 1), batch.symbols.bos)  # [n,1+t]: those that have not ended
    log_probs = torch.zeros(1, device=prefixes.device)
    ended: list[tuple[Tensor, Tensor]] = []  # for each length
    with evaluation_mode(model):
        state = model.start(batch)
        for t in range(steps):
            features, state = model.advance(state, model.embed(prefixes[:, -1:]))
            token_scores = constraints.token_scores(t, model.score(features[:, -1]))
            log_probs = log_probs.unsqueeze(1) + token_scores
            parents, tokens = (log_probs > -torch.inf).nonzero().unbind(dim=1)
            prefixes = torch.cat([prefixes[parents], tokens.unsqueeze(1)], dim=1)
            log_probs = log_probs[parents, tokens]
            end = constraints.is_end(tokens)
            ended.append((prefixes[end], log_probs[end]))
            prefixes, log_probs, state = prefixes[~end], log_probs[~end], state_rows.keep(state, parents[~end])
            more = len(prefixes) * token_scores.shape[1] if t + 1 < steps else len(prefixes)
            if more + sum(len(log_prob) for _, log_prob in ended) > most:
                raise InputError(f"there may be more than {most} outputs of up to {steps} tokens: lower max_length")
            if not len(prefixes):
                break
    ended.append((prefixes, log_probs))
    total = torch.cat([log_prob for _, log_prob in ended])
    if not len(total):
        raise InputError("no output is possible: the model gives every one the score −inf")
    order = total.argsort(descending=True, stable=True)
    sizes = [tokens.shape[1] - 1 for tokens, _ in ended]
    pad = partial(torch.nn.functional.pad, value=batch.symbols.pad)
    padded = [pad(tokens[:, 1:], (0, max(sizes) - size)) for (tokens, _), size in zip(ended, sizes)]
    counts = torch.tensor([len(tokens) for tokens, _ in ended], device=order.device)
    lengths = torch.tensor(sizes, device=order.device).repeat_interleave(counts)
    sorted_ = (leaf[order].unsqueeze(0) for leaf in (torch.cat(padded), lengths, total, total))
    return Hypotheses(*sorted_)
