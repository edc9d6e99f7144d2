"""Training objectives, one file per method, with their schedules and costs."""

from typing import TYPE_CHECKING

from unforced.lazy import lazy_exports

if TYPE_CHECKING:
    from unforced.objectives.beam_search_optimization import BeamSearchOptimization as BeamSearchOptimization
    from unforced.objectives.costs import Confusions as Confusions
    from unforced.objectives.costs import Hamming as Hamming
    from unforced.objectives.costs import WeightedHamming as WeightedHamming
    from unforced.objectives.cross_entropy import CrossEntropy as CrossEntropy
    from unforced.objectives.exact_likelihood import ExactLikelihood as ExactLikelihood
    from unforced.objectives.kl_projection import KLProjection as KLProjection
    from unforced.objectives.label_smoothing import LabelSmoothing as LabelSmoothing
    from unforced.objectives.masked_lm import MaskedLM as MaskedLM
    from unforced.objectives.minimum_risk import MinimumRisk as MinimumRisk
    from unforced.objectives.noise_contrastive import NoiseContrastive as NoiseContrastive
    from unforced.objectives.parallel_scheduled_sampling import ParallelScheduledSampling as ParallelScheduledSampling
    from unforced.objectives.pseudo_likelihood import PseudoLikelihood as PseudoLikelihood
    from unforced.objectives.scheduled_sampling import ScheduledSampling as ScheduledSampling
    from unforced.objectives.schedules import Always as Always
    from unforced.objectives.schedules import Constant as Constant
    from unforced.objectives.schedules import Exponential as Exponential
    from unforced.objectives.schedules import InverseSigmoid as InverseSigmoid
    from unforced.objectives.schedules import Linear as Linear
    from unforced.objectives.schedules import Rise as Rise
    from unforced.objectives.self_normalized import SelfNormalized as SelfNormalized
    from unforced.objectives.sequence_smoothing import SequenceSmoothing as SequenceSmoothing
    from unforced.objectives.soft_beam import SoftBeam as SoftBeam
    from unforced.objectives.token_sequence_smoothing import TokenSequenceSmoothing as TokenSequenceSmoothing
    from unforced.objectives.token_smoothing import TokenSmoothing as TokenSmoothing
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
