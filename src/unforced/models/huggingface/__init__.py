"""Hugging Face models behind the library's protocols: ``wrap`` a model, and make batches for it of what a collator gives.

Nothing here imports ``transformers``: whoever has a model to wrap has it already. What reads models from folders (for
``model = "hf:path"`` in a recipe) imports it when it does so.
"""

from unforced.models.huggingface.batches import batch
from unforced.models.huggingface.wrapping import wrap

__all__ = ["batch", "wrap"]
