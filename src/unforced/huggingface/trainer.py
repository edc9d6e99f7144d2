"""``Trainer`` and ``Seq2SeqTrainer`` of transformers, trained by an objective of this library."""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.huggingface.batches import NOT_SCORED, make_batch, with_content_ids
from unforced.huggingface.codec import LabelledExamples
from unforced.huggingface.decoder import WrappedDecoder, WrappedModel
from unforced.huggingface.sharding import ShardedStep, full_state_dict, gathered, is_sharded
from unforced.huggingface.wrap import has_usual_loss, model_kind, wrap
from unforced.objectives.cross_entropy import CrossEntropy
from unforced.ops.random_streams import generator
from unforced.options import Options
from unforced.protocols import Objective, Stepwise, fitted
from unforced.recipes.fields import build, pick
from unforced.training.step import ObjectiveStep, Watch, scale_gradients
from unforced.types import Batch, Loss, Progress

try:
    import transformers
except ImportError:
    raise ImportError("UnforcedTrainer needs transformers: pip install 'unforced[hf]'") from None

if TYPE_CHECKING:
    Base = transformers.Trainer
else:
    Base = object

USED = ("attention_mask", "labels", "decoder_input_ids", "token_type_ids")  # columns of a collated batch
IGNORED = ("decoder_attention_mask",)  # the labels say what is padding


class OwnLoss:
    """Cross-entropy; by the model's own loss if the batch is not a `Batch` but what the collator returned."""

    def __call__(self, model: Any, batch: Any, *, progress: Progress, rng: torch.Generator) -> Loss:
        if isinstance(batch, Batch):
            return CrossEntropy()(model, batch, progress=progress, rng=rng)
        if "labels" not in batch:
            raise InputError("the batch has no labels to learn from")
        plain: Any = model.model if isinstance(model, WrappedModel) else model
        shifted = hasattr(plain, "config") and model_kind(plain) == "causal"
        labels = batch["labels"][:, 1:] if shifted else batch["labels"]
        count = labels.ne(NOT_SCORED).sum().float()
        output = plain(**batch)
        total = output["loss"] * count if bool(count) else output["logits"].sum() * 0  # a mean of nothing is NaN
        return Loss(total, count, {"nll": (total.detach().float(), count)})


class ObjectiveMixin(Base):
    """What both trainers add to the class of transformers.

    Each micro-batch adds the gradients of a sum. After the last one they are divided once, by the count of all
    micro-batches and processes, so neither changes what is learned. Draws depend only on ``args.seed``, the update and
    the example. Evaluation, prediction and saving use the plain model.

    Cross-entropy trains whatever ``Trainer`` trains: if a model or a batch cannot be wrapped, the loss is the model's
    own.

    Args:
        objective: An objective, its class, its name, or a table with a name and fields; cross-entropy by default.
        wrapping: Further arguments of `unforced.wrap`, such as ``{"pad": 0}``.
    """

    loss_is_scaled_for_ga = True  # so that Trainer does not divide it by the number of micro-batches

    def __init__(
        self,
        *arguments: Any,
        objective: Objective | type | str | Mapping[str, Any] = "cross_entropy",
        wrapping: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        if not hasattr(transformers.Trainer, "loss_is_scaled_for_ga"):
            raise InputError(f"UnforcedTrainer needs transformers 5.22 or newer, not {transformers.__version__}")
        self.objective: Objective = objective_of(objective)
        self.wrapping = dict(wrapping or {})
        self._wrapped: Any = None
        self._own_loss = False  # whether cross-entropy is the model's own loss
        self._fitted: Objective | None = None
        self._reset_sums()
        super().__init__(*arguments, **options)
        self._check_arguments()
        if self.train_dataset is not None:
            self.step_module()  # raises errors now rather than when training starts

    def _check_arguments(self) -> None:
        args, processes, name = self.args, int(os.environ.get("WORLD_SIZE", 1)), type(self.objective).__name__
        stepwise = isinstance(self.objective, Stepwise) and self.objective.stepwise
        refused = [
            (args.label_smoothing_factor, 'set objective="label_smoothing" instead of label_smoothing_factor'),
            (self.compute_loss_func is not None, "give either an objective or compute_loss_func, not both"),
            (
                args.n_gpu > 1,
                f"objectives use one GPU per process, but this process has {args.n_gpu}: start one process per GPU "
                "with torchrun, or set CUDA_VISIBLE_DEVICES",
            ),
            (
                self.is_deepspeed_enabled or self.is_fsdp_enabled or args.fsdp,
                "DeepSpeed and the fsdp argument split a model layer by layer, which does not work with methods that "
                "go step by step: use unforced.shard(model)",
            ),
            (
                args.torch_compile,
                "torch_compile compiles only the model's own forward pass, which objectives do not call",
            ),
            (
                args.gradient_checkpointing and stepwise,
                f"{name} goes step by step and needs a cache, which a model keeps only without gradient "
                "checkpointing: turn gradient_checkpointing off",
            ),
            (
                self._routers_have_a_loss() and not isinstance(self.objective, CrossEntropy),
                f"{name} ignores the routers' loss that output_router_logits adds: set it to False",
            ),
            (
                processes != self.accelerator.num_processes,
                f"the launcher started {processes} processes (WORLD_SIZE), but the trainer uses "
                f"{self.accelerator.num_processes}",
            ),
        ]
        for wrong, message in refused:
            if wrong:
                raise InputError(message)

    @property
    def wrapped(self) -> Any:
        """The model with the protocols of this library; its parameters are those of ``self.model``."""
        if self._wrapped is None or self._wrapped.model is not self.model:
            with gathered(self.model):
                self._wrapped = wrap(self.model, **{"tokenizer": self.tokenizer(), **self.wrapping})
            self._fitted = None
        return self._wrapped

    def fit_objective(self) -> Objective:
        """Return the objective, fitted to the model's vocabulary and the training data."""
        wrapped = self.wrapped
        if self._fitted is None:
            examples = () if self.train_dataset is None else LabelledExamples(self.train_dataset)
            self._fitted = fitted(self.objective, wrapped.vocabulary, examples)
        return self._fitted

    def step_module(self) -> ObjectiveStep:
        """Return the module whose forward function is the loss of a micro-batch."""
        model: Any = self.model
        kind = ShardedStep if is_sharded(model) else ObjectiveStep
        if not isinstance(self.objective, CrossEntropy):
            return kind(self.wrapped, self.fit_objective())
        with gathered(model):
            self._own_loss = not self.can_wrap()
        return kind(model if self._own_loss else self.wrapped, OwnLoss())

    def can_wrap(self) -> bool:
        """Return whether cross-entropy through the wrapper is the model's own loss, which it is for most models."""
        if self._routers_have_a_loss():
            return False
        try:
            return isinstance(self.wrapped, WrappedDecoder) and has_usual_loss(self.wrapped)
        except InputError:
            return False

    def _routers_have_a_loss(self) -> bool:
        return bool(getattr(getattr(self.model, "config", None), "output_router_logits", False))

    def tokenizer(self) -> Any:
        """Return the tokenizer, or None without one.

        It may be the processing class, a part of it, or the tokenizer of the collator.
        """
        given = self.processing_class or getattr(self.data_collator, "tokenizer", None)
        given = getattr(given, "tokenizer", given)
        return given if hasattr(given, "convert_ids_to_tokens") else None

    def progress(self) -> Progress:
        """Return how far training has come, for schedules."""
        return Progress(self.state.global_step, float(self.state.epoch or 0), self.state.max_steps)

    def collated_batch(self, inputs: Mapping[str, Any]) -> Batch:
        """Return the `Batch` of a collator's output; example ids are hashes of the examples' tokens."""
        main = getattr(self.model, "main_input_name", "input_ids")
        if main == "inputs":  # a speech model that is made of two models
            main = next((name for name in ("input_values", "input_features") if name in inputs), main)
        if main not in inputs:
            raise InputError(f"the batch has no {main}; it has {', '.join(inputs) or 'nothing'}")
        given = {name: value for name, value in inputs.items() if value is not None and name not in IGNORED}
        unknown = [name for name in given if name not in (*USED, main)]
        if unknown:
            raise InputError(
                f"{type(self.objective).__name__} does not use {', '.join(unknown)} of the batch: remove it from the "
                "data, or use cross_entropy"
            )
        if "labels" not in given and isinstance(self.wrapped, WrappedDecoder):
            raise InputError("the batch has no labels to learn from")
        return with_content_ids(make_batch(self.wrapped, given.pop(main), **given))

    def training_batch(self, inputs: Mapping[str, Any]) -> Any:
        """Return a collator's output as a `Batch`; for cross-entropy, unchanged if that is impossible."""
        if not isinstance(self.objective, CrossEntropy):
            return self.collated_batch(inputs)
        with suppress(InputError):
            if not self._own_loss:
                return self.collated_batch(inputs)
        return inputs

    # ---- training ----

    def _wrap_model(self, model: nn.Module, training: bool = True, dataloader: Any = None) -> nn.Module:
        """Return the module that is trained: a step around the plain model, prepared for several processes."""
        if training:
            self._reset_sums()
        if not training or model is not self.model:  # evaluation, or a second training with the same model
            return super()._wrap_model(model, training, dataloader)
        if is_sharded(model):
            return self.step_module()
        self.accelerator.prepare_model(model, device_placement=False, evaluation_mode=True)  # autocast in evaluation
        step: nn.Module = self.accelerator.prepare_model(self.step_module())
        return step

    def _reset_sums(self) -> None:
        self._watch = Watch(self.objective)
        self._total: Any = 0.0  # of the losses in this update
        self._count: Any = None  # what to divide it by
        self._metrics: dict[str, tuple[Tensor, Tensor]] = {}  # sums and counts since the last log line
        self._last: dict[str, tuple[Tensor, Tensor]] = {}  # those of the last micro-batch

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """In training, return the objective's loss as a sum; in evaluation, the model's own loss."""
        if return_outputs or not model.training:
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        rng = generator(self.args.device, self.args.seed, self.state.global_step)
        loss: Loss = model(self.training_batch(inputs), self.progress(), rng)
        self._count = self._wide(loss.count) + (0 if self._count is None else self._count)
        self._last = loss.metrics
        for name, (total, count) in loss.metrics.items():
            old = self._metrics.get(name, (0.0, 0.0))
            self._metrics[name] = (old[0] + total, old[1] + count)
        return loss.total

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:
        """Add the gradients of a micro-batch; after the last one of an update, divide them and return the mean loss."""
        total = super().training_step(model, inputs, num_items_in_batch)
        if self._count is None:  # a subclass has computed another loss
            return total
        self._total = self._total + self._wide(total)
        if not self.accelerator.sync_gradients:
            return torch.zeros_like(total)
        processes, count = self.accelerator.num_processes, self._over_processes(self._count)
        scale_gradients(model.parameters(), count, processes)
        self._watch.add(self.state.max_steps, {**self._last, "loss": (self._total, count)})
        mean = self._total * processes / count.clamp(min=1)  # Trainer averages it over the processes
        self._total, self._count = 0.0, None
        reported: Tensor = mean.to(total)
        return reported

    def _wide(self, number: Any) -> Tensor:
        device = self.args.device
        return torch.as_tensor(number, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)

    def _over_processes(self, numbers: Tensor) -> Tensor:
        """Return the sum over all processes."""
        several = self.accelerator.num_processes > 1
        return self.accelerator.reduce(numbers, "sum") if several else numbers

    # ---- saving and logging ----

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the plain model; all processes must call this for a model that `unforced.shard` has split."""
        model: Any = self.model
        if not is_sharded(model):
            super().save_model(output_dir, _internal_call)
            return
        state = full_state_dict(model)
        if self.args.should_save:
            self._save(output_dir, state_dict=state)
        self.accelerator.wait_for_everyone()

    def log(self, logs: dict[str, float], *arguments: Any, **options: Any) -> None:
        """Log the objective's metrics, averaged since the last log line, with the loss."""
        if "loss" in logs and self._metrics:
            names = sorted(self._metrics)
            flat = [torch.as_tensor(value, dtype=torch.float32) for name in names for value in self._metrics[name]]
            numbers = torch.stack([value.to(self.accelerator.device) for value in flat])
            pairs = self._over_processes(numbers).reshape(-1, 2).tolist()
            logs = {**logs, **{name: total / max(n, 1e-9) for name, (total, n) in zip(names, pairs)}}
            self._metrics = {}
        super().log(logs, *arguments, **options)


def objective_of(objective: Any) -> Objective:
    """Return an objective from an object, a class, a name, or a table with a name and fields as in a recipe."""
    if isinstance(objective, type) and issubclass(objective, Options):
        return build(objective, {}, objective.__name__)  # type: ignore[return-value]
    if isinstance(objective, str | Mapping):
        found: Objective = pick("objectives", objective, "objective")
        return found
    if isinstance(objective, type) or not callable(objective):
        raise InputError(f"objective must be a name or an object such as CrossEntropy(), got {objective!r}")
    return objective  # type: ignore[no-any-return]


class UnforcedTrainer(ObjectiveMixin, transformers.Trainer):
    """``transformers.Trainer`` that trains by an objective of this library.

    For example: ``UnforcedTrainer(objective="scheduled_sampling", ...)``.
    """


class UnforcedSeq2SeqTrainer(ObjectiveMixin, transformers.Seq2SeqTrainer):
    """``transformers.Seq2SeqTrainer`` that trains by an objective of this library."""
