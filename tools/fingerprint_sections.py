"""The sections of tools/fingerprint.py: what is computed, from the cases of tools/fingerprint.toml."""

import json
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
import torch
import transformers
from torch import Tensor, nn

import unforced

CASES = Path(__file__).with_name("fingerprint.toml")
Parts = dict[str, Any]  # part of an entry -> what is hashed; sets where neither names nor order matter
Entries = Iterator[tuple[str, Callable[[], Parts]]]


def huggingface_batch(model: Any, inputs: dict[str, Tensor]) -> unforced.Batch:
    """The only thing here that the package does not offer at its top: change this function when it moves."""
    from unforced.huggingface.batches import make_batch

    return make_batch(model, **inputs)


# ---- data and models ----


def numbers(data: Any) -> Iterator[float]:
    """All numbers of JSON data but measured times."""
    if isinstance(data, dict):
        timed = ("seconds", "minutes", "cost", "threads")
        data = [value for key, value in data.items() if key not in timed]
    if isinstance(data, list):
        yield from (number for value in data for number in numbers(value))
    elif isinstance(data, float | int):
        yield float(data)


def read_lines(folder: Path, pattern: str) -> list[Any]:
    return [json.loads(line) for file in sorted(folder.glob(pattern)) for line in file.read_text().splitlines()]


@cache
def folder() -> Path:
    """A temporary folder with the data files; ``main`` removes it."""
    place = Path(tempfile.mkdtemp(prefix="fingerprint-"))
    for name, text in tomllib.loads(CASES.read_text())["files"].items():
        (place / name).write_text(text)
    np.savez(place / "pictures.npz", x=np.random.default_rng(0).integers(0, 256, (12, 8, 8), dtype=np.uint8))
    return place


@cache
def cases() -> dict[str, Any]:
    return tomllib.loads(CASES.read_text().replace("FOLDER", str(folder())))


def fill_in(value: Any, words: dict[str, Callable[[], Any]]) -> Any:
    """The fields of a case, "none", "TEACHER" and "WRITER" replaced."""
    if isinstance(value, dict):
        return {key: fill_in(inner, words) for key, inner in value.items()}
    return words[value]() if isinstance(value, str) and value in words else value


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
    """A network in training mode, a batch of ragged lengths, and the task and examples to fit objectives to."""
    fields = dict(cases()[group][kind])
    data, rng = fields.pop("data"), torch.Generator().manual_seed(1)
    task, examples = fitted_task(data if data in cases()["tasks"] else "pairs")
    batch, sizes = unforced.batch(task, examples[:6]), task.codec.sizes
    if data == "image":
        batch = replace(batch, source=torch.rand(6, 1, 8, 8, generator=rng), source_mask=None)
        sizes = unforced.Sizes(target=sizes.target, image=(1, 8, 8))
    elif data == "wide":
        sizes = sizes._replace(target=3000)
    elif data == "class":
        batch = replace(batch, source=torch.randint(4, (6,), generator=rng), source_mask=None)
        sizes = unforced.Sizes(target=sizes.target, classes=4)
    torch.manual_seed(seed)
    network = unforced.model(**fields).build(sizes).train()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(1.5)  # for distributions that are far from uniform
    return network, batch, task, examples


# ---- sections objectives and decoders ----


def loss_parts(objective: Any, network: Any, batch: unforced.Batch, progress: unforced.Progress) -> Parts:
    """The loss with its metrics by value, and the gradients of all parameters."""
    torch.manual_seed(5)
    loss = objective(network, batch, progress=progress, rng=torch.Generator().manual_seed(7))
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    found = torch.autograd.grad(loss.total, parameters, allow_unused=True)
    gradients = [torch.zeros_like(p) if g is None else g + 0.0 for g, p in zip(found, parameters)]
    metrics = sorted([float(total), float(count)] for total, count in loss.metrics.values())
    return {"loss": [loss.total, float(loss.count), metrics], "gradients": set(gradients)}


def output_parts(network: Any, batch: unforced.Batch, name: str, fields: dict[str, Any]) -> Parts:
    found = unforced.decode(network, batch, name, rng=torch.Generator().manual_seed(9), **fields)
    return {"tokens": [found.tokens, found.lengths], "scores": [found.log_probs, found.scores]}


def loss_of(group: str, kind: str, name: str, fields: dict[str, Any], step: int = 5) -> Parts:
    network, batch, task, examples = build(group, kind)
    writer = partial(unforced.model("toy").build, task.codec.sizes)
    words = {"none": lambda: None, "TEACHER": lambda: build(group, kind, seed=8)[0].eval(), "WRITER": writer}
    fields = fill_in(fields, words)
    objective = unforced.fitted(unforced.objective(name, **fields), task, examples)
    return loss_parts(objective, network, batch, unforced.Progress(step, 0.3 * step, 10))


def output_of(group: str, kind: str, name: str, fields: dict[str, Any]) -> Parts:
    return output_parts(*build(group, kind)[:2], name, fields)


def grid(table: str, compute: Callable[..., Parts]) -> Entries:
    """Every row of a table of objectives or decoders, on every kind of model."""
    for group in "writers", "fillers", "other_sources":
        for name, rows in cases()[table]["fillers" if group == "fillers" else "writers"].items():
            for number, fields in enumerate(rows):
                for kind in cases()[group] if number == 0 or group != "other_sources" else ():
                    yield f"{name} {number} {kind}", partial(compute, group, kind, name, fields)


def objectives() -> Entries:
    """Losses, metrics and gradients of every objective on every kind of model, and of every schedule."""
    yield from grid("objectives", loss_of)
    for name, rows in cases()["schedules"].items():
        for number, fields in enumerate(rows):
            for step in 1, 4, 9:
                schedule = f"schedule {name} {number} at step {step}"
                yield schedule, partial(loss_of, "writers", "toy", name, fields, step)


def decoders() -> Entries:
    """Outputs and scores of every decoder on every kind of model."""
    return grid("decoders", output_of)


# ---- section training ----


def recipe_file(name: str, top: str = "", end: str = "") -> Path:
    """The recipe of a run as a file."""
    run = cases()["runs"][name]
    if run["model"]["name"] == "huggingface":
        save_huggingface(Path(run["model"]["path"]))
    training = {**cases()["training"], **run["training"]}
    decoder = training.get("validate", "beam")
    parts = {**run, "task": cases()["tasks"][run["task"]], "training": {"validate": decoder, **training}}
    parts[f"decoding.{decoder}"] = {"method": decoder}
    text = f'name = "tiny"\ndescription = "A small recipe"\nseeds = [1, 2]\n{top}\n'
    for part, fields in parts.items():  # JSON values are TOML values too
        text += f"[{part}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in fields.items())
    file = folder() / f"{name}.toml"
    file.write_text(text + end)
    return file


@cache
def trained(name: str) -> Path:
    return unforced.train(recipe_file(name), run=folder() / name, seed=1, quiet=True)


def run_parts(run: Path) -> Parts:
    """What a run came to: weights, log, scores and predictions (these three by the files of docs/design.md)."""
    weights = [set(unforced.load(run, which).model.state_dict().values()) for which in ("best", "last")]
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


def own_run(place: str, resume: bool) -> Parts:
    """A run with an objective of one's own, in one piece or interrupted after 17 updates and resumed."""
    model, task = unforced.model("lstm", hidden=8, embedding=6, dropout=0.2), fitted_task("pairs")[0].task
    fit = partial(unforced.fit, model, task, Failing(), folder() / place, quiet=True, **cases()["training"])
    if resume:
        Failing.calls = 17
        try:
            fit()
        except RuntimeError:
            Failing.calls = 10**9
    return run_parts(fit(resume=resume))


def compared() -> Parts:
    """Scores, intervals and tests of a comparison of two variants with two seeds."""
    alpha = 'alpha = { name = "exponential", rate = 1.5, cap = 100.0 }'
    tables = {"cross_entropy": 'name = "cross_entropy"', "soft_beam": f'name = "soft_beam", {alpha}'}
    variants = "".join(f'[[variants]]\nname = "{name}"\nobjective = {{ {table} }}\n' for name, table in tables.items())
    recipe, root = recipe_file("lstm", 'baseline = "cross_entropy"', variants), folder() / "compared"
    unforced.compare(recipe, overrides=["training.steps=6"], root=root, quiet=True, table=False, samples=50)
    return {"table": sorted(numbers(json.loads((root / "tiny" / "comparison.json").read_text())["rows"]))}


def training() -> Entries:
    """Short runs: weights, logs, scores and predictions; an interrupted run; a comparison."""
    for name in cases()["runs"]:
        yield name, lambda name=name: run_parts(trained(name))
    yield "own objective", partial(own_run, "whole", resume=False)
    yield "own objective", partial(own_run, "resumed", resume=True)
    yield "comparison", compared


# ---- section kernels ----


def sampled(run: str, place: str, fields: dict[str, Any], *sweeps: int) -> Parts:
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
    """Chains of both kernels, and energies of sentences, by masked models after a few updates."""
    for run, rows in cases()["samples"].items():
        for number, fields in enumerate(rows):
            name, sweeps = f"{run} {number}", fields["sweeps"]
            yield name, partial(sampled, run, name, fields, sweeps)
            if number == 1:
                yield name, partial(sampled, run, f"{name} resumed", fields, sweeps - 3, sweeps)
    for run, fields in cases()["scores"].items():
        yield f"score {run}", lambda run=run, fields=fields: {"scores": unforced.score(trained(run), **fields)}


# ---- section huggingface ----


def huggingface_model(kind: str) -> nn.Module:
    """A tiny model with random weights."""
    fields = dict(cases()["huggingface"][kind]["model"])
    auto = getattr(transformers, fields.pop("class"))
    torch.manual_seed(0)
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    return auto.from_config(transformers.AutoConfig.for_model(kind, vocab_size=16, **special, **fields))


def save_huggingface(place: Path) -> None:
    """Save the model that the folder is named after, with a tokenizer of the words in words.tsv."""
    words = ["<pad>", "<s>", "</s>", "<mask>", "<unk>"]
    words += ["The", "cat", "sees", "a", "green", "bird", "and", "an", "old", "dog", "."]
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    ends = {"t5": "$A </s>", "bert": "<s> $A </s>"}.get(place.name, "$A")
    special = [("<s>", 1), ("</s>", 2)]
    inner.post_processor = tokenizers.processors.TemplateProcessing(single=ends, special_tokens=special)
    names = {f"{name}_token": f"<{name}>" for name in ("pad", "mask", "unk")}
    names |= {"bos_token": "<s>", "cls_token": "<s>", "eos_token": "</s>", "sep_token": "</s>"}
    transformers.logging.disable_progress_bar()
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, model_max_length=32, **names).save_pretrained(place)
    huggingface_model(place.name).save_pretrained(place)


def huggingface_items(kind: str, count: int) -> list[dict[str, list[int]]]:
    """Texts to copy; for GPT-2 a text follows its prompt, for BERT there are no labels."""
    rng, items = np.random.default_rng(0), []
    for _ in range(count):
        words = rng.integers(4, 16, rng.integers(1, 4)).tolist()
        prompt = {"gpt2": [1, *words, 3], "llama": [1, *words, 3], "bert": [1]}.get(kind, [])
        labels = {} if kind == "bert" else {"labels": [*[-100] * len(prompt), *words, 2]}
        items.append({"input_ids": [*prompt, *words, 2], **labels})
    return items


def collate(items: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    columns = {key: [torch.tensor(item[key]) for item in items] for key in items[0]}
    columns["attention_mask"] = [torch.ones_like(ids) for ids in columns["input_ids"]]
    pad = partial(nn.utils.rnn.pad_sequence, batch_first=True)
    return {key: pad(rows, padding_value=-100 if key == "labels" else 0) for key, rows in columns.items()}


def wrapped_parts(kind: str, name: str, fields: dict[str, Any], decode: bool) -> Parts:
    """The loss or the outputs of a wrapped model."""
    model = unforced.wrap(huggingface_model(kind), **cases()["huggingface"][kind]["wrapping"]).train()
    batch = huggingface_batch(model, collate(huggingface_items(kind, 5)))
    if decode:
        return output_parts(model, batch, name, fields)
    objective = unforced.fitted(unforced.objective(name, **fields), model, huggingface_items(kind, 20))
    return loss_parts(objective, model, batch, unforced.Progress(5, 1.5, 10))


def trainer_parts(kind: str) -> Parts:
    """Weights and losses of five updates of a trainer."""
    case, library = cases()["huggingface"][kind], "Seq2Seq" if kind == "t5" else ""
    arguments = getattr(transformers, f"{library}TrainingArguments")(
        str(folder() / f"trainer-{kind}"), use_cpu=True, max_steps=5, per_device_train_batch_size=4, seed=5,
        gradient_accumulation_steps=2, learning_rate=1e-2, logging_steps=1, save_strategy="no", report_to="none",
        disable_tqdm=True,
    )  # fmt: skip
    trainer = getattr(unforced, f"Unforced{library}Trainer")(
        model=huggingface_model(kind), args=arguments, train_dataset=huggingface_items(kind, 24), data_collator=collate,
        objective=unforced.objective(**case["trainer"]), wrapping=case["wrapping"],
    )  # fmt: skip
    trainer.remove_callback(transformers.trainer_callback.PrinterCallback)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return {"weights": set(trainer.model.state_dict().values()), "losses": losses}


def huggingface() -> Entries:
    """Losses, gradients and outputs of tiny wrapped models, and a few steps of a trainer."""
    for kind, case in cases()["huggingface"].items():
        for table in "objectives", "decoders":
            for name, fields in case[table].items():
                yield (f"{kind} {table} {name}", partial(wrapped_parts, kind, name, fields, table == "decoders"))
        if "trainer" in case:
            yield f"{kind} trainer", partial(trainer_parts, kind)


# ---- section metrics_tasks ----

# −log p, tokens, Σ log Z, Σ (log Z)²
LIKELIHOODS = [(2.5, 3, 1.5, 2.25), (1.0, 1, -0.5, 0.25), (7.25, 5, 4.0, 6.5)]


def metric_parts(task: Any, examples: list[unforced.Example]) -> Parts:
    """Statistics and scores of a task's metrics; outputs are other examples' targets, or the same tags in reverse."""
    targets, answers = [each.target for each in examples], [each.answers for each in examples]
    tags = isinstance(targets[0], list | tuple)
    outputs = [target[::-1] for target in targets] if tags else [*targets[3:], *targets[:3]]
    found = []
    for metric in task.metrics():
        of_outputs = isinstance(metric, unforced.Metric)
        rows = metric.statistics(outputs, answers) if of_outputs else metric.likelihood_statistics(LIKELIHOODS)
        found.append([rows, float(metric.score(rows.sum(axis=0)))])
    return {"metrics": found}


def task_parts(name: str) -> Parts:
    """Batches of each split, the names of tokens, and metrics."""
    fitted, _ = fitted_task(name)
    batches = [vars(fitted.batch(fitted.task.read(split)[:16], device="cpu")) for split in ("train", "dev", "test")]
    leaves = [[(key, value) for key, value in sorted(batch.items())] for batch in batches]
    codec = [list(fitted.codec.token_names()), list(fitted.codec.sizes)]
    return {"batches": leaves, "codec": codec, **metric_parts(fitted.task, fitted.task.read("dev")[:30])}


def metrics_tasks() -> Entries:
    """Batches of the tasks that need no downloads, and statistics and scores of their metrics."""
    for name in cases()["tasks"]:
        yield name, partial(task_parts, name)
    for fields in cases()["metrics"]:
        name = " ".join(map(str, fields.values()))
        yield name, lambda fields=fields: metric_parts(unforced.task(**fields), fitted_task("pairs_words")[1])


SECTIONS: dict[str, Callable[[], Entries]] = {
    section.__name__: section for section in (objectives, decoders, training, kernels, huggingface, metrics_tasks)
}
