"""Sequence-level loss smoothing (Norouzi et al. 2016; Elbayad et al. 2018): learn from outputs near the target."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.decoding.teacher_forcing import CHUNK, gold_scores, output_features, score_in_chunks
from unforced.errors import InputError
from unforced.objectives.cross_entropy import negative_log_likelihood, token_metrics
from unforced.objectives.smoothing.outputs import END, concatenate_outputs, first_equal
from unforced.objectives.smoothing.proposals import EditProposal, HammingProposal, Substitutes, TokenPool, editable
from unforced.objectives.smoothing.rewards import Documents, Reward, distances
from unforced.objectives.smoothing.targets import Target, mixture, smoothed_nll
from unforced.objectives.smoothing.token_roles import TokenRoles
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.ops import random_streams
from unforced.options import Count, Options, Positive, Probability, Temperature
from unforced.protocols import StepDecoder, require
from unforced.types import Batch, DecoderState, Encoded, Loss, Progress

Metrics = dict[str, tuple[Tensor, Tensor]]
ONE_HOT = TokenSmoothing(tau=0.0)
STATISTICS = ("moved", "rest", "covered")  # of token smoothing


class Samples(NamedTuple):
    """L outputs of each example."""

    outputs: Tensor  # [B,L,W], `END` after the end
    weights: Tensor  # [B,L], with sum 1
    metrics: Metrics


@dataclass(frozen=True)
class SequenceSmoothing(Options):
    """Minimise −α E_r[log p(y | x)] − (1 − α) log p(y* | x) over outputs y near the target (slides, eqs. 6, 7, 12),
    where

        r(y | y*) = exp(−d(y, y*) / τ) / Z

    ``reward`` is d:

    - "hamming": number of different tokens, among outputs of the target's length; draws are exact;
    - "edit": number of insertions, deletions and substitutions;
    - "bleu": 1 − BLEU-4 of the token ids, smoothed as in sacreBLEU's sentence BLEU;
    - "cider": 1 − CIDEr-D / 10 of the token ids; every training target is a document.

    With the last three, or a ``proposal_tau`` that is not τ, samples come from a ``proposal`` q and are weighted by r
    / q, normalised over the samples of an example (eqs. 9 to 11). Only tokens of V_sub (``vocabulary``) are put in
    place of others: never the end symbol, the unknown word or special tokens. Special tokens of the target keep their
    places.

    ``lazy`` feeds the target and scores the samples, log p(y_t | y*_<t, x), so any number of samples costs one pass.
    Then ``samples`` = "none" computes the expectation of Hamming rewards in closed form.

    Metrics: ``changed`` (edits per target token), ``ess`` (effective number of samples), ``distance`` (mean d by
    weight), ``drawn_distance`` (mean d of draws), ``too_long`` (share of samples above ``longest``), ``sampled``
    (their loss, if fed). How to choose temperatures: docs/loss_smoothing.md.
    """

    tau: Temperature = 0.1  # τ, the temperature of r; 0 is cross-entropy
    mix: Probability = 1.0  # α, the weight of the smoothed loss; at 1 the target itself is not fed
    reward: Reward = "hamming"  # distance of outputs from the target
    vocabulary: Substitutes = "all"  # V_sub: all tokens, those of the micro-batch, or those of the example's references
    samples: Count | None = 1  # outputs drawn for each example; none is the exact expectation (lazy Hamming only)
    lazy: bool = False  # whether the target is fed and samples are only scored
    proposal: Literal["hamming", "edit"] = "hamming"  # distribution of samples: substitutions only, or all edits
    proposal_tau: Positive | None = None  # temperature of the proposal; none is τ
    longest: Count | None = None  # most tokens of edited outputs, unless their target has more; longer ones weigh 0
    roles: TokenRoles | None = field(default=None, repr=False, compare=False)  # set by `fitted`
    documents: Documents | None = field(default=None, repr=False, compare=False)  # set by `fitted`, for CIDEr

    def check(self) -> None:
        if self.proposal == "edit" and self.reward == "hamming":
            raise InputError('proposal "edit" changes lengths: choose another reward than "hamming"')
        if self.proposal == "edit" and self.lazy:
            raise InputError('proposal "edit" changes lengths, and lazy needs outputs of the target\'s length')
        if self.longest is not None and self.proposal != "edit":
            raise InputError('longest is for proposal "edit": other samples have the length of the target')
        if self.samples is None and (not self.lazy or self.weighted):
            raise InputError("samples can be none only with lazy, a Hamming reward and no proposal_tau")
        if self.samples == 1 and self.weighted:
            raise InputError(
                "samples must be at least 2 here: their weights are normalised, so a single one has weight 1"
            )
        if self.reward in ("bleu", "cider") and self.proposal_tau is None and not self.off:
            raise InputError(f"reward {self.reward} needs a proposal_tau: the scale of tau is that of the reward")

    @property
    def weighted(self) -> bool:
        """Whether samples come from another distribution than r."""
        return self.reward != "hamming" or self.proposal_tau not in (None, self.tau)

    @property
    def off(self) -> bool:
        """Whether the loss is plain cross-entropy."""
        return self.tau == 0 or self.mix == 0

    def fitted(self, codec: Any, examples: Sequence[Encoded] = ()) -> "SequenceSmoothing":
        if self.vocabulary == "references" and not any(len(example.references) for example in examples):
            raise InputError('vocabulary "references" needs training examples with references besides the target')
        roles, documents = TokenRoles.of(codec), None
        if self.reward == "cider":
            if not examples:
                raise InputError("reward cider counts n-grams in training examples, and none were given")
            targets = (example.target for example in examples)
            documents = Documents.of(targets, codec.symbols.eos, roles.fixed)
        return replace(self, roles=roles, documents=documents)

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "sequence_smoothing", "start", "embed", "advance", "score")
        if self.off:
            return negative_log_likelihood(*gold_scores(model, batch))
        return self.loss(model, batch, rng, ONE_HOT)

    def loss(self, model: StepDecoder, batch: Batch, rng: torch.Generator, token: TokenSmoothing) -> Loss:
        """Return the loss with all outputs scored against the targets of ``token``."""
        state = model.start(batch)
        if self.samples is None:
            return self.expected_loss(model, batch, state)
        samples = self.draw_samples(batch, random_streams.keys(batch, rng), self.samples)
        loss = self.lazy_loss if self.lazy else self.fed_loss
        return loss(model, batch, state, samples, token)

    # Samples

    def proposal_of(self, batch: Batch) -> HammingProposal | EditProposal:
        """Return the distribution of samples."""
        if self.roles is None:
            raise InputError("sequence_smoothing is not fitted: call unforced.fitted(objective, codec, examples) first")
        gold = batch.gold.masked_fill(~batch.mask, END)
        pool = TokenPool.of(self.vocabulary, batch, self.roles.size, self.roles.special)
        parts = gold, editable(batch, self.roles.fixed), pool, self.proposal_tau or self.tau
        if self.proposal == "hamming":
            return HammingProposal(*parts)
        if batch.symbols.eos is None:
            raise InputError('proposal "edit" changes lengths, which are fixed in this data')
        proposal = EditProposal(*parts)
        proposal.check()
        return proposal

    def distances(self, outputs: Tensor, gold: Tensor, batch: Batch) -> Tensor:
        """Return d [B,L] of outputs [B,L,W]."""
        assert self.roles is not None
        return distances(self.reward, outputs, gold, batch.symbols.eos, self.documents, self.roles.fixed)

    def draw_samples(self, batch: Batch, keys: Tensor, number: int) -> Samples:
        """Draw outputs of each example by its key [B], with their weights ω (eqs. 8 and 11)."""
        proposal = self.proposal_of(batch)
        outputs = proposal.draw(random_streams.branch(keys.unsqueeze(1), torch.arange(number, device=keys.device)))
        weights = torch.full(outputs.shape[:2], 1 / number, dtype=torch.float64, device=keys.device)
        examples = torch.tensor(float(len(batch)), device=keys.device)
        if self.proposal == "hamming":
            changes = (outputs != proposal.gold.unsqueeze(1)).sum()
        else:
            changes = distances("edit", outputs, proposal.gold, batch.symbols.eos).sum()
        metrics = {"changed": (changes.float(), proposal.editable.sum().float() * number)}
        size = torch.full((len(batch),), float(number), device=keys.device)  # effective number of samples
        if self.weighted:
            d = self.distances(outputs, proposal.gold, batch)
            metrics["drawn_distance"] = (d.mean(dim=1).sum().float(), examples)
            outputs, long = replace_long(outputs, proposal.gold, self.longest)
            replaced = long.all(dim=1, keepdim=True)
            if self.longest is not None:
                metrics["too_long"] = (long.sum().float(), examples * number)
                d = self.distances(outputs, proposal.gold, batch)
            dropped = long & ~replaced
            least = d.masked_fill(dropped, torch.inf).amin(dim=1, keepdim=True)
            logs = (least - d) / max(self.tau, sys.float_info.min)  # 0 for the nearest sample, however small τ is
            weights = torch.softmax((logs - proposal.log_prob(outputs)).masked_fill(dropped, -torch.inf), dim=1)
            metrics["distance"] = ((weights * d).sum().float(), examples)
            size = torch.where(replaced.squeeze(1), 1.0, weights.square().sum(dim=1).reciprocal())
        metrics["ess"] = (size.sum().float(), examples)
        return Samples(outputs, weights, metrics)

    # Losses

    def fed_loss(
        self, model: StepDecoder, batch: Batch, state: DecoderState, samples: Samples, token: TokenSmoothing
    ) -> Loss:
        """Return α Σ_l ω_l ℓ(y_l) + (1 − α) ℓ(y*) (eq. 12); equal outputs are fed once."""
        gold = batch.gold.masked_fill(~batch.mask, END).unsqueeze(1)  # [B,1,T]
        outputs = concatenate_outputs(gold, samples.outputs)  # [B,1+L,W]
        first = first_equal(outputs)
        drawn = torch.zeros(first.shape, dtype=torch.float64, device=first.device)
        drawn.scatter_add_(1, first[:, 1:], self.mix * samples.weights)
        weights = drawn.clone()
        weights[:, 0] += 1 - self.mix
        fed = weights > 0
        examples, rows = fed.nonzero()[:, 0], outputs[fed]  # [R], [R,W]
        rows = rows[:, : max(1, int((rows != END).sum(dim=1).max()))]
        mask = rows != END
        once = len(examples) == len(batch)
        padded = rows.masked_fill(~mask, batch.symbols.pad)
        features = output_features(model, batch, state, padded, mask, None if once else examples)

        def compute(features: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
            scores = model.score(features)
            target, statistics = token.smooth(model, tokens, scores)
            losses, nll = smoothed_nll(scores, tokens, target)
            best = scores.detach().gather(1, tokens.unsqueeze(1)).squeeze(1) >= scores.detach().amax(dim=1)
            return losses, nll, best, *(statistics[name] for name in STATISTICS if name in statistics)

        count, row = batch.mask.sum().float(), mask.nonzero()[:, 0]
        limit = 2 * max(CHUNK, int(count))
        losses, nll, best, *statistics = score_in_chunks(compute, features, rows[mask], limit)
        weight = weights[fed][row].to(losses.dtype)
        metrics = samples.metrics | weighted_means(dict(zip(STATISTICS, statistics)), weight)
        metrics["sampled"] = ((drawn[fed][row] * losses.detach()).sum().float() / self.mix, count)
        if self.mix < 1:
            of_gold = (first == 0)[fed][row]
            metrics["nll"] = (nll[of_gold].sum().float(), count)
            metrics["accuracy"] = (best[of_gold].sum().float(), count)
        return Loss((weight * losses).sum(), count, metrics)

    def lazy_loss(
        self, model: StepDecoder, batch: Batch, state: DecoderState, samples: Samples, token: TokenSmoothing
    ) -> Loss:
        """Return the same with only the target fed: one mixed target distribution for each position."""
        scores, gold = gold_scores(model, batch, state)
        tokens = torch.cat([gold.unsqueeze(1), samples.outputs.transpose(1, 2)[batch.mask]], dim=1)  # [N,1+L]
        weights = F.pad(self.mix * samples.weights, (1, 0), value=1 - self.mix)[batch.mask.nonzero()[:, 0]]
        target, statistics = token.smooth(model, tokens.flatten(), scores)
        losses, nll = smoothed_nll(scores, gold, mixture(target, weights))
        metrics = token_metrics(scores, gold, nll.sum()) | samples.metrics
        metrics |= weighted_means(statistics, weights.flatten())
        return Loss(losses.sum(), metrics["nll"][1], metrics)

    def expected_loss(self, model: StepDecoder, batch: Batch, state: DecoderState) -> Loss:
        """Return lazy Hamming in closed form.

        The target has the weight 1 / (1 + a), each other token of V_sub has e^(−1/τ) / (1 + a).
        """
        scores, gold = gold_scores(model, batch, state)
        proposal = self.proposal_of(batch)
        odds, pool, examples = proposal.log_odds[batch.mask], proposal.pool, batch.mask.nonzero()[:, 0]  # [N]
        inside = pool.find(batch.gold)[1][batch.mask].double()  # the target may be outside of V_sub
        size = pool.sizes.expand(len(batch), 1)[examples, 0].double()
        each = self.mix * torch.sigmoid(odds) / (size - inside).clamp(min=1)  # [N]
        own = 1 - each * size  # a target inside of V_sub gets ``each`` in addition
        if self.vocabulary == "references":
            present = torch.arange(pool.ids.shape[1], device=gold.device) < size.unsqueeze(1)  # [N,P]
            others = torch.where(present, pool.ids[examples], gold.unsqueeze(1))
            weights = torch.where(present, each.unsqueeze(1), 0.0)
            tokens = torch.cat([gold.unsqueeze(1), others], dim=1)
            target = Target(tokens, torch.cat([own.unsqueeze(1), weights], dim=1))
        else:
            share = torch.zeros(scores.shape[1], dtype=torch.float64, device=gold.device)
            share[pool.ids[0, : int(pool.sizes)]] = 1.0
            target = Target(gold.unsqueeze(1), own.unsqueeze(1), each * size, share / share.sum().clamp(min=1))
        losses, nll = smoothed_nll(scores, gold, target)
        metrics = token_metrics(scores, gold, nll.sum())
        metrics["changed"] = (torch.sigmoid(odds).sum().float(), proposal.editable.sum().float())
        return Loss(losses.sum(), metrics["nll"][1], metrics)


def replace_long(outputs: Tensor, gold: Tensor, longest: int | None) -> tuple[Tensor, Tensor]:
    """Return the outputs [B,L,W], and which of them have more than ``longest`` tokens and more than their target.

    If all outputs of an example are too long, its target replaces them.

    >>> outputs = torch.tensor([[[3, 3, 2], [3, 2, END]], [[3, 3, 2], [4, 4, 2]]])
    >>> replaced, long = replace_long(outputs, torch.tensor([[3, 2], [4, 2]]), 2)
    >>> replaced[1].tolist(), long.tolist()
    ([[4, 2, -1], [4, 2, -1]], [[True, False], [True, True]])
    """
    lengths = (outputs != END).sum(dim=2)
    if longest is None:
        return outputs, torch.zeros_like(lengths, dtype=torch.bool)
    long = lengths > (gold != END).sum(dim=1, keepdim=True).clamp(min=longest)
    width = max(outputs.shape[2], gold.shape[1])
    outputs, gold = (F.pad(some, (0, width - some.shape[-1]), value=END) for some in (outputs, gold))
    return torch.where(long.all(dim=1)[:, None, None], gold.unsqueeze(1), outputs), long


def weighted_means(statistics: dict[str, Tensor], weights: Tensor) -> Metrics:
    """Return metrics of statistics [N] of tokens by their weights [N] in the loss."""
    named = {name: statistics[name] for name in STATISTICS if name in statistics}
    return {name: ((values * weights).sum().float(), weights.sum().float()) for name, values in named.items()}
