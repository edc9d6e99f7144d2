"""Hugging Face's ``Trainer`` and ``Seq2SeqTrainer`` with an objective of this library."""

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unforced import registry
from unforced.errors import InputError
from unforced.huggingface.codec import LabelledExamples, TokenizerVocabulary
from unforced.huggingface.sharding import Update, gathered, is_split, lent, whole_state
from unforced.huggingface.wrap import wrap
from unforced.protocols import Objective, fitted
from unforced.recipes.fields import build
from unforced.types import Loss, Progress

try:
    import transformers
except ImportError:
    raise ImportError("UnforcedTrainer needs transformers: pip install 'unforced[hf]'") from None

if TYPE_CHECKING:
    Base = transformers.Trainer
else:
    Base = object

__all__ = ["UnforcedSeq2SeqTrainer", "UnforcedTrainer"]


class WithObjective(Base):
    """What both trainers add to the class they are made of.

    ``objective`` is an objective of the catalogue, by name or as an object, or one of the user's own. ``wrapping`` are further
    arguments of ``unforced.wrap``, such as ``{"pad": 0}`` for special tokens that neither the tokenizer nor the
    model's configuration names.

    The sum that an objective returns is divided by its count over all micro-batches and processes of an update, so neither
    changes what is learnt, and ``average_tokens_across_devices`` is always so. What an objective draws is a function of
    ``args.seed``, the update and the example. Its metrics are logged beside the loss. Evaluation, prediction and what is saved are
    those of the plain model.
    """

    loss_is_scaled_for_ga = True  # by the count of the whole update

    def __init__(
        self, *arguments: Any, objective: Objective | str, wrapping: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        if not hasattr(transformers.Trainer, "loss_is_scaled_for_ga"):
            raise InputError(f"transformers {transformers.__version__} is too old for UnforcedTrainer")
        self.objective: Objective = made(objective)
        self.wrapping = dict(wrapping or {})
        self._wrapped: Any = None
        self._fitted: Objective | None = None
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []  # of micro-batches: loss, total and count
        self._sums: dict[str, tuple[Tensor, Tensor]] = {}  # of metrics, since the last log line
        super().__init__(*arguments, **options)
        self._check()
        if self.train_dataset is not None:
            self.fit_objective()  # what can't be done is said now

    def _check(self) -> None:
        if self.args.label_smoothing_factor:
            raise InputError('label_smoothing_factor is not for an objective: use objective="label_smoothing" instead')
        if self.compute_loss_func is not None:
            raise InputError("compute_loss_func and objective both say what the loss is: give one of them")
        if self.args.n_gpu > 1:
            raise InputError(
                f"this process has {self.args.n_gpu} GPUs, of which objectives use one: start a process for each "
                "by torchrun, or let CUDA_VISIBLE_DEVICES name one"
            )
        if self.is_deepspeed_enabled or self.is_fsdp_enabled or self.args.fsdp:
            raise InputError(
                "DeepSpeed and the fsdp argument split a model by its layers, which methods that go step by step "
                "can't follow: split it as a whole by unforced.shard(model)"
            )
        if self.args.torch_compile:
            raise InputError("torch_compile compiles a model's own forward pass, which objectives don't use")
        if self.args.gradient_checkpointing and getattr(self.objective, "stepwise", False):
            raise InputError(
                f"{type(self.objective).__name__} goes step by step, for which a model that trains with gradient checkpointing "
                "keeps no cache: turn gradient_checkpointing off"
            )
        if getattr(getattr(self.model, "config", None), "output_router_logits", False):
            raise InputError(
                "output_router_logits adds a loss of the routers to the model's own, which objectives don't: set it to False"
            )
        processes = int(os.environ.get("WORLD_SIZE", 1))
        if processes != self.accelerator.num_processes:
            raise InputError(
                f"the launcher started {processes} processes (WORLD_SIZE), but the trainer runs "
                f"{self.accelerator.num_processes}"
            )

    @property
    def wrapped(self) -> Any:
        """The model as the library's protocols see it."""
        model = self.accelerator.unwrap_model(self.model, keep_torch_compile=False)
        if self._wrapped is None or self._wrapped.model is not model:
            with gathered(model):
                self._wrapped = wrap(model, **{"tokenizer": self.tokenizer(), **self.wrapping})
            self._fitted = None
        return self._wrapped

    def fit_objective(self) -> Objective:
        """The objective, knowing the model's vocabulary and the training data."""
        wrapped = self.wrapped
        if self._fitted is None:
            examples = () if self.train_dataset is None else LabelledExamples(self.train_dataset)
            vocabulary = TokenizerVocabulary(wrapped, self.tokenizer())
            self._fitted = fitted(self.objective, vocabulary, examples)
        return self._fitted

    def tokenizer(self) -> Any:
        """The tokenizer that the trainer was given, itself, in a processor or in the collator; or None."""
        given = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        given = getattr(given, "tokenizer", given)
        return given if hasattr(given, "convert_ids_to_tokens") else None

    # ---- training ----

    def train(self, *arguments: Any, **options: Any) -> Any:
        self._parts, self._sums = [], {}
        try:
            return super().train(*arguments, **options)
        finally:
            self._parts = []

    def _inner_training_loop(self, batch_size: int | None = None, *arguments: Any, **options: Any) -> Any:
        self.fit_objective()  # a trainer with model_init has another model by now
        with lent(self.wrapped.model):
            return super()._inner_training_loop(batch_size, *arguments, **options)

    def progress(self) -> Progress:
        """How far training has come, as schedules see it."""
        return Progress(self.state.global_step, float(self.state.epoch or 0), self.state.max_steps)

    def get_batch_samples(self, epoch_iterator: Iterator, num_batches: int, device: torch.device) -> tuple[list, Any]:
        """The micro-batches of an update, and how many labels they have in all processes together."""
        samples, _ = super().get_batch_samples(epoch_iterator, num_batches, device)
        number = sum((scored(sample, self._loss_shifts_labels) for sample in samples), torch.tensor(0))
        return samples, self._over_processes(number.to(device))

    def _over_processes(self, numbers: Tensor) -> Tensor:
        """The sum over all processes."""
        several = self.accelerator.num_processes > 1
        return self.accelerator.reduce(numbers, "sum") if several else numbers

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """In training the objective's loss; in evaluation, where the outputs are wanted too, the model's own."""
        if return_outputs or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        update = Update(self.wrapped, self.fit_objective(), self.progress(), self.args.seed)
        found: Loss = model(**inputs, update=update)
        for name, (total, count) in found.metrics.items():
            old = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = (old[0] + total, old[1] + count)
        number = found.count if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
        scale = self.accelerator.num_processes / number.clamp(min=1)  # wrappers average the gradients: undo that
        loss = found.total * scale.to(found.total.device)
        self._parts.append((loss.detach(), found.total.detach(), torch.as_tensor(found.count)))
        return loss

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Forward and backward of a micro-batch; behind the last, gradients are those of total / count.

        Losses are divided by the number of labels at first. An objective that counts something else (examples, tokens that it
        has masked) is known to do so when all of its parts are there.
        """
        loss = super().training_step(model, inputs, num_items_in_batch)
        if not self.accelerator.sync_gradients:
            return loss
        parts, self._parts = self._parts, []
        if not parts:  # a subclass has a loss of its own
            return loss
        wide = torch.float32 if loss.device.type == "mps" else torch.float64
        columns = (torch.stack([number.to(wide) for number in column]).sum() for column in zip(*parts))
        reported, total, count = columns
        count = self._over_processes(count.to(loss.device))
        labels = torch.as_tensor(num_items_in_batch, dtype=count.dtype, device=count.device)
        if bool(count == labels) or not bool(count > 0):
            return loss
        factor = labels.clamp(min=1) / count
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        for gradient in gradients:
            gradient.mul_(factor.to(gradient.dtype))
        right = total * self.accelerator.num_processes / count
        return loss + (right - reported).to(loss.dtype)  # so that what the trainer adds up is the mean

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the plain model; what ``unforced.shard`` has split is put together first, by all processes."""
        model: Any = self.model
        if not is_split(model):
            super().save_model(output_dir, _internal_call)
            return
        state = whole_state(model)
        if self.args.should_save:
            self._save(output_dir, state_dict=state)
        self.accelerator.wait_for_everyone()

    def log(self, logs: dict[str, float], *arguments: Any, **options: Any) -> None:
        """Log the objective's metrics, averaged since the last time, beside the training loss."""
        if "loss" in logs and self._sums:
            sums, self._sums = self._sums, {}
            names = sorted(sums)
            flat = [torch.as_tensor(value, dtype=torch.float32) for name in names for value in sums[name]]
            numbers = torch.stack([value.to(self.accelerator.device) for value in flat])
            pairs = self._over_processes(numbers).reshape(-1, 2).tolist()
            logs = {**logs, **{name: total / max(n, 1e-9) for name, (total, n) in zip(names, pairs)}}
        super().log(logs, *arguments, **options)


def made(objective: Objective | str) -> Objective:
    """The objective, or the one of the catalogue with this name and its defaults."""
    if isinstance(objective, str):
        return build(registry.resolve("objectives", objective), {}, objective)
    if isinstance(objective, type) or not callable(objective):
        raise InputError(f"objective must be a name or an objective, not {objective!r}")
    return objective


def scored(sample: Mapping[str, Any], shifted: bool) -> Tensor:
    """How many tokens of a collated batch have labels, or how many there are where there are no labels."""
    labels = sample.get("labels")
    if labels is not None:
        return (labels[..., 1:] if shifted else labels).ne(-100).sum()
    there = sample.get("attention_mask")
    there = sample.get("input_ids") if there is None else there
    if there is None:
        raise InputError(f"the batch has neither labels nor input_ids: it has {', '.join(sample)}")
    return (there if "attention_mask" in sample else torch.ones_like(there)).sum()


class UnforcedTrainer(WithObjective, transformers.Trainer):
    """``transformers.Trainer`` that learns by an objective of this library; all else is as there.

    ``UnforcedTrainer(objective="scheduled_sampling", model=…, args=…, train_dataset=…)``. See ``WithObjective``.
    """


class UnforcedSeq2SeqTrainer(WithObjective, transformers.Seq2SeqTrainer):
    """``transformers.Seq2SeqTrainer`` that learns by an objective of this library; all else is as there."""
