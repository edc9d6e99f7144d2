"""Train a model by a recipe: updates, log lines, validation, checkpoints and resume."""

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.ops.random_streams import generator, random_state, restore_random_state, seed_everything
from unforced.protocols import FittedTask, ModelSpec, SupportsModels, fitted
from unforced.recipes.recipe import Recipe, check_needed_runs, with_paths_resolved
from unforced.training import checkpoints, distributed
from unforced.training.batching import check_batch_tokens, epoch_batches, micro_batches, planned_updates, token_lengths
from unforced.training.checkpoints import (
    Checkpoint,
    fill_model,
    fill_optimizer,
    load_weights,
    model_tensors,
    optimizer_tensors,
    step_name,
)
from unforced.training.distributed import Interrupted, Signals, catch_signals, on_main
from unforced.training.evaluation import evaluate, spread
from unforced.training.loading import build_network, check_outputs, load_frozen
from unforced.training.options import learning_rate
from unforced.training.progress import Display, RunLog, duration
from unforced.training.run_folder import RunFolder
from unforced.training.run_identity import check_facts, data_facts, describe, expected_facts
from unforced.training.step import ObjectiveStep, Watch, scale_and_clip_gradients
from unforced.types import Encoded, Examples, Loss, Progress

FUSED = ("cpu", "cuda", "mps", "xpu")  # devices with a fused AdamW


def train(recipe: Recipe, folder: str | Path, *, resume: bool = False, quiet: bool = False) -> RunFolder:
    """Train by the recipe of one variant and one seed, and keep everything about the run in ``folder``.

    A folder that is not empty is refused unless ``resume`` is true. Then training continues from the newest undamaged
    checkpoint, on a CPU bit for bit as if it had not been interrupted; a finished run is only read. SIGTERM and SIGINT
    save a checkpoint and raise ``SystemExit`` with 143 or 130. At the end a model that the recipe holds as an
    ``nn.Module`` has the best weights.
    """
    distributed.tune_process()
    run = RunFolder(folder)
    accelerator = distributed.start(recipe.training.precision)
    on_main(accelerator, lambda: run.check_content(resume))
    check_needed_runs(recipe, run.path.parent, recipe.seeds[0])
    setup = Setup.of(recipe)
    facts = expected_facts(recipe) | data_facts(setup.task.codec, setup.encoded, setup.model)
    facts["world"] = accelerator.num_processes
    on_main(accelerator, lambda: check_facts(run, facts))
    with ExitStack() as stack:
        display = stack.enter_context(Display(quiet or not accelerator.is_main_process))
        trainer = Trainer(recipe, setup, run, accelerator, display) if run.finished() is None else None

        def open_run() -> Path | None:
            stack.enter_context(run.writing(resume=resume))
            if not run.exists():
                splits = {"train": setup.train, "dev": setup.dev}
                info = describe(recipe, facts, setup.model, splits, accelerator.device)
                run.create(recipe=recipe.to_toml(), info=info, codec=setup.task.codec.to_json())
            elif run.finished() is None and run.info()["threads"] != torch.get_num_threads():
                run.write_info(run.info() | {"threads": None})
            return None if run.finished() else checkpoints.newest(run)

        newest = on_main(accelerator, open_run)
        if trainer is not None:
            trainer.run(newest)
    load_weights(setup.model, run.best_checkpoint())
    setup.model.eval()
    return run


class Setup(NamedTuple):
    """The data, the codec and the model of a recipe."""

    task: FittedTask
    train: Examples
    dev: Examples
    encoded: list[Encoded]  # the training examples
    lengths: np.ndarray  # [N,2] theirs
    model: nn.Module

    @classmethod
    def of(cls, recipe: Recipe) -> "Setup":
        """Read the data, fit the codec and build the model."""
        train, dev = (
            found if isinstance(found := recipe.task.read(split), Examples) else Examples(found)
            for split in ("train", "dev")
        )
        for name, examples in (("training", train), ("development", dev)):
            if not examples:
                raise InputError(f"there are no {name} examples")
        recipe.task.metrics()  # refuses a missing package now, not after the first epoch
        codec = recipe.task.fit(train)
        encoded = [codec.encode(example) for example in train]
        lengths = token_lengths(encoded)
        check_batch_tokens(lengths, recipe.training.batch_tokens)
        check_batch_tokens(
            token_lengths([codec.encode(example) for example in dev]), recipe.training.batch_tokens, "dev"
        )
        torch.manual_seed(recipe.seeds[0])
        model = build_network(recipe.model, codec)
        if isinstance(recipe.model, nn.Module) or not isinstance(recipe.model, ModelSpec):
            check_outputs(model, codec.collate(encoded[:2], range(len(encoded[:2]))), codec.sizes.target)
        return cls(FittedTask(recipe.task, codec), train, dev, encoded, lengths, model)


@dataclass
class State:
    """The position in training. A checkpoint holds it with the weights, the optimiser and the random states."""

    step: int = 0  # updates made
    epoch: int = 0  # the next update takes batch ``offset`` of this epoch
    offset: int = 0
    tokens: int = 0  # target tokens trained on
    seconds: float = 0.0  # spent in updates
    validated: int = 0  # step of the last validation
    stale: int = 0  # validations since the best one
    best: dict[str, Any] | None = None  # content of best.json
    window: dict[str, list[float]] = field(default_factory=dict)  # name -> [sum, count] since the last log line


class Update(NamedTuple):
    """The numbers of one update, which stay on the device until they are needed."""

    step: int
    epoch: int
    rows: list[int]
    names: list[str]
    numbers: Tensor  # [2K + 1] sum and count of each name over the global batch, and the norm of the gradient


class Trainer:
    """A run in progress."""

    def __init__(self, recipe: Recipe, setup: Setup, run: RunFolder, accelerator: Any, display: Display) -> None:
        self.options, self.seed = recipe.training, recipe.seeds[0]
        self.setup, self.folder, self.accelerator, self.display = setup, run, accelerator, display
        self.model, self.device = setup.model, accelerator.device
        self.decoder = recipe.decoding[recipe.training.validate]
        self.dev = spread(setup.dev, self.options.dev_examples)
        self.wide = torch.float32 if self.device.type == "mps" else torch.float64
        ready = with_paths_resolved(recipe, run.path.parent, self.seed)
        if ready.training.warm_start is not None and not run.checkpoints():
            load_weights(self.model, RunFolder(ready.training.warm_start).best_checkpoint())
        seed_everything(self.seed, accelerator.process_index)
        objective = ready.objective
        if isinstance(objective, SupportsModels):
            objective = objective.with_models(lambda folder: load_frozen(folder, self.model).to(self.device))
        objective = fitted(objective, setup.task.codec, setup.encoded)
        self.module, self.watch = accelerator.prepare_model(ObjectiveStep(self.model, objective)), Watch(objective)
        self.parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise InputError("the model has no parameters to train")
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=self.options.learning_rate,
            betas=self.options.betas,
            weight_decay=self.options.weight_decay,
            fused=self.device.type in FUSED,
        )
        self.total = planned_updates(setup.lengths, self.options, self.seed)
        self.batches = lru_cache(maxsize=1)(lambda epoch: epoch_batches(setup.lengths, self.options, self.seed, epoch))
        self.state = State()
        self.saved = 0  # step of the last checkpoint
        self.kept = max(self.options.keep, self.options.average)
        self.unread: list[Update] = []
        self.signals = Signals()
        self.log: RunLog | None = None  # in the main process only

    def run(self, newest: Path | None) -> None:
        """Train from a checkpoint, or from the start, to the end; a signal saves and raises ``SystemExit``."""
        self.display.say(self.plan())
        sizes = {} if newest is None else self.restore(newest)
        self.began, self.first = time.monotonic(), self.state.step
        with ExitStack() as stack, catch_signals() as self.signals:
            if self.accelerator.is_main_process:
                self.log = stack.enter_context(RunLog(self.folder.path, self.options, sizes, self.state.step))
            self.bar = self.display.bar("training", total=self.total, done=self.state.step)
            self.model.train()
            try:
                reason = self.loop()
                if self.options.average > 1:
                    self.try_average()
            except Interrupted:
                if self.saved != self.state.step:
                    self.save()
                self.display.say(f"interrupted, saved {step_name(self.state.step)}")
                raise SystemExit(self.signals.exit_code) from None
            state = self.state
            finished = {"steps": state.step, "epochs": self.epochs(), "seconds": state.seconds, "tokens": state.tokens}
            on_main(self.accelerator, lambda: self.folder.write_finished({**finished, "reason": reason}))
        best = "" if state.best is None else "; best {metric} {score:.4g}, at step {step}".format(**state.best)
        self.display.say(f"finished after {duration(time.monotonic() - self.began)}{best}")

    def plan(self) -> str:
        """Return a line about what is trained, on what and for how long."""
        setup, options, sizes = self.setup, self.options, self.setup.task.codec.sizes
        source = "" if sizes.source is None else f"{sizes.source:,} source and "
        parts = self.accelerator.num_processes * options.accumulate
        splits = "" if parts == 1 else f" of {parts} micro-batches"
        ending = ""
        if options.steps is not None and self.total < options.steps:
            ending = f" (the end of {options.epochs:g} epochs; set training.epochs=none to make {options.steps:,})"
        return (
            f"training {sum(parameter.numel() for parameter in self.parameters):,} parameters on {self.device}: "
            f"{len(setup.train):,} examples, vocabulary of {source}{sizes.target:,} target tokens, "
            f"{self.total:,} updates{splits}{ending}"
        )

    def loop(self) -> str:
        """Make updates, validate and save until training ends; return "epochs", "steps" or "patience"."""
        state, options = self.state, self.options
        while True:
            if self.validation_due() and state.validated != state.step:
                self.validate()
            elif self.save_due() and self.saved != state.step:
                self.save()
            if options.patience is not None and state.stale >= options.patience:
                if state.step < self.total:
                    metric = "the score" if state.best is None else state.best["metric"]
                    self.display.say(
                        f"stopped at step {state.step} of {self.total}: "
                        f"{metric} has not improved in {options.patience} validations "
                        "(set training.patience=none to continue)"
                    )
                return "patience"
            if state.step >= self.total:
                return "steps" if state.step == options.steps else "epochs"
            self.update()

    def validation_due(self) -> bool:
        every = self.options.validate_every
        due = self.state.offset == 0 if every is None else self.state.step % every == 0
        return due or self.state.step == self.total

    def save_due(self) -> bool:
        return self.options.save_every is not None and self.state.step % self.options.save_every == 0

    def epochs(self) -> float:
        """Return the number of epochs made, with fractions."""
        if self.state.offset == 0:
            return float(self.state.epoch)
        return self.state.epoch + self.state.offset / len(self.batches(self.state.epoch))

    # Updates

    def update(self) -> None:
        """Make one update, and write a log line if one is due; raise ``Interrupted`` after a signal."""
        state, began = self.state, time.perf_counter()
        batches = self.batches(state.epoch)
        rows = batches[state.offset]
        rate = learning_rate(self.options, state.step + 1, self.total)
        names, numbers = self.backward(rows, Progress(state.step, self.epochs(), self.total))
        world = self.accelerator.num_processes
        if world > 1:
            numbers = self.accelerator.reduce(numbers, "sum")
        count = numbers[2 * names.index("loss") + 1]
        norm = scale_and_clip_gradients(self.parameters, count, world, self.options.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        numbers = torch.cat([numbers, norm.to(self.wide).reshape(1)])
        self.unread.append(Update(state.step + 1, state.epoch, rows, names, numbers))
        state.step += 1
        state.tokens += int(self.setup.lengths[rows, 1].sum())
        state.offset += 1
        if state.offset == len(batches):
            state.epoch, state.offset = state.epoch + 1, 0
        log = state.step % self.options.log_every == 0 or state.step == self.total
        line = self.display.line_due() or state.step == self.first + 1
        stop = self.read_updates() if log or self.reading_due(line) else False
        state.seconds += time.perf_counter() - began
        if line and state.window:
            self.display.log(f"step {state.step} of {self.total}: {self.measured()}, {self.time_left()} left")
        if log:
            self.write_log(rate)
        if stop:
            raise Interrupted

    def backward(self, rows: list[int], progress: Progress) -> tuple[list[str], Tensor]:
        """Add the gradients of this process's part of a global batch; return names and their sums and counts.

        Each micro-batch gets a generator in the same state, a function of the seed and the step. Objectives draw for
        each example separately (`unforced.ops.random_streams`), so that the numbers do not depend on how the batch is
        split. ``stop`` is added to the sums, so that a signal to one process reaches all of them.
        """
        parts, idle = self.parts(rows)
        sums: dict[str, tuple[Any, Any]] = {"stop": (self.signals.received is not None, 1)}
        for i, part in enumerate(parts):
            with nullcontext() if i == len(parts) - 1 else self.accelerator.no_sync(self.module):
                encoded = [self.setup.encoded[row] for row in part]
                batch = self.setup.task.codec.collate(encoded, part).to(self.device)
                loss = self.module(batch, progress, generator(self.device, self.seed, progress.step))
                loss = times_zero(loss) if idle else loss
                self.accelerator.backward(loss.total)
            for name, (total, number) in [("loss", (loss.total.detach(), loss.count)), *loss.metrics.items()]:
                before = sums.get(name)
                sums[name] = (total, number) if before is None else (before[0] + total, before[1] + number)
        names = sorted(sums)
        numbers = [torch.as_tensor(x, dtype=self.wide, device=self.device) for name in names for x in sums[name]]
        return names, torch.stack(numbers)

    def parts(self, rows: list[int]) -> tuple[list[list[int]], bool]:
        """Return the micro-batches of this process, and whether they must not count.

        A process without rows, in a batch with fewer rows than processes, passes one row of another process through the
        model, because the others wait for its gradients.
        """
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        own = micro_batches(rows, self.setup.lengths, parts=self.options.accumulate * world)[rank::world]
        filled = [part for part in own if part]
        return (filled, False) if filled else ([rows[:1]], True)

    def reading_due(self, line: bool) -> bool:
        """Return whether to wait for the device and read what updates measured; the same in all processes."""
        alone = self.accelerator.num_processes == 1
        return (
            self.device.type == "cpu"
            or self.validation_due()
            or self.save_due()
            or (alone and (self.signals.received is not None or line))
        )

    def read_updates(self) -> bool:
        """Add the numbers of unread updates to the log window; return whether a process received a signal.

        Raise ``InputError`` if a loss or a gradient is not finite.
        """
        stop, unread, self.unread = False, self.unread, []
        for step, epoch, rows, names, numbers in unread:
            *pairs, norm = numbers.tolist()
            sums = {name: (pairs[2 * i], pairs[2 * i + 1]) for i, name in enumerate(names)}
            stop |= sums.pop("stop")[0] > 0
            loss = sums["loss"][0] / max(sums["loss"][1], 1.0)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = f"gradient norm is {norm}" if math.isfinite(loss) else f"loss is {loss}"
                saved = f"the last checkpoint is {step_name(self.saved)}" if self.saved else "nothing was saved"
                raise InputError(f"the {what} at step {step}, epoch {epoch}, examples {shorten(rows)}; {saved}")
            self.watch.add(self.total, sums)
            for name, (total, number) in {**sums, "grad_norm": (norm, 1.0)}.items():
                before = self.state.window.get(name, [0.0, 0.0])
                self.state.window[name] = [before[0] + total, before[1] + number]
            if self.log is not None:
                self.log.sample(step, epoch, rows)
            if self.display.live:
                self.bar.move(step, f"loss {loss:.4f} · {self.speed()}")
        return stop

    def write_log(self, rate: float) -> None:
        """Write the means since the last log line."""
        state, measured = self.state, means(self.state.window)
        state.window = {}
        event = {"kind": "train", "step": state.step, "epoch": self.epochs(), **measured}
        event |= {"learning_rate": rate, "tokens": state.tokens, "seconds": state.seconds}
        if self.log is not None:
            self.log.event(event)

    def measured(self) -> str:
        """Return the means since the last log line, as text."""
        mean = means(self.state.window)
        others = [f"{name} {value:.4g}" for name, value in mean.items() if name not in ("loss", "nll")]
        return ", ".join([f"loss {mean['loss']:.4f}", *others, self.speed()])

    def time_left(self) -> str:
        """Return the expected time to the end, validations included."""
        state = self.state
        each = (time.monotonic() - self.began) / (state.step - self.first)
        return duration(each * (self.total - state.step))

    def speed(self) -> str:
        return f"{self.state.tokens / max(self.state.seconds, 1e-9):,.0f} tokens/s"

    # Validation and checkpoints

    def validate(self) -> None:
        """Score the development set and save; a score as good as the best makes this step the best.

        Validations during the learning rate's warm-up don't count for patience.
        """
        better, line = self.judge(step_name(self.state.step), {}, ties=True)
        self.state.validated = self.state.step
        if better:
            self.state.stale = 0
        elif self.state.step > self.options.warmup:
            self.state.stale += 1
        self.save()
        self.display.say(line)

    def judge(self, name: str, remarks: dict[str, Any], *, ties: bool = False) -> tuple[bool, str]:
        """Return whether the present weights, to be saved as ``name``, beat the best by the task's first metric.

        With ``ties`` weights with an equal score become the best too: they were trained longer. A line about the scores
        is returned too.
        """
        state = self.state
        alone = self.accelerator.num_processes == 1
        with self.signals.raised_at_once() if alone else nullcontext():
            found = evaluate(
                self.model,
                self.setup.task,
                self.dev,
                self.decoder,
                seed=self.seed,
                accelerator=self.accelerator,
                predictions=False,
                final=False,
                display=self.display,
            )
        scores = on_main(self.accelerator, lambda: found.scores)
        first = found.metrics[0]
        score = scores[first.name]
        if self.log is not None:
            event = {"kind": "dev", "step": state.step, "epoch": self.epochs(), **remarks, **scores}
            self.log.event({**event, "seconds": found.seconds})
        sign = 1 if first.higher_is_better else -1
        better = math.isfinite(score) and (state.best is None or sign * score > sign * state.best["score"])
        if better or (ties and state.best is not None and score == state.best["score"]):
            state.best = {"checkpoint": name, "metric": first.name, "score": score, "step": state.step}
        loss = means(state.window).get("loss")  # if there were updates since the last log line
        shown = ", ".join(f"{key} {value:.4g}" for key, value in scores.items())
        learnt = "" if loss is None else f", loss {loss:.4f}"
        return better, f"step {state.step}{learnt}, development: {shown}{' (best so far)' if better else ''}"

    def save(self) -> None:
        """Publish a checkpoint of this step, note which is the best, and remove old ones."""
        random = {
            name: self.accelerator.gather(state.unsqueeze(0).to(self.device))
            for name, state in random_state(self.device).items()
        }

        def write() -> None:
            assert self.log is not None
            state = {**asdict(self.state), "logs": self.log.sync()}
            optimizer = optimizer_tensors(self.optimizer, self.model)
            checkpoint = Checkpoint(model_tensors(self.model), optimizer, random, state)
            checkpoints.publish(self.folder.path / "checkpoints", step_name(self.state.step), checkpoint)
            self.folder.write_best(self.state.best)
            checkpoints.rotate(self.folder, self.kept)

        on_main(self.accelerator, write)
        self.saved = self.state.step

    def restore(self, path: Path) -> dict[str, int]:
        """Continue from a checkpoint; return the sizes that the log files had."""
        checkpoint = checkpoints.read(path)
        state = dict(checkpoint.state)
        sizes: dict[str, int] = state.pop("logs")
        self.state = State(**state)
        self.saved = self.state.step
        fill_model(self.model, checkpoint.model, str(path))
        fill_optimizer(self.optimizer, self.model, checkpoint.optimizer)
        rank = self.accelerator.process_index
        restore_random_state(self.device, {name: rows[rank] for name, rows in checkpoint.random.items()})
        if self.accelerator.is_main_process:
            self.folder.write_best(self.state.best)
            checkpoints.rotate(self.folder, self.kept)  # an interrupted save may not have removed old ones
        self.display.say(f"resuming from {path.name}")
        return sizes

    def try_average(self) -> None:
        """Score the mean of the last checkpoints; publish it, weights only, if it is the best."""
        paths = self.folder.checkpoints()[-self.options.average :]
        name = f"average-{self.state.step:08d}"
        fill_model(self.model, checkpoints.average(paths), name)
        better, line = self.judge(name, {"average": len(paths)})

        def write() -> None:
            state = {"step": self.state.step, "of": [path.name for path in paths]}
            checkpoint = Checkpoint(model_tensors(self.model), {}, {}, state)
            checkpoints.publish(self.folder.path / "checkpoints", name, checkpoint)
            self.folder.write_best(self.state.best)

        if better:
            on_main(self.accelerator, write)
        self.display.say(line)


def times_zero(loss: Loss) -> Loss:
    metrics = {name: (total * 0, count * 0) for name, (total, count) in loss.metrics.items()}
    return Loss(loss.total * 0, loss.count * 0, metrics)


def means(window: dict[str, list[float]]) -> dict[str, float]:
    """Return the mean of each name, and the variance if the mean of squares is there too.

    >>> means({"log_z": [4.0, 2.0], "log_z_squared": [10.0, 2.0]})  # 1 and 3
    {'log_z': 2.0, 'log_z_squared': 5.0, 'log_z_variance': 1.0}
    """
    found = {name: total / max(count, 1.0) for name, (total, count) in window.items()}
    squared = {name: found[f"{name}_squared"] for name in found if f"{name}_squared" in found}
    return found | {f"{name}_variance": max(0.0, square - found[name] ** 2) for name, square in squared.items()}


def shorten(rows: Sequence[int], most: int = 50) -> str:
    """Write row numbers for a message.

    >>> shorten([3, 1, 2], most=2)
    '3, 1 and 1 more'
    """
    more = f" and {len(rows) - most} more" if len(rows) > most else ""
    return ", ".join(map(str, rows[:most])) + more
