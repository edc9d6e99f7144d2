"""Small data sets, models and trainers for the tests of ``UnforcedTrainer``."""

import functools
import random
from pathlib import Path
from typing import Any

import hf_cases
import torch
from hf_cases import V, tf
from torch import Tensor, nn

import unforced
from unforced.errors import InputError
from unforced.huggingface.batches import make_batch
from unforced.huggingface.codec import LabelledExamples
from unforced.protocols import fitted
from unforced.types import Progress

PAD, BOS, EOS, MASK = 0, 1, 2, 3
WORDS = range(4, V)

# What each objective is tried with; whatever else the catalogue has is tried with its defaults.
SETTINGS: dict[str, dict[str, Any]] = {
    "cross_entropy": {},
    "label_smoothing": {"smoothing": 0.1},
    "self_normalized": {"strength": 0.05},
    "scheduled_sampling": {"feed": "sample", "mixing": 0.7},
    "parallel_scheduled_sampling": {"p": 0.3},
    "token_smoothing": {"tau": 0.1, "mix": 0.3},
    "sequence_smoothing": {"tau": 0.2, "mix": 0.5},
    "token_sequence_smoothing": {},
    "soft_beam": {"beam": 2, "alpha": 4.0},
    "beam_search_optimization": {"beam": 2, "scores": "local"},
    "minimum_risk": {"samples": 4, "alpha": 0.5, "max_length": 8},
}
REFUSALS = ("needs a model with", "no labels to learn from")  # what objectives say where a model is not for them


def objective(name: str) -> Any:
    return unforced.objective(name, **SETTINGS.get(name, {}))


def t5(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    return hf_cases.t5(dropout)


def gpt2(dropout: float = 0.0) -> Any:
    torch.manual_seed(0)
    return hf_cases.gpt2(dropout)


def bert() -> Any:
    torch.manual_seed(0)
    return hf_cases.bert()


TABLE = Path(__file__).resolve().parents[2] / "results" / "huggingface.md"  # written by tools/model_kinds.py


def table_rows() -> dict[str, list[bool]]:
    """Which objective trains T5, GPT-2 and BERT, by the committed table."""
    lines = [line.split(" | ") for line in TABLE.read_text(encoding="utf-8").splitlines()[2:]]
    return {cells[0].strip("| `"): [cell.strip("| ") == "yes" for cell in cells[1:4]] for cells in lines}


DECODER_OBJECTIVES = [name for name, (t5, _, _) in table_rows().items() if t5]
MODELS = {"t5": t5, "gpt2": gpt2}
KINDS = {**MODELS, "bert": bert}
WRAPPING: dict[str, dict[str, Any]] = {"t5": {}, "gpt2": {}, "bert": {"mask": MASK, "banned": (BOS, EOS)}}


@functools.cache
def subject(kind: str) -> tuple[Any, list[dict[str, list[int]]]]:
    """A model of this kind, wrapped, and two examples."""
    return unforced.wrap(KINDS[kind](), **WRAPPING[kind]), examples(kind, 2)


@functools.cache
def serves(name: str, kind: str) -> bool:
    """Whether an objective is for this kind of model; one that isn't must say what the model lacks."""
    model, data = subject(kind)
    how = fitted(objective(name), model.vocabulary, LabelledExamples(data))
    try:
        how(model, make_batch(model, **collate(data)), progress=Progress(), rng=torch.Generator().manual_seed(0))
    except InputError as error:
        if not any(words in str(error) for words in REFUSALS):
            raise
        return False
    return True


def texts(count: int, seed: int = 0, least: int = 1, most: int = 5) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.choice(WORDS) for _ in range(rng.randint(least, most))] for _ in range(count)]


def copies(kind: str, count: int, seed: int = 0, least: int = 1, most: int = 5) -> list[dict[str, list[int]]]:
    """Examples of a copy task: the output is the source, or for a causal model the prompt after a separator."""
    data = []
    for words in texts(count, seed, least, most):
        if kind != "gpt2":
            data.append({"input_ids": [*words, EOS], "labels": [*words, EOS]})
        else:
            prompt = [BOS, *words, MASK]
            ids = [*prompt, *words, EOS]
            data.append({"input_ids": ids, "labels": [*[-100] * len(prompt), *words, EOS]})
    return data


def examples(kind: str, count: int) -> list[dict[str, list[int]]]:
    """Copies, or for a masked model short texts without labels."""
    if kind != "bert":
        return copies(kind, count)
    return [{"input_ids": [BOS, *words, EOS]} for words in texts(count, least=1, most=2)]


def collate(items: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Pad at the right, as most collators do."""

    def padded(name: str, value: int) -> Tensor:
        width = max(len(item[name]) for item in items)
        return torch.tensor([[*item[name], *[value] * (width - len(item[name]))] for item in items])

    ids = padded("input_ids", PAD)
    lengths = torch.tensor([len(item["input_ids"]) for item in items])
    made = {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths.unsqueeze(1)).long()}
    return made | ({"labels": padded("labels", -100)} if "labels" in items[0] else {})


def arguments(folder: Path, seq2seq: bool = False, **options: Any) -> Any:
    kind = tf.Seq2SeqTrainingArguments if seq2seq else tf.TrainingArguments
    usual: dict[str, Any] = {
        "output_dir": str(folder),
        "use_cpu": True,
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "learning_rate": 1e-3,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 5,
    }
    return kind(**{**usual, **options})


def trainer(
    kind: str,
    how: Any,
    folder: Path,
    *,
    model: nn.Module | None = None,
    data: list | None = None,
    cls: Any = None,
    **options: Any,
) -> Any:
    """A trainer of a tiny model on copies; ``how`` is an objective, or None for the stock class."""
    cls = cls or (unforced.UnforcedTrainer if how is not None else tf.Trainer)
    given: dict[str, Any] = {} if how is None else {"objective": how, "wrapping": WRAPPING[kind]}
    made = cls(
        model=KINDS[kind]() if model is None else model,
        args=arguments(folder, seq2seq="Seq2Seq" in cls.__name__, **options),
        train_dataset=examples(kind, 24) if data is None else data,
        data_collator=collate,
        **given,
    )
    made.remove_callback(tf.trainer_callback.PrinterCallback)
    return made


def losses(made: Any) -> list[float]:
    return [entry["loss"] for entry in made.state.log_history if "loss" in entry]


def weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}
