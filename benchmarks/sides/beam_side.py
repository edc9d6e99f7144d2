"""Beam search over the development text, with 20 tokens forced, by this library or by ``generate``.

``PYTHONPATH`` chooses the checkout of the library. Weights are random: with forced lengths they do not change the work.
"""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
from pace import Pace, options

import corpus
from models import TRANSFORMER, batch, huggingface_transformer, unforced_model
from unforced.decoding.beam import Beam
from unforced.types import Sizes

FORCED = 20

PACE, OPTIONS = Pace(), options()

torch.set_num_threads(OPTIONS["threads"])
torch.set_flush_denormal(True)
torch.manual_seed(1)
data = corpus.Corpus(**OPTIONS["corpus"])
if OPTIONS["generate"]:
    model = huggingface_transformer(TRANSFORMER, data.vocabulary)
else:
    model = unforced_model("transformer", TRANSFORMER).build(Sizes(data.vocabulary, data.vocabulary))
model.eval()
pairs = data.ids("dev")[: 4 * OPTIONS["batch"]]
batches = [batch(pairs[i : i + OPTIONS["batch"]]) for i in range(0, len(pairs), OPTIONS["batch"])]
decoder = Beam(beam=5, min_length=FORCED, max_length=FORCED)
PACE.ready(
    versions={"torch": torch.__version__},
    parameters=sum(p.numel() for p in model.parameters()),
    threads=torch.get_num_threads(),
)
for each in itertools.cycle(batches):
    PACE.begin_update(FORCED * OPTIONS["batch"])
    if OPTIONS["generate"]:
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
