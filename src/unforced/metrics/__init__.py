"""Metrics: statistics of each example that add up, and a score of their sum."""

from typing import TYPE_CHECKING

from unforced.lazy import lazy_exports

if TYPE_CHECKING:
    from unforced.metrics.images import FrechetDistance as FrechetDistance
    from unforced.metrics.images import InceptionStyleScore as InceptionStyleScore
    from unforced.metrics.likelihood import NLL as NLL
    from unforced.metrics.likelihood import LogZ as LogZ
    from unforced.metrics.tagging import EntityF1 as EntityF1
    from unforced.metrics.tagging import TokenAccuracy as TokenAccuracy
    from unforced.metrics.text import Bleu as Bleu
    from unforced.metrics.text import ChrF as ChrF
    from unforced.metrics.text import Cider as Cider
    from unforced.metrics.text import ErrorRate as ErrorRate
    from unforced.metrics.text import ExactError as ExactError
    from unforced.metrics.text import LengthRatio as LengthRatio
    from unforced.metrics.text import NgramPrecision as NgramPrecision
    from unforced.metrics.text import Rouge as Rouge
    from unforced.metrics.text import ShortBleu as ShortBleu
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
