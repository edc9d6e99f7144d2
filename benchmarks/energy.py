"""Measure masked models: sweeps against a plain loop, scoring against minicons, and log Z by enumeration."""

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

import corpus
from harness import HERE, WORK, SideError, Sides, interleave, ratio, row, say
from models import train
from plain_chains import plain_sweep
from unforced.chains.readers import open_model
from unforced.energy.metropolis_hastings import MetropolisHastings
from unforced.energy.pseudo_log_likelihood import TOKENS, pseudo_log_likelihood
from unforced.energy.samplers import sweep
from unforced.models.masked import Masked
from unforced.objectives.masked_lm import MaskedLM
from unforced.tasks.codecs import collate
from unforced.types import Encoded, Sizes, Symbols
from updates import allocated

SENTENCES, LENGTH = 32, 12
UPDATES = 1500  # the rate of rejections, and so the cost of a step, depends on training
FASTER, SCORING, FLAT = 10.0, 1.5, 1.25  # the targets
MINUTES, GIGABYTES = 10.0, 4.0
BATCH = 32  # sentences scored together
SIZES = {
    "vocab_size": 30_522,
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
}
PIECES = 2000  # few, so that many words have several
MINICONS = HERE / ".venv-minicons" / "bin" / "python"


def run(*, quick: bool, threads: int) -> dict:
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    data = corpus.prepare(WORK)
    updates = UPDATES // 10 if quick else UPDATES
    model = trained(data, updates)
    batch = sentences(data, SENTENCES, LENGTH)
    rows = _sweep(model, batch, 1 if quick else 3)
    found, versions = _scoring(data, quick, threads)
    rows += [*found, *_memory(data), *_partition(quick, threads)]
    settings = {
        "model": f"masked Transformer, 4 layers, 256 wide, {data.vocabulary} pieces,"
        f" after {updates} updates of masked_lm",
        "sentences": f"{SENTENCES} of {LENGTH} pieces, from {data.name}",
        "plain loop": "Goyal (2021), Algorithm 4, with the energy of the present state kept:"
        " one forward pass per masked position, sentence by sentence",
        "scored model": "BERT-mini's sizes (4 layers, 256 wide, 30,522 pieces), random weights;"
        " a WordPiece tokenizer with 2,000 used pieces, trained on the text",
        "scoring": f"{BATCH} sentences at a time, from text to pseudo-log-likelihood;"
        " minicons with its fastest of several batch sizes",
    }
    return {"rows": rows, "settings": settings, "versions": versions}


def trained(data: corpus.Corpus, updates: int) -> Any:
    """Return a masked Transformer trained on the English side, kept in ``WORK`` for the next run."""
    torch.manual_seed(1)
    model = Masked().build(Sizes(data.vocabulary))
    kept = WORK / f"masked-{data.name}-{updates}.safetensors"
    if kept.is_file():
        model.load_state_dict(load_file(kept))
        return model.eval()
    say(f"  training the masked model, {updates} updates (kept for the next run)")
    targets = [target for _, target in data.ids("train")]
    train(model, MaskedLM(), updates, len(targets), lambda rows: collated([targets[i] for i in rows]))
    save_file(model.state_dict(), kept)
    return model.eval()


def collated(targets: list[list[int]]) -> Any:
    symbols = Symbols(corpus.PAD, corpus.BOS, corpus.EOS, banned=(corpus.UNK, corpus.PAD, corpus.BOS))
    return collate([Encoded(None, target) for target in targets], list(range(len(targets))), symbols)


def sentences(data: corpus.Corpus, count: int, length: int) -> Any:
    """Return a batch of sentences of exactly ``length`` pieces, without the end symbol."""
    targets = [target for split in ("dev", "train") for _, target in data.ids(split)]
    fitting = [target for target in targets if len(target) == length + 1 and corpus.UNK not in target]
    return collated(fitting[:count])


def _sweep(model: Any, batch: Any, rounds: int) -> list[dict]:
    """Compare a sweep over all sentences with the plain loop, with the same random numbers."""
    rows = []
    for energy in ("raw", "local"):
        say(f"  a sweep, E_{energy}")
        sampler = MetropolisHastings(energy=energy)
        kernel = sampler.kernel(model, batch)
        state = kernel.init(batch.gold)
        results: dict[str, Any] = {}

        def ours(kernel=kernel, state=state, results=results) -> float:
            begin = time.perf_counter()
            results["ours"], _ = sweep(kernel, torch.Generator().manual_seed(1), state)
            return time.perf_counter() - begin

        def plain(sampler=sampler, state=state, results=results) -> float:
            begin = time.perf_counter()
            results["plain"] = plain_sweep(sampler, model, batch, state, torch.Generator().manual_seed(1))
            return time.perf_counter() - begin

        times = interleave({"plain": plain, "ours": ours}, rounds, unit="s/sweep", warm_up=False)
        figure = ratio(times["plain"], times["ours"])
        same = int((results["ours"].tokens == results["plain"][0]).all(dim=1).sum())
        moved = int((results["ours"].tokens != batch.gold).any(dim=1).sum())
        apart = float((results["ours"].energy - results["plain"][1]).abs().max())
        medians = [statistics.median(times[name]) for name in ("ours", "plain")]
        rows.append(
            row(
                f"a sweep, E_{energy}, {len(batch)} sentences of {LENGTH}: times as fast",
                "the plain loop",
                figure,
                target=f">= {FASTER:g}, same sequences",
                passed=figure["median"] >= FASTER and same == len(batch),
                absolute=f"{medians[0]:.2f} and {medians[1]:.2f} s; {same} of {len(batch)} sequences equal, "
                f"{moved} of which moved, energies within {apart:.1g}",
            )
        )
    return rows


# ---- scoring ----


def texts(data: corpus.Corpus) -> list[str]:
    """Return the English sentences as text."""
    lines = []
    for split in ("dev", "train"):
        for _, target in data.pairs(split):
            whole = any(piece.endswith("</w>") for piece in target)
            lines.append("".join(target).replace("</w>", " ").strip() if whole else " ".join(target))
    return [line for line in lines if corpus.RESERVED[corpus.UNK] not in line]


def scored_model(data: corpus.Corpus) -> Path:
    """Save a BERT with random weights and a tokenizer trained on the text; return its folder."""
    folder = WORK / f"bert-mini-{data.name}-{PIECES}-of-{SIZES['vocab_size']}"
    if (folder / "ready").is_file():
        return folder
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=PIECES, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(texts(data), trainer)
    vocabulary = tokenizer.get_vocab()
    vocabulary |= {f"[unused{i}]": i for i in range(len(vocabulary), SIZES["vocab_size"])}
    tokenizer.model = models.WordPiece(vocabulary, unk_token="[UNK]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
    transformers.BertTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=512, do_lower_case=False, **dict(zip(names, special))
    ).save_pretrained(folder)
    torch.manual_seed(1)
    config = transformers.BertConfig(**SIZES, max_position_embeddings=512, pad_token_id=0)
    transformers.BertForMaskedLM(config).save_pretrained(folder)
    (folder / "ready").touch()
    return folder


def _scoring(data: corpus.Corpus, quick: bool, threads: int) -> tuple[list[dict], dict[str, str]]:
    say("  scoring against minicons")
    _minicons()
    folder = scored_model(data)
    lines = texts(data)[: BATCH * 20]
    content = {"folder": str(folder), "lines": lines, "batch": BATCH}
    path = WORK / "scoring.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    options = {"file": str(path), "threads": threads}
    rows, rounds, turns = [], (2 if quick else 7), (2 if quick else 10)
    for masking, name in (("single", "each piece masked by itself"), ("left_to_right", "word by word (l2r)")):
        with Sides() as sides:
            ours = sides.start(f"score-{masking}", "scoring_side.py", {**options, "masking": masking})
            theirs = sides.start(
                f"minicons-{masking}", "minicons_side.py", {**options, "masking": masking}, python=MINICONS
            )
            versions = {**ours.facts["versions"], **theirs.facts["versions"]}
            for side in (ours, theirs):
                side.turn(2)
            speeds = interleave(
                {side.name: (lambda side=side: side.turn(turns).speed) for side in (ours, theirs)},
                rounds,
                unit="sentences/s",
                warm_up=False,
            )
        apart = max(abs(a - b) for a, b in zip(ours.facts["scores"], theirs.facts["scores"], strict=True))
        figure = ratio(speeds[ours.name], speeds[theirs.name])
        medians = [statistics.median(speeds[side.name]) for side in (ours, theirs)]
        rows.append(
            row(
                f"scoring, {name}: sentences per second",
                "minicons",
                figure,
                target=f">= {SCORING}, equal scores",
                passed=figure["median"] >= SCORING and apart < 1e-3,
                absolute=f"{medians[0]:.0f} and {medians[1]:.0f} sentences/s (its fastest batch: "
                f"{theirs.facts['batch']}); scores within {apart:.1g}",
            )
        )
    return rows, versions


def _minicons() -> None:
    """Create the environment of minicons if it does not exist."""
    if not MINICONS.exists():
        say("  creating the environment of minicons, which takes minutes")
    done = subprocess.run([str(HERE / "minicons_setup.sh")], capture_output=True, text=True)
    if done.returncode:
        raise SideError(f"benchmarks/minicons_setup.sh failed: {done.stderr.strip()[-600:]}")


def _memory(data: corpus.Corpus) -> list[dict]:
    """Compare the peak memory of scoring long sentences with that of short ones."""
    say("  memory by the length of sentences")
    reader = open_model(scored_model(data))
    pieces = " ".join(texts(data)[:200]).split()
    most = {}
    for size, lines in ((20, 8), (200, 1)):  # both have more masked copies than a micro-batch
        cut = [" ".join(pieces[start : start + size]) for start in range(0, lines * size, size)]
        batch = reader.collate([reader.read(line) for line in cut])
        most[size] = allocated(lambda batch=batch: pseudo_log_likelihood(reader.model, batch))
    figure = most[200] / most[20]
    return [
        row(
            "scoring, peak memory, sentences of 200 words",
            "of 20 words",
            {"median": figure},
            target=f"<= {FLAT}",
            passed=figure <= FLAT,
            absolute=f"{most[200] / 2**20:.0f} and {most[20] / 2**20:.0f} MiB; micro-batches of {TOKENS} tokens",
        )
    ]


# ---- log Z ----


def _partition(quick: bool, threads: int) -> list[dict]:
    """Compute log Z of a field over all strings in a child process, and measure its memory."""
    length = 4 if quick else 6
    say(f"  log Z over 39^{length} strings")
    options = {"alphabet": 39, "length": length, "hidden": 64, "threads": threads}
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    done = subprocess.run(
        [sys.executable, str(HERE / "sides" / "partition_side.py"), json.dumps(options)],
        capture_output=True,
        text=True,
        env=environment,
    )
    if done.returncode:
        raise SideError(f"log Z ended with code {done.returncode}: {done.stderr.strip()[-600:]}")
    found = json.loads(done.stdout.splitlines()[-1])
    minutes, peak = found["seconds"] / 60, found["peak"] / 2**30
    whole = length == 6
    value = f"log Z = {found['log_z']:.6f}"
    return [
        row(
            f"log Z over 39^{length} strings, hidden size 64: minutes",
            "—",
            {"median": minutes},
            target=f"< {MINUTES:g}" if whole else None,
            passed=minutes < MINUTES if whole else None,
            absolute=value,
        ),
        row(
            f"log Z over 39^{length} strings: peak memory of the process, GiB",
            "—",
            {"median": peak},
            target=f"< {GIGABYTES:g}" if whole else None,
            passed=peak < GIGABYTES if whole else None,
        ),
    ]
