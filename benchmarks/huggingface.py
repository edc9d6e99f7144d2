"""Compare on Hugging Face models: beam search with ``generate``, and ``UnforcedTrainer`` with ``Trainer``.

Models have random weights. In searches all outputs are forced to one length, so that both sides make the same number of
steps with the same scores. Trainers make the same updates on the same batches; time is measured from the end of a
turn's first update to the end of its last.
"""

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch.nn.utils.rnn import pad_sequence
from transformers import BartConfig, BartForConditionalGeneration, T5Config, T5ForConditionalGeneration

import unforced
from harness import interleave, ratio, row, say
from unforced.decoding.beam import Beam
from unforced.huggingface.batches import make_batch
from unforced.objectives import CrossEntropy, ParallelScheduledSampling

BEAM = 5
FORCED = 20  # tokens of every output
SOURCE = 24  # tokens of every source
BATCHES = (1, 16)
SEARCH, TRAINER, PARALLEL = 1.0, 1.03, 1.35  # the targets: at most
ROWS, TARGET = 16, 24  # examples of a training batch, tokens of their outputs


def run(*, quick: bool, threads: int) -> dict:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)  # on both sides
    transformers.logging.set_verbosity_error()
    rows = []
    for name, make in MODELS.items():
        torch.manual_seed(1)
        rows += _search(name, make().eval(), quick)
    rows += _training(quick)
    return {
        "rows": rows,
        "versions": {"transformers": transformers.__version__},
        "settings": {
            "search": f"beam {BEAM}, {FORCED} tokens forced, sources of {SOURCE} tokens, length penalty 1, one output,"
            " float32; weights are random, so outputs mean nothing; equal outputs of both sides are counted",
            "training": f"T5-small's shape, batches of {ROWS} pairs of up to {SOURCE} and {TARGET} tokens, fused AdamW,"
            " float32, no dropout in either",
            "rounds": f"{2 if quick else 9}, after one to warm up",
        },
    }


def _t5(width: int, inner: int, layers: int, heads: int, vocabulary: int) -> Any:
    config = T5Config(
        vocab_size=vocabulary, d_model=width, d_kv=width // heads, d_ff=inner, num_layers=layers, num_heads=heads,
        decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, dropout_rate=0.0,
    )  # fmt: skip
    return T5ForConditionalGeneration(config)


def _bart(width: int, inner: int, layers: int, heads: int, vocabulary: int) -> Any:
    config = BartConfig(
        vocab_size=vocabulary, d_model=width, encoder_layers=layers, decoder_layers=layers,
        encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=inner, decoder_ffn_dim=inner,
        max_position_embeddings=128, pad_token_id=0, bos_token_id=2, eos_token_id=1, decoder_start_token_id=2,
        forced_eos_token_id=None, dropout=0.0,
    )  # fmt: skip
    return BartForConditionalGeneration(config)


MODELS: dict[str, Callable[[], Any]] = {
    "tiny T5 (64 wide, 2+2, 1,000 tokens)": lambda: _t5(64, 128, 2, 4, 1000),
    "tiny BART (64 wide, 2+2, 1,000 tokens)": lambda: _bart(64, 128, 2, 4, 1000),
    "T5 (512 wide, 6+6, 32,128 tokens)": lambda: _t5(512, 2048, 6, 8, 32128),
    "BART (512 wide, 6+6, 32,000 tokens)": lambda: _bart(512, 2048, 6, 8, 32000),
}


# ---- searches ----


def _search(name: str, model: Any, quick: bool) -> list[dict]:
    wrapped, decoder = unforced.wrap(model), Beam(beam=BEAM, min_length=FORCED, max_length=FORCED)
    banned = list(wrapped.symbols.banned)
    found = []
    for size in BATCHES:
        rng = torch.Generator().manual_seed(size)
        ids = torch.randint(3, model.config.vocab_size, (size, SOURCE), generator=rng)
        mask = torch.ones_like(ids)
        if size > 1:
            mask[::2, SOURCE // 2 :] = 0
            ids = ids.masked_fill(mask == 0, 0)
        batch = make_batch(wrapped, ids, mask)

        def ours(batch: Any = batch) -> list[list[int]]:
            return decoder(wrapped, batch).ids(batch.symbols)

        def theirs(ids: Any = ids, mask: Any = mask) -> list[list[int]]:
            output = model.generate(
                input_ids=ids, attention_mask=mask, num_beams=BEAM, do_sample=False, length_penalty=1.0,
                early_stopping=False, min_new_tokens=FORCED, max_new_tokens=FORCED, suppress_tokens=banned,
            )  # fmt: skip
            return output[:, 1:].tolist()

        say(f"  {name}, batch {size}")
        sides = {"unforced": ours, "generate": theirs}
        outputs = {side: search() for side, search in sides.items()}
        same = sum(a == b for a, b in zip(outputs["unforced"], outputs["generate"], strict=True))
        repeat = (1 if quick else 3) if size > 1 or "512" in name else (3 if quick else 10)
        times = interleave(
            {side: _timed(search, size, repeat) for side, search in sides.items()},
            2 if quick else 9,
            unit="ms/sentence",
        )
        figure = ratio(times["unforced"], times["generate"])
        medians = [statistics.median(times[side]) for side in sides]
        found.append(
            row(
                f"{name}, beam {BEAM}, batch {size}: cost per sentence",
                "generate",
                figure,
                target=f"<= {SEARCH}",
                passed=figure["median"] <= SEARCH,
                absolute=f"{medians[0]:.1f} and {medians[1]:.1f} ms; {same} of {size} outputs equal",
            )
        )
    return found


def _timed(search: Callable[[], list], sentences: int, repeat: int) -> Callable[[], float]:
    def turn() -> float:
        begin = time.perf_counter()
        for _ in range(repeat):
            search()
        return 1000 * (time.perf_counter() - begin) / (sentences * repeat)

    return turn


# ---- training ----


def _training(quick: bool) -> list[dict]:
    updates, rounds = (2, 2) if quick else (8, 9)
    turns = {
        "Trainer": _trainer(None, updates),
        "cross_entropy": _trainer(CrossEntropy(), updates),
        "parallel": _trainer(ParallelScheduledSampling(p=0.5), updates),
    }
    say("  trainers")
    times = interleave(turns, rounds, unit="ms/update")
    rows = []
    for name, side, target in (
        ("UnforcedTrainer, cross_entropy: cost per update", "cross_entropy", TRAINER),
        ("UnforcedTrainer, parallel scheduled sampling, p 0.5, one pass: cost per update", "parallel", PARALLEL),
    ):
        figure = ratio(times[side], times["Trainer"])
        medians = [statistics.median(times[key]) for key in (side, "Trainer")]
        rows.append(
            row(
                name,
                "Trainer",
                figure,
                target=f"<= {target}",
                passed=figure["median"] <= target,
                absolute=f"{medians[0]:.0f} and {medians[1]:.0f} ms",
            )
        )
    return rows


def _trainer(objective: Any, updates: int) -> Callable[[], float]:
    """Return a turn of this many updates, which returns milliseconds per update."""

    class Clock(transformers.TrainerCallback):
        times: list[float]

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.times = []

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.times.append(time.perf_counter())

    torch.manual_seed(1)
    model = _t5(512, 2048, 6, 8, 32128)
    rng = torch.Generator().manual_seed(2)
    data = []
    for _ in range(ROWS * (updates + 1)):
        lengths = torch.randint(TARGET // 2, TARGET, (2,), generator=rng).tolist()
        source, labels = (torch.randint(3, 32128, (n,), generator=rng).tolist() for n in lengths)
        data.append({"input_ids": [*source, 1], "labels": [*labels, 1]})
    arguments = transformers.TrainingArguments(
        output_dir=tempfile.mkdtemp(), use_cpu=True, max_steps=updates + 1, per_device_train_batch_size=ROWS,
        optim="adamw_torch_fused", learning_rate=1e-4, logging_strategy="no", save_strategy="no", report_to="none",
        disable_tqdm=True, seed=1,
    )  # fmt: skip
    options: dict[str, Any] = {} if objective is None else {"objective": objective}
    clock = Clock()
    kind = transformers.Trainer if objective is None else unforced.UnforcedTrainer
    trainer = kind(
        model=model, args=arguments, train_dataset=data, data_collator=_collate, callbacks=[clock], **options
    )
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)

    def turn() -> float:
        trainer.train()
        return 1000 * (clock.times[-1] - clock.times[0]) / (len(clock.times) - 1)

    return turn


def _collate(items: list[dict[str, list[int]]]) -> dict[str, Any]:
    ids = pad_sequence([torch.tensor(item["input_ids"]) for item in items], batch_first=True)
    labels = pad_sequence([torch.tensor(item["labels"]) for item in items], batch_first=True, padding_value=-100)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}
