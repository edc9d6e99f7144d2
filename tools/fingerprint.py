"""Record hashes of numeric behaviour, and check that a refactoring changes none of them.

    python tools/fingerprint.py record [SECTION ...]    write the hashes into tools/fingerprint.json
    python tools/fingerprint.py check [SECTION ...]     compare with them; exit code 1 if anything differs
    python tools/fingerprint.py --list                  list the sections

The hashes cover raw bytes on one thread, so they hold for the machine and the library versions that recorded them.
Only public names are used: files, modules, parameters and metrics may move or be renamed, the numbers may not.
A combination that the library refuses with an ``InputError`` is recorded as "refused".
"""

import argparse
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import unforced

FILE = Path(__file__).with_suffix(".json")
Parts = dict[str, Any]  # part of an entry -> what is hashed
Entries = Iterator[tuple[str, Callable[[], Parts]]]

# ---- hashes ----


def digest(*values: Any) -> str:
    """Hash tensors by type, shape and bytes, everything else by its JSON."""
    total = hashlib.sha256()
    for value in values:
        if isinstance(value, Tensor):
            total.update(f"{value.dtype}{tuple(value.shape)}".encode())
            total.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        else:
            total.update(json.dumps(value, sort_keys=True, default=str).encode())
    return total.hexdigest()[:16]


def unordered(tensors: Any) -> list[str]:
    """Hash each tensor, and sort the hashes: names and order of the tensors do not matter."""
    return sorted(digest(tensor) for tensor in tensors)


# ---- data: small files, and the batches made of them ----


@cache
def folder() -> Path:
    """A temporary folder with the data files, removed at the end."""
    place = Path(tempfile.mkdtemp(prefix="fingerprint-"))
    rng = random.Random(0)
    sources = ["".join(rng.choices("abcd", k=rng.randint(1, 4))) for _ in range(60)]
    targets = [source[::-1].translate(str.maketrans("abcd", "wxyz")) for source in sources]
    words = [[f"{letter}{rng.randint(0, 2)}" for letter in source] for source in sources]
    tags = ["".join(f"{word}\t{'wxyx'['abcd'.index(word[0])]}\n" for word in row) for row in words]
    vectors = [f"{letter} {' '.join(str(rng.randint(-9, 9)) for _ in range(3))}\n" for letter in "wxyz"]
    (place / "pairs.tsv").write_text("".join(f"{s}\t{t}\n" for s, t in zip(sources, targets)))
    (place / "text.txt").write_text("".join(f"{target}\n" for target in targets))
    (place / "tags.conll").write_text("\n".join(tags))
    (place / "vectors.txt").write_text("".join(vectors))
    (place / "costs.tsv").write_text("w\tx\t0.25\nx\ty\t3.0\n")
    return place


def path(name: str) -> str:
    return str(folder() / name)


@cache
def fitted_task(name: str) -> tuple[Any, list[Any]]:
    """A task with the codec that it learns, and its training examples; those of pairs have a second reference."""
    tasks: dict[str, Callable[[], Any]] = {
        "pairs": lambda: unforced.task(
            "pairs", train=path("pairs.tsv"), source_tokens="characters", target_tokens="characters"
        ),
        "language": lambda: unforced.task("language", train=path("text.txt"), tokens="characters"),
        "tagging": lambda: unforced.task("tagging", train=path("tags.conll"), min_count=1),
        "palindromes": lambda: unforced.task("palindromes", alphabet=3, length=4, size=40, held_out=10),
    }
    task = tasks[name]()
    examples = task.read("train")
    fitted = unforced.FittedTask(task, task.fit(examples))
    if name == "pairs":
        examples = [each._replace(references=(each.target, each.target[1:] + "wz")) for each in examples]
    return fitted, list(examples)


# ---- models ----

SMALL = {"width": 8, "heads": 2, "feedforward": 12}
LAYERS = {"encoder_layers": 1, "decoder_layers": 2}
LANGUAGE = {"lengths": 8, "normalizer": 8}

# kind -> data, model, and the model's fields
WRITERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "lstm": ("pairs", "lstm", {"hidden": 6, "embedding": 5, "dropout": 0.0}),
    "lstm_deep": ("pairs", "lstm", {"hidden": 6, "embedding": 6, "layers": 2, "input_feeding": True, "tie": True,
                                    "bidirectional": False, "dropout": 0.2}),
    "lstm_fixed": ("tagging", "lstm", {"hidden": 6, "embedding": 5, "attention": "fixed", "dropout": 0.1}),
    "transformer": ("pairs", "transformer", {**SMALL, **LAYERS, "dropout": 0.1}),
    "causal": ("language", "causal", {**SMALL, "layers": 2, "dropout": 0.0}),
    "toy": ("pairs", "toy", {"order": 2}),
}  # fmt: skip
OTHER_SOURCES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "lstm_image": ("image", "lstm", {"hidden": 6, "embedding": 5, "dropout": 0.0, "convolution": {"channels": [4, 6]}}),
    "transformer_image": ("image", "transformer", {**SMALL, **LAYERS, "convolution": {"channels": [4, 6]}}),
    "causal_class": ("class", "causal", {**SMALL, "layers": 1, "dropout": 0.1}),
}  # fmt: skip
FILLERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "masked": ("language", "masked", {**SMALL, **LANGUAGE, "layers": 2, "dropout": 0.1}),
    "masked_learned": (
        "palindromes",
        "masked",
        {**SMALL, "layers": 1, "dropout": 0.0, "positions": "learned"},
    ),
    "conditional_masked": ("pairs", "conditional_masked", {**SMALL, **LAYERS, "dropout": 0.0, "longest": 6}),
    "field": ("palindromes", "field", {"hidden": 5, "embedding": 4}),
    "field_ended": ("language", "field", {**LANGUAGE, "hidden": 5, "embedding": 4, "dropout": 0.1}),
}
KINDS = {**WRITERS, **OTHER_SOURCES, **FILLERS}


def build(kind: str, seed: int = 3) -> tuple[nn.Module, unforced.Batch, Any, list[Any]]:
    """A network in training mode, a batch for it, its task, and the training examples."""
    data, name, fields = KINDS[kind]
    task, examples = fitted_task("pairs" if data in ("image", "class") else data)
    batch, sizes = unforced.batch(task, examples[:6]), task.codec.sizes
    rng = torch.Generator().manual_seed(1)
    if data == "image":
        sizes = unforced.Sizes(target=sizes.target, image=(1, 8, 8))
        batch = replace(batch, source=torch.rand(6, 1, 8, 8, generator=rng), source_mask=None)
    elif data == "class":
        sizes = unforced.Sizes(target=sizes.target, classes=4)
        batch = replace(batch, source=torch.randint(4, (6,), generator=rng), source_mask=None)
    torch.manual_seed(seed)
    network = unforced.model(name, **fields).build(sizes)
    with torch.no_grad():
        for parameter in network.parameters():  # far from uniform distributions
            parameter.mul_(1.5)
    return network.train(), batch, task, examples


# ---- section objectives ----

TOKEN: dict[str, Any] = {"tau": 0.3, "mix": 0.6, "nearest": 3}
OBJECTIVES: dict[str, list[dict[str, Any]]] = {
    "cross_entropy": [{}],
    "label_smoothing": [{"smoothing": 0.1}],
    "self_normalized": [{"strength": 0.1}],
    "scheduled_sampling": [
        {"feed": "argmax", "mixing": 0.5, "dropout": False},
        {"feed": "sample", "mixing": {"name": "linear", "end": 0.2, "over": 2.0}},
        {"feed": "soft_argmax", "mixing": 0.5, "alpha": 2.0},
        {"feed": "soft_sample", "mixing": {"name": "inverse_sigmoid", "k": 2.0, "unit": "step"}},
    ],
    "parallel_scheduled_sampling": [
        {"p": 0.5},
        {"p": 0.75, "passes": 3, "temperature": 0.7, "warmup": 9, "schedule": "sigmoid", "dropout": False},
        {"p": 1.0, "passes": 2, "pick": "argmax"},
    ],
    "token_smoothing": [
        TOKEN,
        {"tau": 0.5, "nearest": None, "vectors": "co-occurrence"},
        {"tau": 0.5, "vectors": "uniform"},
        {"tau": 0.5, "vectors": "FOLDER/vectors.txt"},
    ],
    "sequence_smoothing": [
        {"tau": 0.7},
        {"tau": 1.0, "mix": 0.4, "samples": 3, "vocabulary": "references"},
        {"tau": 0.3, "proposal_tau": 1.0, "reward": "bleu", "samples": 4, "vocabulary": "batch"},
        {"tau": 0.5, "reward": "cider", "samples": 2, "proposal_tau": 0.7},
        {"tau": 0.7, "reward": "edit", "proposal": "edit", "samples": 4, "mix": 0.7, "longest": 6},
        {"tau": 0.7, "lazy": True, "samples": None, "vocabulary": "references"},
    ],
    "token_sequence_smoothing": [
        {"token": TOKEN, "sequence": {"tau": 0.7, "mix": 0.5}},
        {"token": TOKEN, "sequence": {"tau": 0.7, "lazy": True, "samples": 2, "reward": "edit"}},
    ],
    "beam_search_optimization": [
        {"beam": 3, "cost": {"name": "confusions", "file": "FOLDER/costs.tsv"}},
        {"beam": {"name": "linear", "start": 2.0, "end": 4.0, "over": 2.0}, "scores": "local", "beyond": 1},
        {"beam": 2, "margin": 0.5, "dropout": True},
    ],
    "minimum_risk": [
        {"samples": 4, "alpha": 0.5, "mix": 0.2},
        {"samples": 3, "alpha": 1.0, "gold": False, "cost": "edit", "max_length": 3, "dropout": True},
        {"samples": 5, "alpha": 0.5, "cost": "bleu", "temperature": 0.7, "max_length": 4},
    ],
    "soft_beam": [
        {"alpha": 2.0},
        {"beam": 2, "alpha": 1.0, "loss": "hinge", "scores": "global", "clip": 0.1},
        {"beam": 3, "alpha": 2.0, "beyond": 1, "cost": {"name": "weighted_hamming", "token": "w"}},
        {"beam": 2, "alpha": 1.0, "scores": "global", "mix": 0.5, "strength": 0.1, "dropout": True},
        {"beam": 4, "alpha": 5.0, "keep": None, "beyond": 2},
        {"beam": 3, "alpha": 2.0, "checkpoint": True, "keep": 2, "tolerance": 0.0, "beyond": 14},
    ],
}  # fmt: skip
MASKED_OBJECTIVES: dict[str, list[dict[str, Any]]] = {
    "masked_lm": [{}, {"hidden": "one"}, {"hidden": "each"}, {"hidden": "fixed", "rate": 0.6, "length_weight": 1.0}],
    "pseudo_likelihood": [{}, {"energy": "local", "rows": 40}, {"positions": 1, "rows": 30}],
    "exact_likelihood": [{}, {"energy": "local", "rows": 50}],
    "kl_projection": [{}, {"teacher": "TEACHER", "pseudo_likelihood": 0.0, "rows": 20},
                      {"teacher": "TEACHER", "positions": 2, "energy": "local"}],
    "noise_contrastive": [
        {"noise": "uniform", "samples": 3},
        {"noise": "unigram", "samples": 4, "form": "ranking", "energy": "local", "rows": 12},
        {"noise": "bigram", "samples": 3, "log_z": None},
        {"model": "TEACHER", "samples": 2, "log_z": 1.5},
    ],
}  # fmt: skip
SCHEDULES: list[tuple[str, str, dict[str, Any]]] = [  # name, objective and its fields
    ("constant", "soft_beam", {"alpha": {"name": "constant", "value": 1.5}}),
    ("linear", "soft_beam", {"alpha": {"name": "linear", "start": 1.0, "end": 4.0, "over": 3.0, "warmup": 1.0}}),
    ("exponential", "soft_beam", {"alpha": {"name": "exponential", "start": 0.5, "rate": 1.1, "unit": "step"}}),
    ("sigmoid", "soft_beam", {"alpha": {"name": "inverse_sigmoid", "start": 3.0, "k": 1.5, "end": 0.5}}),
    ("always", "scheduled_sampling", {"mixing": {"name": "always", "start": 0.5, "warmup": 6, "unit": "step"}}),
    *((f"rise {shape}", "parallel_scheduled_sampling", {"p": 0.9, "warmup": 8, "schedule": shape})
      for shape in ("step", "linear", "exponential", "sigmoid")),
]  # fmt: skip
MIDDLE = unforced.Progress(step=5, epoch=1.5, total=10)


def loss_of(kind: str, name: str, fields: dict[str, Any], progress: unforced.Progress = MIDDLE) -> Parts:
    network, batch, task, examples = build(kind)
    text = json.dumps(fields).replace("FOLDER", str(folder()))
    fields = json.loads(text, object_hook=lambda table: {k: fill_in(kind, v) for k, v in table.items()})
    objective = unforced.fitted(unforced.objective(name, **fields), task, examples)
    torch.manual_seed(5)
    loss = objective(network, batch, progress=progress, rng=torch.Generator().manual_seed(7))
    return parts_of(loss, network)


def fill_in(kind: str, value: Any) -> Any:
    return build(kind, seed=8)[0].eval() if value == "TEACHER" else value


def parts_of(loss: unforced.Loss, network: nn.Module) -> Parts:
    """The loss with its metrics by value, and the gradients of all parameters."""
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss.total, parameters, allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g + 0.0 for g, p in zip(found, parameters)]
    metrics = sorted([float(total), float(count)] for total, count in loss.metrics.values())
    return {"loss": [loss.total, float(loss.count), metrics], "gradients": unordered(gradients)}


def objectives() -> Entries:
    """Losses, metrics and gradients of every objective on every kind of model."""
    for kinds, table in (WRITERS, OBJECTIVES), (FILLERS, MASKED_OBJECTIVES):
        for kind in kinds:
            for name, rows in table.items():
                for number, fields in enumerate(rows):
                    yield f"{name} {number} {kind}", partial(loss_of, kind, name, fields)
    for kind in OTHER_SOURCES:
        for name in "cross_entropy", "scheduled_sampling", "soft_beam":
            yield f"{name} 0 {kind}", partial(loss_of, kind, name, OBJECTIVES[name][0])
    for name, objective, fields in SCHEDULES:
        for step in 1, 4, 9:
            progress = unforced.Progress(step, step / 3, 10)
            yield f"schedule {name} at step {step}", partial(loss_of, "toy", objective, fields, progress)


# ---- section decoders ----

DECODERS: dict[str, list[dict[str, Any]]] = {
    "greedy": [{}, {"min_length": 2, "max_length": 5}],
    "sample": [
        {},
        {"temperature": 0.7, "top_k": 3, "samples": 2},
        {"nucleus": 0.8, "samples": 3},
        {"max_length": 3},
    ],
    "beam": [
        {},
        {"beam": 3, "nbest": 3, "length_penalty": 0.5, "early_stopping": "full"},
        {"beam": 4, "finished": "stay", "nbest": 2},
        {"beam": 2, "early_stopping": "never", "scores": "global", "min_length": 2, "max_length": 7},
    ],
    "soft_beam": [
        {},
        {"beam": 2, "alpha": 1.0, "scores": "global"},
        {"keep": 2, "tolerance": 0.0, "max_length": 6},
    ],
    "gold_history": [{}],
}
MASKED_DECODERS: dict[str, list[dict[str, Any]]] = {
    "mask_predict": [{}, {"iterations": 3, "lengths": 3, "rows": 4}],
    "chain": [
        {"sweeps": 4},
        {"sweeps": 3, "chains": 3, "start": "random", "output": "lowest",
         "kernel": {"name": "metropolis_hastings", "block": 2, "energy": "raw", "anneal": 0.2}},
        {"sweeps": 3, "kernel": {"name": "gibbs", "temperature": 0.7}},
    ],
}  # fmt: skip


def decoded(kind: str, name: str, fields: dict[str, Any]) -> Parts:
    network, batch, _, _ = build(kind)
    found = unforced.decode(network, batch, name, rng=torch.Generator().manual_seed(9), **fields)
    return {"tokens": [found.tokens, found.lengths], "scores": [found.log_probs, found.scores]}


def decoders() -> Entries:
    """Outputs and scores of every decoder on every kind of model."""
    for kinds, table in ({**WRITERS, **OTHER_SOURCES}, DECODERS), (FILLERS, MASKED_DECODERS):
        for kind in kinds:
            for name, rows in table.items():
                for number, fields in enumerate(rows):
                    yield f"{name} {number} {kind}", partial(decoded, kind, name, fields)


# ---- section training ----

PAIRS = {"name": "pairs", "train": "FOLDER/pairs.tsv", "source_tokens": "characters", "target_tokens": "characters",
         "hold_out": 0.2, "measures": ["exact", "bleu", "chrf"]}  # fmt: skip
PALINDROMES = {"name": "palindromes", "alphabet": 3, "length": 4, "size": 60, "held_out": 12,
               "measures": ["masked_nll", "pseudo_nll"]}  # fmt: skip
TRAINING = {
    "steps": 30,
    "epochs": 99,
    "batch_tokens": 60,
    "validate_every": 10,
    "save_every": 10,
    "log_every": 5,
}
DECODING = {"greedy": {"method": "greedy"}, "beam": {"method": "beam", "beam": 3}}
RECIPES: dict[str, dict[str, Any]] = {
    "lstm": {
        "task": PAIRS,
        "model": {"name": "lstm", "hidden": 12, "embedding": 8, "dropout": 0.1},
        "objective": {"name": "scheduled_sampling", "feed": "sample", "mixing": 0.7},
        "training": {**TRAINING, "accumulate": 2, "schedule": "cosine", "warmup": 5, "weight_decay": 0.01},
    },
    "transformer": {
        "task": PAIRS,
        "model": {"name": "transformer", **SMALL, **LAYERS, "dropout": 0.1},
        "objective": {"name": "label_smoothing"},
        "training": {
            **TRAINING,
            "schedule": "inverse_sqrt",
            "warmup": 10,
            "max_rows": 7,
            "clip": 0.5,
            "average": 2,
        },
    },
    "warm start": {
        "task": {**PAIRS, "log_z": True},
        "model": {"name": "lstm", "hidden": 12, "embedding": 8, "dropout": 0.1},
        "objective": {"name": "soft_beam", "beam": 2},
        "training": {**TRAINING, "steps": 10, "warm_start": "FOLDER/lstm", "precision": "bf16"},
    },
    "field": {
        "task": PALINDROMES,
        "model": {"name": "field", "hidden": 8, "embedding": 6},
        "objective": {"name": "pseudo_likelihood", "positions": 2},
        "training": {**TRAINING, "validate": "mask_predict", "schedule": "linear"},
        "decoding": {"mask_predict": {"method": "mask_predict", "iterations": 2}},
    },
}


def recipe_file(name: str) -> str:
    """A recipe as a file, with the paths of the data filled in; JSON values are TOML values too."""
    recipe = {"decoding": DECODING, **RECIPES[name]}
    lines = ['name = "tiny"', 'description = "A small recipe"', "seeds = [1]"]
    for part in "task", "model", "objective", "training":
        lines += [f"[{part}]", *(f"{key} = {json.dumps(value)}" for key, value in recipe[part].items())]
    for decoder, fields in recipe["decoding"].items():
        lines += [f"[decoding.{decoder}]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items())]
    file = folder() / f"{name}.toml"
    file.write_text("\n".join(lines).replace("FOLDER", str(folder())))
    return str(file)


@cache
def trained(name: str) -> Path:
    return unforced.train(recipe_file(name), run=folder() / name, quiet=True)


def run_parts(run: Path, **own: Any) -> Parts:
    """What a run came to: weights, log, scores and predictions (these three by the files of docs/design.md)."""
    weights = [
        unordered(unforced.load(run, which, **own).model.state_dict().values()) for which in ("best", "last")
    ]
    scores = unforced.evaluate(run, quiet=True, **own)
    statistics = [json.loads(file.read_text())["metrics"] for file in sorted(run.glob("scores/*.json"))]
    outputs = [line for file in sorted(run.glob("predictions/*.jsonl")) for line in read_lines(file)]
    return {
        "weights": weights,
        "log": [sorted(numbers(event)) for event in read_lines(run / "metrics.jsonl")],
        "scores": [scores, list(numbers(statistics))],
        "predictions": [[each["output"], each["log_prob"]] for each in outputs],
    }


def read_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def numbers(data: Any) -> Iterator[float]:
    """All numbers of JSON data but measured times."""
    if isinstance(data, dict):
        yield from (n for key, value in data.items() if "seconds" not in key for n in numbers(value))
    elif isinstance(data, list):
        yield from (n for value in data for n in numbers(value))
    elif isinstance(data, float | int):
        yield float(data)


class Failing:
    """An objective that ends the run after so many calls: a resumed run then must come to what a whole one does."""

    calls = 10**9

    def __call__(self, model: Any, batch: Any, **rest: Any) -> unforced.Loss:
        Failing.calls -= 1
        if Failing.calls < 0:
            raise RuntimeError
        return unforced.objective("scheduled_sampling", feed="sample", mixing=0.5)(model, batch, **rest)


def fit_own(place: str, resume: bool) -> Parts:
    """A run of an objective of the user's own, interrupted after 17 updates and resumed, or in one piece."""
    task = fitted_task("pairs")[0].task
    own = unforced.model("lstm", hidden=8, embedding=6, dropout=0.2)
    fit = partial(unforced.fit, own, task, Failing(), folder() / place, quiet=True, **TRAINING)
    if resume:
        Failing.calls = 17
        try:
            fit()
        except RuntimeError:
            Failing.calls = 10**9
    return run_parts(fit(resume=resume))


def training() -> Entries:
    """Short runs: weights, logs, scores and predictions, also of a run that was interrupted and resumed."""
    for name in RECIPES:
        yield name, lambda name=name: run_parts(trained(name))
    yield "own objective", partial(fit_own, "whole", resume=False)
    yield "own objective", partial(fit_own, "resumed", resume=True)


# ---- commands ----

SECTIONS: dict[str, Callable[[], Entries]] = {
    "objectives": objectives,
    "decoders": decoders,
    "training": training,
}


def hashes(section: str) -> dict[str, str]:
    """All entries of a section; one that fails has the error in place of a hash."""
    found = {}
    for name, compute in SECTIONS[section]():
        try:
            parts = compute()
        except unforced.InputError as error:
            found[f"{section}: {name}"] = "refused"
            if os.environ.get("FINGERPRINT_SHOW"):
                print(name, "refused:", error)
            continue
        except Exception as error:
            found[f"{section}: {name}"] = f"failed: {type(error).__name__}: {error}"
            continue
        for part, values in parts.items():
            key, value = f"{section}: {name}, {part}", digest(*values)
            found[key] = (
                value if found.get(key, value) == value else "failed: two computations of this differ"
            )
    return found


def record(sections: list[str]) -> int:
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    for section in sections:
        known = {name: value for name, value in known.items() if not name.startswith(f"{section}: ")}
        new = hashes(section)
        if failed := [f"  {name}: {value}" for name, value in new.items() if value.startswith("failed")]:
            print(f"{section}: not recorded", *failed, sep="\n")
            return 1
        known |= new
        print(f"{section}: {len(new)} hashes recorded")
    FILE.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")
    return 0


def check(sections: list[str]) -> int:
    known, wrong = json.loads(FILE.read_text()), 0
    for section in sections:
        began = time.perf_counter()
        new = hashes(section)
        old = {name: value for name, value in known.items() if name.startswith(f"{section}: ")}
        lines = [f"  {name}: {old.get(name, 'not recorded')} -> {new.get(name, 'missing')}"
                 for name in sorted(old | new) if old.get(name) != new.get(name)]  # fmt: skip
        verdict = f"{len(lines)} of {len(old | new)} differ" if lines else "same"
        print(
            f"{section}: {verdict} ({len(old)} hashes, {time.perf_counter() - began:.0f} s)", *lines, sep="\n"
        )
        wrong += len(lines)
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", nargs="?", choices=["record", "check"], help="what to do")
    parser.add_argument(
        "sections", nargs="*", metavar="SECTION", help=f"any of: {', '.join(SECTIONS)}; default: all"
    )
    parser.add_argument("--list", action="store_true", help="list the sections")
    options = parser.parse_args()
    if options.list or options.command is None:
        for name, section in SECTIONS.items():
            print(f"{name:15} {section.__doc__}")
        return 0
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"no section {', '.join(sorted(unknown))}; the sections are {', '.join(SECTIONS)}")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    warnings.simplefilter("ignore")
    try:
        return (record if options.command == "record" else check)(options.sections or list(SECTIONS))
    finally:
        shutil.rmtree(folder())


if __name__ == "__main__":
    sys.exit(main())
