"""Beam search over batches of the development text, 20 tokens forced; by a tree of this library, or by ``generate``.

With ``tree`` in the wishes, the library and the helpers of that checkout are used. Weights are random: with the length
forced, they don't change the work.
"""

# ruff: noqa: E402, I001 (the library of the tree that the settings name is imported)

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from pace import Pace, settings

PACE, WISH = Pace(), settings()
sys.path[:0] = [f"{WISH['tree']}/src", f"{WISH['tree']}/benchmarks"]

import corpus
import torch
from shapes import TRANSFORMER, huggingface_transformer, unforced_model
from trained import batch

from unforced.decoding.beam import Beam
from unforced.types import Sizes

FORCED = 20

torch.set_num_threads(WISH["threads"])
torch.set_flush_denormal(True)
torch.manual_seed(1)
data = corpus.Corpus(**WISH["corpus"])
if WISH["generate"]:
    model = huggingface_transformer(TRANSFORMER, data.vocabulary, pad=corpus.PAD, bos=corpus.BOS, eos=corpus.EOS)
else:
    model = unforced_model("transformer", TRANSFORMER).build(Sizes(data.vocabulary, data.vocabulary))
model.eval()
pairs = data.ids("dev")[: 4 * WISH["batch"]]
batches = [batch(pairs[i : i + WISH["batch"]]) for i in range(0, len(pairs), WISH["batch"])]
decoder = Beam(beam=5, min_length=FORCED, max_length=FORCED)
PACE.ready(
    versions={"torch": torch.__version__},
    parameters=sum(p.numel() for p in model.parameters()),
    threads=torch.get_num_threads(),
)
for each in itertools.cycle(batches):
    PACE.begin_update(FORCED * WISH["batch"])
    if WISH["generate"]:
        model.generate(
            input_ids=each.source,
            attention_mask=each.source_mask.long(),
            num_beams=5,
            do_sample=False,
            early_stopping=False,
            min_new_tokens=FORCED,
            max_new_tokens=FORCED,
        )
    else:
        decoder(model, each)
