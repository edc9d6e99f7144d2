"""Sequence-level loss smoothing (Norouzi et al. 2016; Elbayad et al. 2018): learning from outputs near the gold one."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from unforced.decoding.teacher_forcing import gold_scores
from unforced.errors import InputError
from unforced.models.modes import evaluation_mode
from unforced.objectives.cross_entropy import negative_log_likelihood, token_metrics
from unforced.objectives.smoothing.drawing import Drawing, Draws, Known, Metrics
from unforced.objectives.smoothing.outputs import END, first_equal, prefixes, target_ids, together
from unforced.objectives.smoothing.proposals import HammingProposal, Substitutes
from unforced.objectives.smoothing.rewards import Documents, Reward
from unforced.objectives.smoothing.targets import CHUNK, Target, blended, priced, smoothed_nll
from unforced.objectives.smoothing.word_vectors import special, wordless
from unforced.objectives.token_smoothing import TokenSmoothing
from unforced.ops import random_streams, state_rows
from unforced.options import Count, Options, Positive, Probability, Temperature
from unforced.protocols import StepDecoder, require
from unforced.types import Batch, DecoderState, Encoded, Loss, Progress

PLAIN = TokenSmoothing(tau=0.0)  # one-hot targets


@dataclass(frozen=True)
class SequenceSmoothing(Options):
    """−E_r log p(y | x) for outputs y near the gold (slides, eqs. 6 and 7), and α times that with 1 − α times cross-entropy
    (eq. 12), where

        r(y | y*) = exp(−d(y, y*) / τ) / Z

    ``tau`` is τ and ``mix`` is α. With α = 1 the samples are fed in place of the gold, which costs no more than
    cross-entropy; else the gold is fed as well. τ = 0 is cross-entropy. ``reward`` says what d is:

    - "hamming": the number of tokens that differ, among outputs of the gold's length. r then factorises over positions, and
      drawing from it is exact. A position changes with probability a / (1 + a), a = m e^(−1/τ), where m other tokens may
      stand in: τ has to be the smaller, the larger the vocabulary is;
    - "edit": the number of insertions, deletions and substitutions;
    - "bleu": 1 − BLEU-4 of the token ids, smoothed for single sentences as sacreBLEU does;
    - "cider": 1 − CIDEr-D / 10 of the token ids against the gold alone; every training target is a document.

    The other three can't be drawn from. Samples come from a ``proposal`` q at a temperature of its own, ``proposal_tau`` (τ
    if None), and are weighed by r / q, normalised over the ``samples`` of an example (eqs. 9 to 11), so there must be at
    least two; the metric ``ess`` says how many equally weighed ones they are worth. (So few can't be as sharp as r: as τ
    goes to zero all weight goes to the best sample, which is the gold only if that was drawn.) "bleu" and "cider" need a
    ``proposal_tau``, since their τ is on another scale. Proposals are

    - "hamming": outputs of the gold's length, by Hamming distance; r is confined to these;
    - "edit": tokens kept, deleted or replaced, and others inserted between them, at most eight side by side; r is confined to
      what that can make. q is summed over all ways of editing that lead to the same output. With M tokens in V_sub outputs
      are mostly insertions unless M e^(−1/τ) is well below one; from one on "all" tokens are refused, and there is a warning
      where a batch or an example's references have so many. ``longest`` bounds outputs, for models that have only so many
      positions: r is confined to those of at most so many tokens, the end symbol among them (or as many as the gold has); where
      all samples of an example are longer, it learns from its gold. The metric ``too_long`` is the share of samples that are.

    d of "bleu" and "cider" lies between 0 and 1, so τ must be small: where each further edit brings M times as many outputs and costs
    less than log M · τ, r is all but uniform, and what is far from the gold weighs most. Where the metric ``distance``, the mean of d by
    the weights, is not below ``drawn_distance``, that of the samples as they are drawn, τ is too large.

    Only tokens of V_sub stand in for others, and neither the end symbol, nor the unknown word, nor anything that can't be
    emitted is among them; the end symbol and other special tokens of the gold (a language code, say) stay in their places, and edit
    proposals refuse golds that have any but at their ends. ``vocabulary`` says what V_sub is: "all" tokens, those of
    the "batch" (of this micro-batch, so results then depend on how a batch is dealt out), or those of the example's
    "references" (of its gold if it has no others; some example must have).

    ``lazy`` feeds the gold and scores the samples, log p(y_t | y*_<t, x), so any number of them costs one pass. For Hamming
    rewards ``samples`` = "none" then takes the expectation itself: a mixture of the gold and V_sub at each position, without
    any variance.

    The total is divided by the number of gold tokens. The metric ``changed`` is the number of edits of samples for each
    gold token, ``distance`` the mean of d by the weights, ``sampled`` the loss of the samples, where they are fed, and
    ``nll`` and ``accuracy`` are those of the gold, where it is fed.

    >>> from unforced.objectives.sequence_smoothing import SequenceSmoothing
    >>> SequenceSmoothing(reward="bleu", vocabulary="batch", samples=5, proposal_tau=0.2).lazy
    False
    """

    tau: Temperature = 0.1  # τ, the temperature of r
    mix: Probability = 1.0  # α, the weight of the smoothed loss; the rest is cross-entropy
    reward: Reward = "hamming"  # what outputs are weighed by
    vocabulary: Substitutes = "all"  # V_sub: which tokens stand in for others
    samples: Count | None = 1  # outputs drawn for each example; None is the exact expectation, if lazy
    lazy: bool = False  # whether the gold is fed and samples are only scored
    proposal: Literal["hamming", "edit"] = "hamming"  # what samples are drawn from
    proposal_tau: Positive | None = None  # its temperature, if not τ
    longest: Count | None = None  # tokens that edited outputs may have, if more than their gold
    known: Known | None = field(default=None, init=False, repr=False, compare=False)  # what ``fitted`` adds

    def check(self) -> None:
        if self.reward == "hamming" and self.proposal != "hamming":
            raise InputError("a Hamming reward is for outputs of the gold's length: it needs the Hamming proposal")
        if self.lazy and self.proposal != "hamming":
            raise InputError("lazy scores samples behind the gold's prefixes: it needs the Hamming proposal")
        if self.longest is not None and self.proposal != "edit":
            raise InputError("longest is for edit proposals: the others have the gold's length")
        if self.samples is None:
            if not self.lazy or self.drawing.weighed:
                raise InputError("samples can be none only with lazy and a Hamming reward, drawn at its own tau")
        elif self.samples < 1 + self.drawing.weighed:
            why = ""
            if self.drawing.weighed and self.samples == 1:
                cause = "a proposal_tau of its own" if self.reward == "hamming" else "this reward"
                why = f": with {cause} samples are weighed, and a lone one weighs one"
            raise InputError(f"samples must be at least {1 + self.drawing.weighed}, got {self.samples}{why}")
        if self.reward in ("bleu", "cider") and self.proposal_tau is None and not self.off:
            raise InputError(
                f"with reward {self.reward} a proposal_tau must be given, since tau is a temperature of that reward and samples are "
                f"drawn by {self.proposal} distance: with m tokens to choose from, one in ten changes at 1 / log(9 m)"
            )

    @property
    def drawing(self) -> Drawing:
        """Which outputs are drawn, and how they weigh."""
        temperature = self.tau if self.proposal_tau is None else self.proposal_tau
        samples = 0 if self.samples is None else self.samples
        return Drawing(
            self.reward, self.tau, self.proposal, temperature, self.vocabulary, samples, self.longest, self.known
        )

    @property
    def off(self) -> bool:
        """Whether nothing but the gold counts."""
        return self.tau == 0 or self.mix == 0

    def fitted(self, codec: Any, examples: Sequence[Encoded] = ()) -> "SequenceSmoothing":
        """The objective, knowing the vocabulary and, for CIDEr, how many training targets have each n-gram."""
        documents = None
        if self.vocabulary == "references" and not any(len(each.references) for each in examples):
            raise InputError(
                'no training example has references beside its target, so vocabulary "references" would be the target\'s own tokens'
            )
        known, fixed = special(codec), wordless(codec) - {codec.symbols.eos}
        if self.vocabulary == "all" and not self.off:
            self.drawing.check_pool(codec.sizes.target - len(known))
        if self.reward == "cider":
            if not examples:
                raise InputError("CIDEr counts n-grams in training examples, and none were given")
            targets = list(target_ids(examples))
            if all(list(target) == list(targets[0]) for target in targets):
                raise InputError(
                    "CIDEr weighs n-grams by how few of the training targets have them, and these are all the same"
                )
            documents = Documents.of(targets, codec.symbols.eos, fixed)
        fitted = copy.copy(self)
        object.__setattr__(fitted, "known", Known(codec.sizes.target, known, fixed, documents))
        return fitted

    def __call__(self, model: StepDecoder, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        require(model, "sequence_smoothing", "start", "embed", "advance", "score")
        if self.off:
            return negative_log_likelihood(*gold_scores(model, batch))
        return self.loss(model, batch, rng)

    def loss(self, model: StepDecoder, batch: Batch, rng: torch.Generator, token: TokenSmoothing = PLAIN) -> Loss:
        """The loss, with every output scored against the targets of ``token``."""
        state = model.start(batch)
        if self.samples is None:
            return self.expected(model, batch, state)
        draws = self.drawing.draws(batch, self.size(model, batch, state), random_streams.keys(batch, rng))
        how = self.scored_lazily if self.lazy else self.scored
        return how(model, batch, state, draws, token)

    def size(self, model: StepDecoder, batch: Batch, state: DecoderState) -> int:
        """How many tokens the vocabulary has; an objective that isn't fitted asks the model for a score."""
        if self.known is not None or self.vocabulary != "all":
            return 0 if self.known is None else self.known.size
        return self.asked(model, batch, state).shape[1]

    def asked(self, model: StepDecoder, batch: Batch, state: DecoderState) -> Tensor:
        """Some scores of the model, which tell how many tokens it has: [1,V]."""
        with evaluation_mode(model):
            features, _ = model.advance(state, model.embed(batch.prefix[:, :1]))
            return model.score(features[:1, 0])

    def check_size(self, scores: Tensor) -> None:
        """Raise ``InputError`` if scores [N,V] are for a smaller vocabulary than the objective was fitted to."""
        if self.known is not None and scores.shape[1] < self.known.size:
            raise InputError(
                f"sequence_smoothing knows {self.known.size} tokens, but the model scores {scores.shape[1]}"
            )

    # ---- what they cost ----

    def scored(
        self, model: StepDecoder, batch: Batch, state: DecoderState, draws: Draws, token: TokenSmoothing
    ) -> Loss:
        """α Σ_l ω_l ℓ(y_l) + (1 − α) ℓ(y*) (eq. 12), with each of these outputs fed to the model, equal ones once."""
        gold = batch.gold.masked_fill(~batch.mask, END).unsqueeze(1)  # [B,1,T]
        every = together(gold, draws.outputs)  # [B,1+L,W], the gold first
        first = first_equal(every)
        drawn = torch.zeros(first.shape, dtype=torch.float64, device=first.device)
        drawn.scatter_add_(1, first[:, 1:], self.mix * draws.weights)
        weights = drawn.clone()
        weights[:, 0] += 1 - self.mix
        fed = weights > 0
        examples, outputs = fed.nonzero()[:, 0], every[fed]  # [R], [R,W]
        used = (outputs != END).any(dim=0).nonzero()
        outputs = outputs[:, : int(used.max()) + 1 if len(used) else 1]
        mask = outputs != END
        once = len(examples) == len(batch)  # each has a row at least
        try:
            inputs = model.embed(prefixes(batch, examples, outputs))
        except (IndexError, RuntimeError):  # perhaps there are fewer tokens than the objective was fitted to
            self.check_size(self.asked(model, batch, state))
            raise
        try:
            features, _ = model.advance(state if once else state_rows.keep(state, examples), inputs)
        except InputError as error:  # perhaps there are fewer positions than edited outputs need
            if self.proposal == "edit" and outputs.shape[1] > batch.gold.shape[1]:
                raise InputError(
                    f"{error}; edited outputs are longer than their gold, and longest bounds them"
                ) from None
            raise
        count, row = batch.mask.sum(), mask.nonzero()[:, 0]
        told: list[dict[str, Tensor]] = []

        def smooth(tokens: Tensor, scores: Tensor) -> Target:
            self.check_size(scores)
            target, more = token.target(model, batch.symbols, tokens, scores)
            told.append(more)
            return target

        most = 2 * max(CHUNK, int(count))
        losses, nll, best = priced(model, features[mask], outputs[mask], smooth, most)
        weight = weights[fed][row].to(losses.dtype)
        metrics = {**draws.metrics, **_means(told, weight)}
        metrics["sampled"] = ((drawn[fed][row] * losses.detach()).sum().float() / self.mix, count.float())
        if self.mix < 1:
            golden = (first == 0)[fed][row]
            metrics["nll"] = (nll[golden].sum().float(), count.float())
            metrics["accuracy"] = (best[golden].sum().float(), count.float())
        return Loss((weight * losses).sum(), count.float(), metrics)

    def scored_lazily(
        self, model: StepDecoder, batch: Batch, state: DecoderState, draws: Draws, token: TokenSmoothing
    ) -> Loss:
        """The same with the gold alone fed: a target for each position, of the gold and of all samples together."""
        scores, gold = gold_scores(model, batch, state)
        self.check_size(scores)
        tokens = torch.cat([gold.unsqueeze(1), draws.outputs.transpose(1, 2)[batch.mask]], dim=1)  # [N,1+L]
        weights = F.pad(self.mix * draws.weights, (1, 0), value=1 - self.mix)
        each, told = token.target(model, batch.symbols, tokens.flatten(), scores)
        weights = weights[batch.mask.nonzero()[:, 0]]  # [N,1+L]
        target = blended(each, weights)
        losses, nll = smoothed_nll(scores, gold, target)
        metrics = {**token_metrics(scores, gold, nll.sum()), **draws.metrics, **_means([told], weights.flatten())}
        return Loss(losses.sum(), metrics["nll"][1], metrics)

    def expected(self, model: StepDecoder, batch: Batch, state: DecoderState) -> Loss:
        """Lazy Hamming in closed form: 1 / (1 + a) on the gold and e^(−1/τ) / (1 + a) on each other token of V_sub."""
        scores, gold = gold_scores(model, batch, state)
        self.check_size(scores)
        around = self.drawing.around(batch, scores.shape[1] if self.known is None else self.known.size)
        assert isinstance(around, HammingProposal)
        odds, pool, examples = around.log_odds[batch.mask], around.pool, batch.mask.nonzero()[:, 0]  # [N]
        inside = pool.find(batch.gold)[1][batch.mask].double()  # a gold token may be outside of V_sub
        size = pool.sizes.expand(len(batch), 1)[examples, 0].double()
        each = self.mix * torch.sigmoid(odds) / (size - inside).clamp(min=1)  # [N]
        own = 1 - each * size  # the gold is among those that share, so it has ``each`` less
        if pool.ids.dim() == 1:
            share = torch.zeros(scores.shape[1], dtype=torch.float64, device=gold.device)
            share[pool.ids[: int(pool.sizes)]] = 1.0
            target = Target(gold.unsqueeze(1), own.unsqueeze(1), each * size, share / share.sum().clamp(min=1))
        else:
            there = torch.arange(pool.ids.shape[1], device=gold.device) < size.unsqueeze(1)  # [N,P]
            tokens = torch.where(there, pool.ids[examples], gold.unsqueeze(1))
            weights = torch.where(there, each.unsqueeze(1), 0.0)
            target = Target(
                torch.cat([gold.unsqueeze(1), tokens], dim=1), torch.cat([own.unsqueeze(1), weights], dim=1)
            )
        losses, nll = smoothed_nll(scores, gold, target)
        metrics = token_metrics(scores, gold, nll.sum())
        metrics["changed"] = (torch.sigmoid(odds).sum().float(), around.changing.sum().float())
        return Loss(losses.sum(), metrics["nll"][1], metrics)


def _means(told: list[dict[str, Tensor]], weights: Tensor) -> Metrics:
    """Metrics of what is told of tokens, some at a time, by their weights [N] in the loss."""
    every = {name: torch.cat([some[name] for some in told]) for name in told[0]}
    return {name: ((values * weights).sum().float(), weights.sum().float()) for name, values in every.items()}
