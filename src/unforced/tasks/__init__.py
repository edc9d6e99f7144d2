"""Data sets as tasks: readers, codecs and metrics."""

from typing import TYPE_CHECKING

from unforced.lazy import lazy_exports

if TYPE_CHECKING:
    from unforced.tasks.captions import Captions as Captions
    from unforced.tasks.images import Images as Images
    from unforced.tasks.language import Language as Language
    from unforced.tasks.pairs import Pairs as Pairs
    from unforced.tasks.pronunciation import G2P as G2P
    from unforced.tasks.pronunciation import Phonemes as Phonemes
    from unforced.tasks.streaming_g2p import StreamingG2P as StreamingG2P
    from unforced.tasks.synthetic import HMM as HMM
    from unforced.tasks.synthetic import Palindromes as Palindromes
    from unforced.tasks.tagging import Tagging as Tagging
    from unforced.tasks.text import Dialogue as Dialogue
    from unforced.tasks.text import Summarization as Summarization
    from unforced.tasks.text import Translation as Translation
else:
    __getattr__, __dir__, __all__ = lazy_exports(__name__)
