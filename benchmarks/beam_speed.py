"""Compare beam search with Hugging Face's ``generate`` on the same network with the same weights.

Outputs are first forced to one length, so that both sides make the same number of steps. Then they end by themselves,
after a short training. Both are measured with one sentence and with sixteen at a time.
"""

import statistics
import time
from collections.abc import Callable

import torch

import corpus
from harness import WORK, interleave, ratio, row, say
from models import TRANSFORMER, batch, copy_transformer, huggingface_transformer, trained
from unforced.decoding.beam import Beam

TARGET = 1.0
BEAM = 5
FORCED = 20  # tokens of an output if the length is forced
LONGEST = 60
BATCHES = (1, 16)
UPDATES = 250  # of 64 pairs: enough for outputs that look like sentences, with an end


def run(*, quick: bool, threads: int) -> dict:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # on both sides
    data = corpus.prepare(WORK)
    ours = trained("transformer", data, 100 if quick else UPDATES)
    theirs = huggingface_transformer(TRANSFORMER, data.vocabulary)
    copy_transformer(ours, theirs)
    ours.eval()
    theirs.eval()
    rounds, sentences = (3, 16) if quick else (9, 32)
    pairs = data.ids("dev")[: BATCHES[-1] * (sentences // BATCHES[-1])]
    rows, agreement = [], {}
    for forced in (True, False):
        lengths = (FORCED, FORCED) if forced else (1, LONGEST)
        for size in BATCHES:
            chosen = pairs[: 6 if size == 1 and quick else 12 if size == 1 else None]
            batches = [batch(chosen[i : i + size]) for i in range(0, len(chosen), size)]
            sides = {"unforced": _ours(ours, batches, *lengths), "huggingface": _theirs(theirs, batches, *lengths)}
            title = f"beam {BEAM}, batch {size}, {f'{FORCED} tokens forced' if forced else 'ends by itself'}"
            say(f"  {title}")
            outputs = {name: search() for name, search in sides.items()}
            if forced:
                assert all(len(o) == FORCED for found in outputs.values() for o in found), "lengths differ"
            else:
                same = sum(a == b for a, b in zip(*outputs.values(), strict=True))
                agreement[f"batch {size}"] = f"{same} of {len(chosen)}"
                mean = statistics.mean(len(output) for output in outputs["unforced"])
                title += f" ({mean:.1f} tokens on average)"
            times = interleave(
                {name: _timed(search, len(chosen)) for name, search in sides.items()}, rounds, unit="ms/sentence"
            )
            figure = ratio(times["unforced"], times["huggingface"])
            medians = [statistics.median(times[name]) for name in ("unforced", "huggingface")]
            rows.append(
                row(
                    f"{title}: cost per sentence",
                    "Hugging Face generate",
                    figure,
                    target=f"<= {TARGET}",
                    passed=figure["median"] <= TARGET,
                    absolute=f"{medians[0]:.1f} and {medians[1]:.1f} ms",
                )
            )
    return {
        "rows": rows,
        "settings": {
            "model": f"Transformer 3+3, 256 wide, {data.vocabulary} pieces, float32, the same weights on both sides",
            "data": f"development part of {data.name}",
            "rounds": f"{rounds}, after one to warm up",
            "search": "length penalty 1, early_stopping False (ours: heuristic), key/value caches, one output",
            "equal outputs if they end by themselves": agreement,
        },
    }


def _ours(model, batches: list, shortest: int, longest: int) -> Callable[[], list[list[int]]]:
    # With shortest = longest, the end symbol is banned and the search ends at the limit.
    decoder = Beam(beam=BEAM, min_length=shortest, max_length=longest)

    def search() -> list[list[int]]:
        return [ids for each in batches for ids in decoder(model, each).ids(each.symbols)]

    return search


def _theirs(model, batches: list, shortest: int, longest: int) -> Callable[[], list[list[int]]]:
    def search() -> list[list[int]]:
        outputs = []
        for each in batches:
            found = model.generate(
                input_ids=each.source,
                attention_mask=each.source_mask.long(),
                num_beams=BEAM,
                do_sample=False,
                length_penalty=1.0,
                early_stopping=False,
                min_new_tokens=shortest,
                max_new_tokens=longest,
            )
            for ids in found[:, 1:].tolist():
                end = next((i for i, token in enumerate(ids) if token in (corpus.EOS, corpus.PAD)), len(ids))
                outputs.append(ids[:end])
        return outputs

    return search


def _timed(search: Callable[[], list], sentences: int) -> Callable[[], float]:
    def turn() -> float:
        begin = time.perf_counter()
        search()
        return 1000 * (time.perf_counter() - begin) / sentences

    return turn
