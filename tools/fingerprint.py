"""Record hashes of numeric behaviour, and check that a refactoring changes none of them.

    python tools/fingerprint.py record [SECTION ...]    write the hashes into tools/fingerprint.json
    python tools/fingerprint.py check [SECTION ...]     compare with them; exit code 1 if anything differs
    python tools/fingerprint.py --list                  list the sections

The hashes cover raw bytes computed on one thread, so they hold for the machine and the library versions that recorded
them. Cases are in tools/fingerprint.toml. They use public names only: files, modules, parameters and metrics may be
moved or renamed, the numbers may not change. What raises an ``InputError`` is recorded as "refused".
"""

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
import time
import tomllib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import fields as fields_of
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn

import unforced

CASES = Path(__file__).with_suffix(".toml")
FILE = CASES.with_suffix(".json")
Parts = dict[str, Any]  # part of an entry -> what is hashed
Entries = Iterator[tuple[str, Callable[[], Parts]]]


def huggingface_batch(model: Any, inputs: dict[str, Tensor]) -> unforced.Batch:
    """Everything here that the package does not offer at its top: change this function when it moves."""
    from unforced.huggingface.batches import batch

    return batch(model, **inputs)


# ---- hashes ----


def digest(value: Any) -> str:
    """Hash a tensor by type, shape and bytes, a list by its elements, everything else by its JSON."""
    total = hashlib.sha256()
    if isinstance(value, list | tuple):
        total.update(" ".join(map(digest, value)).encode())
    elif isinstance(value, Tensor | np.ndarray):
        array = torch.as_tensor(value).detach().cpu().contiguous()
        total.update(f"{array.dtype}{tuple(array.shape)}".encode())
        total.update(array.flatten().view(torch.uint8).numpy().tobytes())
    else:
        total.update(json.dumps(value, sort_keys=True, default=str).encode())
    return total.hexdigest()[:16]


def unordered(values: Any) -> list[str]:
    """Hash values one by one, and sort the hashes: their names and their order do not matter."""
    return sorted(map(digest, values))


def numbers(data: Any) -> Iterator[float]:
    """All numbers of JSON data but measured times."""
    if isinstance(data, dict):
        kept = {k: v for k, v in data.items() if "seconds" not in k and k not in ("cost", "minutes", "threads")}
        data = list(kept.values())
    if isinstance(data, list):
        yield from (number for value in data for number in numbers(value))
    elif isinstance(data, float | int):
        yield float(data)


def read_lines(folder: Path, pattern: str) -> list[Any]:
    return [json.loads(line) for file in sorted(folder.glob(pattern)) for line in file.read_text().splitlines()]


# ---- data and models ----


@cache
def folder() -> Path:
    """A temporary folder with the data files; ``main`` removes it."""
    place = Path(tempfile.mkdtemp(prefix="fingerprint-"))
    for name, text in tomllib.loads(CASES.read_text())["files"].items():
        (place / name).write_text(text)
    pictures = np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8)
    np.savez(place / "pictures.npz", x=pictures)
    return place


@cache
def cases() -> dict[str, Any]:
    return tomllib.loads(CASES.read_text().replace("FOLDER", str(folder())))


def fill_in(value: Any, teacher: Callable[[], nn.Module]) -> Any:
    """The fields of a case, "none" and "TEACHER" replaced."""
    if isinstance(value, dict):
        return {key: fill_in(inner, teacher) for key, inner in value.items()}
    return teacher() if value == "TEACHER" else None if value == "none" else value


@cache
def fitted_task(name: str) -> tuple[unforced.FittedTask, list[unforced.Example]]:
    """A task with the codec that it learns, and its training examples; those of pairs have a second reference."""
    task = unforced.task(**cases()["tasks"][name])
    examples = list(task.read("train"))
    fitted = unforced.FittedTask(task, task.fit(examples))
    if name == "pairs":
        examples = [each._replace(references=(each.target, each.target[1:] + "wz")) for each in examples]
    return fitted, examples


def build(group: str, kind: str, seed: int = 3) -> tuple[nn.Module, unforced.Batch, Any, list[Any]]:
    """A network in training mode, a batch of ragged lengths, and the task and examples that objectives are fitted to."""
    fields = dict(cases()[group][kind])
    data, rng = fields.pop("data"), torch.Generator().manual_seed(1)
    task, examples = fitted_task("pairs" if data in ("image", "class") else data)
    batch, sizes = unforced.batch(task, examples[:6]), task.codec.sizes
    if data == "image":
        sizes = unforced.Sizes(target=sizes.target, image=(1, 8, 8))
        batch = replace(batch, source=torch.rand(6, 1, 8, 8, generator=rng), source_mask=None)
    elif data == "class":
        sizes = unforced.Sizes(target=sizes.target, classes=4)
        batch = replace(batch, source=torch.randint(4, (6,), generator=rng), source_mask=None)
    torch.manual_seed(seed)
    network = unforced.model(**fields).build(sizes).train()
    with torch.no_grad():
        for parameter in network.parameters():  # far from uniform distributions
            parameter.mul_(1.5)
    return network, batch, task, examples


# ---- section objectives ----

MIDDLE = unforced.Progress(step=5, epoch=1.5, total=10)


def loss_of(group: str, kind: str, name: str, fields: Any, progress: unforced.Progress = MIDDLE) -> Parts:
    network, batch, task, examples = build(group, kind)
    fields = fill_in(fields, lambda: build(group, kind, seed=8)[0].eval())
    return loss_parts(unforced.fitted(unforced.objective(name, **fields), task, examples), network, batch, progress)


def loss_parts(objective: Any, network: Any, batch: unforced.Batch, progress: unforced.Progress = MIDDLE) -> Parts:
    """The loss with its metrics by value, and the gradients of all parameters."""
    torch.manual_seed(5)
    loss = objective(network, batch, progress=progress, rng=torch.Generator().manual_seed(7))
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss.total, parameters, allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g + 0.0 for g, p in zip(found, parameters)]
    metrics = sorted([float(total), float(count)] for total, count in loss.metrics.values())
    return {"loss": [loss.total, float(loss.count), metrics], "gradients": unordered(gradients)}


def grid(table: str, compute: Callable[..., Parts]) -> Entries:
    """Every row of a table of objectives or decoders, on every kind of model."""
    for group in "writers", "fillers", "other_sources":
        for name, rows in cases()[table]["fillers" if group == "fillers" else "writers"].items():
            for number, fields in enumerate(rows):
                for kind in cases()[group]:
                    if number == 0 or group != "other_sources":
                        yield f"{name} {number} {kind}", partial(compute, group, kind, name, fields)


def objectives() -> Entries:
    """Losses, metrics and gradients of every objective on every kind of model, and of every schedule."""
    yield from grid("objectives", loss_of)
    for name, rows in cases()["schedules"].items():
        for number, fields in enumerate(rows):
            for step in 1, 4, 9:
                compute = partial(loss_of, "writers", "toy", name, fields, unforced.Progress(step, step / 3, 10))
                yield f"schedule {name} {number} at step {step}", compute


# ---- section decoders ----


def decoded(group: str, kind: str, name: str, fields: dict[str, Any]) -> Parts:
    network, batch, _, _ = build(group, kind)
    return output_parts(network, batch, name, fields)


def output_parts(network: Any, batch: unforced.Batch, name: str, fields: dict[str, Any]) -> Parts:
    found = unforced.decode(network, batch, name, rng=torch.Generator().manual_seed(9), **fields)
    return {"tokens": [found.tokens, found.lengths], "scores": [found.log_probs, found.scores]}


def decoders() -> Entries:
    """Outputs and scores of every decoder on every kind of model."""
    return grid("decoders", decoded)


# ---- section training ----

TRAINING = {"steps": 30, "epochs": 99, "batch_tokens": 60, "validate_every": 10, "save_every": 10, "log_every": 5}
DECODING = ["[decoding.greedy]", 'method = "greedy"', "[decoding.beam]", 'method = "beam"', "beam = 3"]
FILLING = ["[decoding.mask_predict]", 'method = "mask_predict"', "iterations = 2"]


def recipe_file(name: str, more: tuple[str, ...] = ()) -> Path:
    """The recipe of a run as a file."""
    run = cases()["runs"][name]
    parts = {**run, "task": cases()["tasks"][run["task"]], "training": {**TRAINING, **run["training"]}}
    text = ['name = "tiny"', 'description = "A small recipe"', "seeds = [1, 2]", *more[:1]]
    for part, fields in parts.items():  # JSON values are TOML values too
        text += [f"[{part}]", *(f"{key} = {json.dumps(value)}" for key, value in fields.items())]
    text += [*(FILLING if parts["training"].get("validate") == "mask_predict" else DECODING), *more[1:]]
    file = folder() / f"{name}.toml"
    file.write_text("\n".join(text))
    return file


@cache
def trained(name: str) -> Path:
    return unforced.train(recipe_file(name), run=folder() / name, seed=1, quiet=True)


def run_parts(run: Path) -> Parts:
    """What a run came to: weights, log, scores and predictions (these three by the files of docs/design.md)."""
    weights = [unordered(unforced.load(run, which).model.state_dict().values()) for which in ("best", "last")]
    scores = unforced.evaluate(run, quiet=True)
    statistics = [json.loads(file.read_text())["metrics"] for file in sorted(run.glob("scores/*.json"))]
    return {
        "weights": weights,
        "log": [sorted(numbers(event)) for event in read_lines(run, "metrics.jsonl")],
        "scores": [scores, *map(list, map(numbers, statistics))],
        "predictions": [[each["output"], each["log_prob"]] for each in read_lines(run, "predictions/*.jsonl")],
    }


class Failing:
    """An objective that raises an error after so many calls."""

    calls = 10**9

    def __call__(self, model: Any, batch: Any, **rest: Any) -> unforced.Loss:
        Failing.calls -= 1
        if Failing.calls < 0:
            raise RuntimeError
        return unforced.objective("scheduled_sampling", feed="sample", mixing=0.5)(model, batch, **rest)


def fit_own(place: str, resume: bool) -> Parts:
    """A run with an objective of one's own, in one piece or interrupted after 17 updates and resumed."""
    model, task = unforced.model("lstm", hidden=8, embedding=6, dropout=0.2), fitted_task("pairs")[0].task
    fit = partial(unforced.fit, model, task, Failing(), folder() / place, quiet=True, **TRAINING)
    if resume:
        Failing.calls = 17
        try:
            fit()
        except RuntimeError:
            Failing.calls = 10**9
    return run_parts(fit(resume=resume))


def compared() -> Parts:
    """Scores, intervals and tests of a comparison of two variants."""
    variants = [
        f'[[variants]]\nname = "{name}"\nobjective = {{ name = "{name}" }}' for name in ("cross_entropy", "soft_beam")
    ]
    file = recipe_file("lstm", ('baseline = "cross_entropy"', *variants))
    unforced.compare(
        file, overrides=["training.steps=6"], root=folder() / "compared", quiet=True, table=False, samples=50
    )
    table = json.loads((folder() / "compared" / "tiny" / "comparison.json").read_text())["rows"]
    return {"table": sorted(numbers(table))}


def training() -> Entries:
    """Short runs: weights, logs, scores and predictions; an interrupted run; a comparison."""
    for name in cases()["runs"]:
        yield name, lambda name=name: run_parts(trained(name))
    yield "own objective", partial(fit_own, "whole", resume=False)
    yield "own objective", partial(fit_own, "resumed", resume=True)
    yield "comparison", compared


# ---- section kernels ----


def sampled(run: str, place: str, fields: dict[str, Any], sweeps: list[int]) -> Parts:
    """Chains that are run, or run and resumed: what is kept of them, and their diagnosis."""
    for number, until in enumerate(sweeps):
        chosen = {"save_every": 2, **fields, "sweeps": until, "resume": number > 0, "quiet": True}
        found = unforced.sample(trained(run), folder() / place, **chosen)
    return {
        "outputs": [[each["output"], each["energy"]] for each in read_lines(folder() / place, "samples.jsonl")],
        "traces": list(found.traces),
        "diagnosis": list(numbers(found.report())),
    }


def kernels() -> Entries:
    """Chains of both kernels, and energies of sentences, by masked models that were trained for a moment."""
    for run, rows in cases()["samples"].items():
        for number, fields in enumerate(rows):
            place, sweeps = f"{run} {number}", fields["sweeps"]
            yield place, partial(sampled, run, place, fields, [sweeps])
            if number == 1:
                yield place, partial(sampled, run, f"{place} resumed", fields, [sweeps - 3, sweeps])
    for run, texts in cases()["scores"].items():
        yield (f"score {run}", lambda run=run, texts=texts: {"scores": list(unforced.score(trained(run), texts))})


# ---- section huggingface ----


def huggingface_model(kind: str) -> nn.Module:
    """A tiny model with random weights."""
    fields = dict(cases()["huggingface"][kind]["model"])
    auto = getattr(transformers, fields.pop("class"))
    torch.manual_seed(0)
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return auto.from_config(transformers.AutoConfig.for_model(kind, vocab_size=16, **special, **fields))


def huggingface_items(kind: str, count: int) -> list[dict[str, list[int]]]:
    """Texts to copy; for GPT-2 a text follows its prompt, for BERT there are no labels."""
    rng, items = np.random.default_rng(0), []
    for _ in range(count):
        words = rng.integers(4, 16, rng.integers(1, 4)).tolist()
        prompt = [1, *words, 3] if kind == "gpt2" else [1] if kind == "bert" else []
        items.append({"input_ids": [*prompt, *words, 2], "labels": [*[-100] * len(prompt), *words, 2]})
        if kind == "bert":
            del items[-1]["labels"]
    return items


def collate(items: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    def padded(rows: list[list[int]], value: int) -> Tensor:
        return torch.tensor([row + [value] * (max(map(len, rows)) - len(row)) for row in rows])

    columns = {key: [item[key] for item in items] for key in items[0]}
    columns["attention_mask"] = [[1] * len(ids) for ids in columns["input_ids"]]
    return {key: padded(rows, -100 if key == "labels" else 0) for key, rows in columns.items()}


def wrapped(kind: str) -> tuple[Any, unforced.Batch]:
    model = unforced.wrap(huggingface_model(kind), **cases()["huggingface"][kind]["wrapping"])
    model.train()
    return model, huggingface_batch(model, collate(huggingface_items(kind, 5)))


def huggingface_loss(kind: str, name: str, fields: dict[str, Any]) -> Parts:
    model, batch = wrapped(kind)
    return loss_parts(
        unforced.fitted(unforced.objective(name, **fields), model, huggingface_items(kind, 20)), model, batch
    )


def huggingface_output(kind: str, name: str, fields: dict[str, Any]) -> Parts:
    return output_parts(*wrapped(kind), name, fields)


def huggingface_trained(kind: str, objective: dict[str, Any]) -> Parts:
    """Five updates of a trainer."""
    seq2seq = kind == "t5"
    trainer = (unforced.UnforcedSeq2SeqTrainer if seq2seq else unforced.UnforcedTrainer)(
        model=huggingface_model(kind),
        args=(transformers.Seq2SeqTrainingArguments if seq2seq else transformers.TrainingArguments)(
            str(folder() / f"trainer-{kind}"), use_cpu=True, max_steps=5, per_device_train_batch_size=4,
            gradient_accumulation_steps=2, learning_rate=1e-2, logging_steps=1, save_strategy="no", report_to="none",
            disable_tqdm=True, seed=5),
        train_dataset=huggingface_items(kind, 24), data_collator=collate,
        objective=unforced.objective(**objective), wrapping=cases()["huggingface"][kind]["wrapping"],
    )  # fmt: skip
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"weights": unordered(trainer.model.state_dict().values()), "losses": losses}


def huggingface() -> Entries:
    """Losses, gradients and outputs of tiny T5, GPT-2 and BERT models, and a few steps of a trainer."""
    for kind, case in cases()["huggingface"].items():
        for name, fields in case["objectives"].items():
            yield f"{kind} {name}", partial(huggingface_loss, kind, name, fields)
        for name, fields in case["decoders"].items():
            yield f"{kind} decoder {name}", partial(huggingface_output, kind, name, fields)
        yield f"{kind} trainer", partial(huggingface_trained, kind, case["trainer"])


# ---- section metrics_tasks ----

LIKELIHOODS = [(2.5, 3, 1.5, 2.25), (1.0, 1, -0.5, 0.25), (7.25, 5, 4.0, 6.5)]  # −log p, tokens, Σ log Z, Σ (log Z)²


def task_parts(name: str) -> Parts:
    """Batches of each split, names of tokens, and metrics of outputs that are the next example's targets."""
    fitted, _ = fitted_task(name)
    task, codec, batches = fitted.task, fitted.codec, []
    for split in "train", "dev", "test":
        batch = fitted.batch(task.read(split)[:16])
        leaves = {field.name: getattr(batch, field.name) for field in fields_of(batch)}
        batches.append([(key, list(leaf) if key == "symbols" else leaf) for key, leaf in sorted(leaves.items())])
    dev = task.read("dev")[:30]
    outputs, answers = [each.target for each in [*dev[3:], *dev[:3]]], [each.answers for each in dev]
    metrics = []
    for metric in task.metrics():
        of_outputs = isinstance(metric, unforced.Metric)
        rows = metric.statistics(outputs, answers) if of_outputs else metric.likelihood_statistics(LIKELIHOODS)
        metrics.append([rows, float(metric.score(rows.sum(axis=0)))])
    return {"batches": batches, "codec": [list(codec.token_names()), list(codec.sizes)], "metrics": metrics}


def metrics_tasks() -> Entries:
    """Batches of the tasks that need no downloads, and statistics and scores of their metrics."""
    for name in cases()["tasks"]:
        yield name, partial(task_parts, name)


# ---- commands ----

SECTIONS: dict[str, Callable[[], Entries]] = {
    section.__name__: section for section in (objectives, decoders, training, kernels, huggingface, metrics_tasks)
}


def hashes(section: str, show: bool = False) -> dict[str, str]:
    """All entries of a section; one that fails has the error in place of a hash."""
    found: dict[str, str] = {}
    for name, compute in SECTIONS[section]():
        try:
            parts = {f"{name}, {part}": digest(value) for part, value in compute().items()}
        except unforced.InputError as error:
            parts = {name: "refused"}
            if show:
                print(f"{section}: {name} is refused: {error}")
        except Exception as error:
            parts = {name: f"failed: {type(error).__name__}: {error}"}
        for key, value in parts.items():
            same = found.setdefault(f"{section}: {key}", value) == value
            found[f"{section}: {key}"] = value if same else "failed: differs from the run in one piece"
    return found


def record(sections: list[str]) -> int:
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    for section in sections:
        new = hashes(section, show=True)
        if failed := [f"  {name}: {value}" for name, value in new.items() if value.startswith("failed")]:
            print(f"{section}: not recorded", *failed, sep="\n")
            return 1
        known = {name: value for name, value in known.items() if not name.startswith(f"{section}: ")} | new
        print(f"{section}: {len(new)} hashes recorded")
    FILE.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")
    return 0


def check(sections: list[str]) -> int:
    known, wrong = json.loads(FILE.read_text()), 0
    for section in sections:
        began, new = time.perf_counter(), hashes(section)
        old = {name: value for name, value in known.items() if name.startswith(f"{section}: ")}
        changed = [name for name in sorted(old | new) if old.get(name) != new.get(name)]
        verdict = f"{len(changed)} of {len(old | new)} differ" if changed else "same"
        print(f"{section}: {verdict} ({len(new)} hashes, {time.perf_counter() - began:.0f} s)")
        for name in changed:
            print(f"  {name}: {old.get(name, 'not recorded')} -> {new.get(name, 'missing')}")
        wrong += len(changed)
    return 1 if wrong else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", nargs="?", choices=["record", "check"], help="what to do")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"any of: {', '.join(SECTIONS)}; default: all")
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
