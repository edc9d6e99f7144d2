"""What training is given, what it remembers and what it returns."""

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from unforced.errors import InputError
from unforced.ops.random_streams import generator, random_state, restore_random_state, seed_everything
from unforced.protocols import Decoder, FittedTask, Objective, SupportsDoubts, fitted
from unforced.training import checkpoints, distributed
from unforced.training.batching import check_lengths, epoch_batches, micro_batches, planned_updates, token_lengths
from unforced.training.checkpoints import (
    Checkpoint,
    fill_model,
    fill_optimizer,
    model_tensors,
    optimizer_tensors,
    step_name,
)
from unforced.training.distributed import Interrupted, Signals, catch_signals, on_main
from unforced.training.evaluation import evaluate, spread
from unforced.training.options import Training
from unforced.training.progress import Display
from unforced.training.run_folder import LineLog, RunFolder, differences
from unforced.training.run_identity import describe, facts
from unforced.training.step import ObjectiveStep, scale_and_clip_gradients
from unforced.types import Batch, Encoded, Examples, Loss, Progress


@dataclass(frozen=True)
class Job:
    """All that training needs: a model with an objective, data, how to judge, and for how long."""

    model: nn.Module
    objective: Objective
    fitted: FittedTask
    train: Examples
    dev: Examples
    decoder: Decoder  # judges on the development set
    options: Training
    seed: int
    recipe: str = ""  # the resolved recipe, stored as it is
    about: Mapping[str, Any] = field(default_factory=dict)  # added to run.json


@dataclass
class State:
    """How far a run has come; with weights, optimiser and random state, all that a checkpoint holds."""

    step: int = 0  # updates made
    epoch: int = 0  # the next update takes batch ``offset`` of this epoch
    offset: int = 0
    tokens: int = 0  # target tokens trained on
    seconds: float = 0.0  # spent in updates
    validated: int = 0  # step of the last validation
    stale: int = 0  # validations since the best one
    best: dict[str, Any] | None = None  # what best.json says
    window: dict[str, list[float]] = field(default_factory=dict)  # sums and counts since the last log line


class Finished(NamedTuple):
    """How a run ended; ``reason`` is "epochs", "steps" or "patience", ``seconds`` were spent in updates alone."""

    steps: int
    epochs: float
    seconds: float
    tokens: int
    reason: str
    best: dict[str, Any] | None


# What updates measured: kept on the device, read as late as possible, checked, and summed for the next log line.


class Reading(NamedTuple):
    """The numbers of one update on the host; ``stop`` says that a process of the run got a signal."""

    step: int
    epoch: int
    rows: list[int]
    loss: float
    stop: bool


class Meter:
    """Numbers of updates that nobody has looked at yet. A window is ``name -> [sum, count]`` since the last log line."""

    def __init__(self) -> None:
        self.unread: list[tuple[int, int, list[int], Measured]] = []

    def put(self, step: int, epoch: int, rows: list[int], measured: "Measured") -> None:
        self.unread.append((step, epoch, rows, measured))

    def read(self, window: dict[str, list[float]]) -> Iterator[Reading]:
        """Give each unread update after adding it to the window; raises ``InputError`` at one that is no number."""
        unread, self.unread = self.unread, []
        for step, epoch, rows, measured in unread:
            sums, norm = measured.tables()
            stop = sums.pop("stop")[0] > 0
            loss = sums["loss"][0] / max(sums["loss"][1], 1.0)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = f"gradient's norm is {norm}" if math.isfinite(loss) else f"loss is {loss}"
                raise InputError(
                    f"the {what} at step {step}, epoch {epoch}, examples {some(rows)};"
                    " training stops, and nothing of this step or later is kept"
                )
            for name, (total, count) in {**sums, "grad_norm": (norm, 1.0)}.items():
                old = window.get(name, [0.0, 0.0])
                window[name] = [old[0] + total, old[1] + count]
            yield Reading(step, epoch, rows, loss, stop)


def means(window: dict[str, list[float]]) -> dict[str, float]:
    """The mean of each; where that of squares is known as well, the variance, too.

    >>> means({"loss": [6.0, 4.0]})
    {'loss': 1.5}
    >>> means({"log_z": [4.0, 2.0], "log_z_squared": [10.0, 2.0]})  # 1 and 3
    {'log_z': 2.0, 'log_z_squared': 5.0, 'log_z_variance': 1.0}
    """
    found = {name: total / max(count, 1.0) for name, (total, count) in window.items()}
    squared = {name: found[f"{name}_squared"] for name in found if f"{name}_squared" in found}
    return found | {f"{name}_variance": max(0.0, square - found[name] ** 2) for name, square in squared.items()}


def some(rows: Sequence[int], most: int = 50) -> str:
    """Row numbers for a message.

    >>> some([3, 1, 2], most=2)
    '3, 1 and 1 more'
    """
    more = f" and {len(rows) - most} more" if len(rows) > most else ""
    return ", ".join(map(str, rows[:most])) + more


# The learning rate as a function of the update's number.


def learning_rate(options: Training, step: int, total: int) -> float:
    """The rate of update ``step`` (the first is 1) out of ``total``.

    Linear warm-up over w updates, then with s = (step − w) / (total − w): the peak itself, peak · (1 − s),
    peak · (1 + cos πs) / 2, or peak · √(w / step). Linear and cosine reach zero just after the last update.

    >>> options = Training(learning_rate=1.0, schedule="linear", warmup=2)
    >>> [round(learning_rate(options, step, total=6), 2) for step in range(1, 7)]
    [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]
    """
    peak, warmup = options.learning_rate, options.warmup
    if step <= warmup:
        return peak * step / warmup
    done = (step - warmup) / (total - warmup + 1)
    if options.schedule == "linear":
        return peak * (1 - done)
    if options.schedule == "cosine":
        return peak * (1 + math.cos(math.pi * done)) / 2
    if options.schedule == "inverse_sqrt":
        return peak * math.sqrt(warmup / step)
    return peak


# The logs of a run: metrics.jsonl always, samples.jsonl and TensorBoard on request.


class Logs:
    """Open logs, cut back to the ``sizes`` that a checkpoint remembers (nothing, where it remembers none)."""

    def __init__(self, folder: Path, options: Training, sizes: Mapping[str, int], step: int) -> None:
        self.metrics = LineLog(folder / "metrics.jsonl", sizes.get("metrics.jsonl", 0))
        self.samples = None
        if options.log_samples:
            self.samples = LineLog(folder / "samples.jsonl", sizes.get("samples.jsonl", 0))
        self.board = _board(folder / "tensorboard", step) if options.tensorboard else None

    def event(self, event: Mapping[str, Any]) -> None:
        """A line of metrics.jsonl; its numbers go to TensorBoard as ``kind/name``."""
        self.metrics.append(event)
        if self.board is not None:
            for name, value in event.items():
                if isinstance(value, int | float) and name != "step":
                    self.board.add_scalar(f"{event['kind']}/{name}", value, event["step"])

    def sample(self, step: int, epoch: int, rows: Sequence[int]) -> None:
        """Which examples an update saw."""
        if self.samples is not None:
            self.samples.append({"step": step, "epoch": epoch, "ids": list(rows)})

    def sync(self) -> dict[str, int]:
        """Bring all to the disk; returns the sizes by name."""
        if self.board is not None:
            self.board.flush()
        return {log.path.name: log.sync() for log in (self.metrics, self.samples) if log is not None}

    def close(self) -> None:
        self.metrics.close()
        if self.samples is not None:
            self.samples.close()
        if self.board is not None:
            self.board.close()


def _board(folder: Path, step: int) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InputError(
            "training.tensorboard needs TensorBoard: pip install 'unforced[tensorboard]', or leave it off"
        ) from None
    return SummaryWriter(str(folder), purge_step=step + 1)


# One update: forward and backward over the micro-batches of a global batch, then one step of the optimiser.

FUSED = ("cpu", "cuda", "mps", "xpu")  # devices with a fused AdamW


class Measured(NamedTuple):
    """What an update saw: ``sums[name]`` is (sum, count) over the global batch, as [2K + 1] numbers on the device.

    ``names`` are "loss" and the objective's metrics; the last number is the gradient's norm before clipping.
    """

    names: tuple[str, ...]
    numbers: Tensor

    def tables(self) -> tuple[dict[str, tuple[float, float]], float]:
        """The sums by name and the norm, on the host."""
        *pairs, norm = self.numbers.tolist()
        return {name: (pairs[2 * i], pairs[2 * i + 1]) for i, name in enumerate(self.names)}, norm


class Updater:
    """Makes updates. The objective's ``total`` is a sum, so gradients of micro-batches and processes simply add up;
    they are divided once, by the count of the whole global batch:

        g = (Σ_parts ∇ total) / (Σ_parts count), clipped to norm ``clip``

    Every part is given a generator in the same state, a function of the run's seed and the step: an objective draws its
    numbers for each example apart (``unforced.ops.random_streams``), so that they don't depend on how the batch is dealt out.

    A global batch is given as row numbers into ``lengths`` ([N,2], for dealing rows out evenly); ``collate`` turns
    them into a batch. ``stop`` is added to the sums, so that all processes learn of a signal that one of them got.
    """

    def __init__(
        self,
        model: nn.Module,
        objective: Objective,
        options: Training,
        accelerator: Accelerator,
        collate: Callable[[Sequence[int]], Batch],
        lengths: np.ndarray,
        seed: int,
    ) -> None:
        self.accelerator = accelerator
        self.accumulate = options.accumulate
        self.collate = collate
        self.lengths = lengths
        self.seed = seed
        self.clip = options.clip
        self.module = accelerator.prepare_model(ObjectiveStep(model, objective))
        self.parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        if not self.parameters:
            raise InputError("the model has no parameters to train")
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            lr=options.learning_rate,
            betas=options.betas,
            weight_decay=options.weight_decay,
            fused=accelerator.device.type in FUSED,
        )
        self.wide = torch.float32 if accelerator.device.type == "mps" else torch.float64

    def __call__(self, rows: Sequence[int], progress: Progress, rate: float, stop: bool = False) -> Measured:
        """Update the model on a global batch, of which this process sees its part."""
        names, numbers = self.gradients(rows, progress, stop)
        world = self.accelerator.num_processes
        if world > 1:
            numbers = self.accelerator.reduce(numbers, "sum")
        count = numbers[names.index("loss") * 2 + 1]
        norm = scale_and_clip_gradients(self.parameters, count, world, self.clip)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return Measured(names, torch.cat([numbers, norm.to(self.wide).reshape(1)]))

    def gradients(self, rows: Sequence[int], progress: Progress, stop: bool = False) -> tuple[tuple[str, ...], Tensor]:
        """Add this process's gradients of ``total`` to ``.grad``; returns names and (sum, count) pairs, flat."""
        parts, idle = self.parts(rows)
        sums: dict[str, Any] = {"stop": (float(stop), 1.0)}
        for i, part in enumerate(parts):
            last = i == len(parts) - 1
            with nullcontext() if last else self.accelerator.no_sync(self.module):
                batch = self.collate(part).to(self.accelerator.device)
                loss = self.module(batch, progress, generator(batch.gold.device, self.seed, progress.step))
                loss = nothing(loss) if idle else loss
                self.accelerator.backward(loss.total)
            for name, (total, count) in [("loss", (loss.total.detach(), loss.count)), *loss.metrics.items()]:
                old = sums.get(name, (0.0, 0.0))
                sums[name] = (old[0] + total, old[1] + count)
        names = tuple(sorted(sums))
        return names, torch.stack([self.number(value) for name in names for value in sums[name]])

    def parts(self, rows: Sequence[int]) -> tuple[list[list[int]], bool]:
        """This process's micro-batches, and whether they are not to count.

        Where there are fewer rows than processes, one without any goes through a row of another's, because the others
        wait for its gradients, and adds nothing to them.
        """
        rank, world = self.accelerator.process_index, self.accelerator.num_processes
        mine = micro_batches(rows, self.lengths, parts=self.accumulate * world)[rank::world]
        filled = [part for part in mine if part]
        return (filled, False) if filled else ([list(rows[:1])], True)

    def number(self, value: Any) -> Tensor:
        return torch.as_tensor(value, dtype=self.wide, device=self.accelerator.device)


def nothing(loss: Loss) -> Loss:
    """The loss times zero."""
    return Loss(
        loss.total * 0, loss.count * 0, {name: (total * 0, count * 0) for name, (total, count) in loss.metrics.items()}
    )


# A run in progress: updates, log lines, validation by decoding, early stopping, checkpoints.


class Trainer:
    """``start`` or ``restore`` first, then ``run``."""

    def __init__(
        self,
        job: Job,
        run: RunFolder,
        accelerator: Accelerator,
        encoded: Sequence[Encoded],
        lengths: np.ndarray,
        display: Display,
    ) -> None:
        self.job, self.folder, self.accelerator, self.display = job, run, accelerator, display
        self.options, self.lengths = job.options, lengths
        self.dev = spread(job.dev, job.options.dev_examples)
        self.state = State()
        self.saved = 0  # step of the last checkpoint
        self.signals = Signals()
        self.meter = Meter()
        self.logs: Logs | None = None  # in the main process alone
        seed_everything(job.seed, accelerator.process_index)
        collate = job.fitted.codec.collate
        self.updater = Updater(
            job.model,
            fitted(job.objective, job.fitted.codec, encoded),
            job.options,
            accelerator,
            lambda rows: collate([encoded[row] for row in rows], rows),
            lengths,
            job.seed,
        )
        limits = {"batch_tokens": job.options.batch_tokens, "max_rows": job.options.max_rows, "seed": job.seed}
        self.total = planned_updates(lengths, epochs=job.options.epochs, steps=job.options.steps, **limits)  # type: ignore[arg-type]
        self.batches = lru_cache(maxsize=1)(lambda epoch: epoch_batches(lengths, epoch=epoch, **limits))  # type: ignore[arg-type]

    # ---- beginning and end ----

    def start(self) -> None:
        """Begin at step 0, with empty logs."""
        self._open_logs({})

    def restore(self, path: Path) -> None:
        """Go on from a checkpoint."""
        checkpoint = checkpoints.read(path)
        state = dict(checkpoint.state)
        sizes = state.pop("logs")
        self.state = State(**state)
        self.saved = self.state.step
        fill_model(self.job.model, checkpoint.model, str(path))
        fill_optimizer(self.updater.optimizer, self.job.model, checkpoint.optimizer)
        rank = self.accelerator.process_index
        random = {name: rows[rank] for name, rows in checkpoint.random.items()}
        restore_random_state(self.accelerator.device, random)
        self._open_logs(sizes)
        if self.accelerator.is_main_process:
            self.folder.write_best(self.state.best)
        self.display.say(f"resuming from {path.name}")

    def _open_logs(self, sizes: Mapping[str, int]) -> None:
        if self.accelerator.is_main_process:
            self.logs = Logs(self.folder.path, self.options, sizes, self.state.step)

    def close(self) -> None:
        if self.logs is not None:
            self.logs.close()

    def run(self) -> None:
        """Train to the end and write finished.json; a signal ends in a checkpoint and ``SystemExit``."""
        self.bar = self.display.bar("training", total=self.total, done=self.state.step)
        self.job.model.train()
        with catch_signals() as self.signals:
            try:
                reason = self._loop()
                if self.options.average > 1:
                    self.try_average()
            except Interrupted:
                if self.saved != self.state.step:
                    self.save()
                self.display.say(f"interrupted at {step_name(self.state.step)}, which is saved")
                raise SystemExit(self.signals.exit_code) from None
        finished = {
            "steps": self.state.step,
            "epochs": self.epochs(),
            "seconds": self.state.seconds,
            "tokens": self.state.tokens,
            "reason": reason,
        }
        on_main(self.accelerator, lambda: self.folder.write_finished(finished))

    def _loop(self) -> str:
        state, options = self.state, self.options
        while True:
            if self._validation_due() and state.validated != state.step:
                self.validate()
                self.save()
            elif self._save_due() and self.saved != state.step:
                self.save()
            if options.patience is not None and state.stale >= options.patience:
                if state.step < self.total:
                    self._say_patience()
                return "patience"
            if state.step >= self.total:
                return "steps" if state.step == options.steps else "epochs"
            self.update()

    def _validation_due(self) -> bool:
        every = self.options.validate_every
        whole = self.state.offset == 0 if every is None else self.state.step % every == 0
        return whole or self.state.step == self.total

    def _save_due(self) -> bool:
        return self.options.save_every is not None and self.state.step % self.options.save_every == 0

    # ---- updates ----

    def update(self) -> None:
        """One update; then a log line if a window of them is complete, and ``Interrupted`` if a signal came."""
        state, options = self.state, self.options
        with self._timed():
            batches = self.batches(state.epoch)
            rows = batches[state.offset]
            rate = learning_rate(options, state.step + 1, self.total)
            progress = Progress(state.step, self.epochs(), self.total)
            measured = self.updater(rows, progress, rate, stop=self.signals.received is not None)
            self.meter.put(state.step + 1, state.epoch, rows, measured)
            state.step += 1
            state.tokens += int(self.lengths[rows, 1].sum())
            state.offset += 1
            if state.offset == len(batches):
                state.epoch, state.offset = state.epoch + 1, 0
            log = state.step % options.log_every == 0 or state.step == self.total
            stop = self.read_numbers() if log or self._reading_due() else False
        if log:
            self._log_window(rate)
        if stop:
            raise Interrupted

    def epochs(self) -> float:
        """Epochs made, fractions included."""
        if self.state.offset == 0:
            return float(self.state.epoch)
        return self.state.epoch + self.state.offset / len(self.batches(self.state.epoch))

    def _reading_due(self) -> bool:
        """Whether to read numbers off the device: it has to wait for that, which costs nothing on the CPU alone.

        All processes of a run must answer alike, so a signal that came to one of them does not count.
        """
        alone = self.accelerator.num_processes == 1
        return (
            self.accelerator.device.type == "cpu"
            or self._validation_due()
            or self._save_due()
            or (alone and self.signals.received is not None)
        )

    def read_numbers(self) -> bool:
        """Look at what updates measured; whether one of them brought word of a signal."""
        stop = False
        for reading in self.meter.read(self.state.window):
            stop |= reading.stop
            if self.logs is not None:
                self.logs.sample(reading.step, reading.epoch, reading.rows)
            if self.display.live:
                self.bar.move(reading.step, f"loss {reading.loss:.4f} · {self._speed()}")
        return stop

    def _log_window(self, rate: float) -> None:
        state = self.state
        measured = means(state.window)
        event = {"kind": "train", "step": state.step, "epoch": self.epochs(), **measured}
        event |= {"learning_rate": rate, "tokens": state.tokens, "seconds": state.seconds}
        state.window = {}
        if self.logs is not None:
            self.logs.event(event)
        told = [f"{name} {mean:.4g}" for name, mean in measured.items() if name not in ("loss", "nll")]
        loss = f"loss {measured['loss']:.4f}"
        self.display.log(f"step {state.step} of {self.total}: {', '.join([loss, *told, self._speed()])}")

    def _speed(self) -> str:
        return f"{self.state.tokens / max(self.state.seconds, 1e-9):,.0f} tokens/s"

    @contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.state.seconds += time.perf_counter() - began

    # ---- validation and checkpoints ----

    def validate(self) -> None:
        """Decode the development set; the best score so far makes this step the best, and so does the same score again.

        While the learning rate still warms up, patience isn't tried.
        """
        better = self._judge(step_name(self.state.step), {}, ties=True)
        self.state.validated = self.state.step
        if better:
            self.state.stale = 0
        elif self.state.step > self.options.warmup:
            self.state.stale += 1

    def _say_patience(self) -> None:
        measured = "the score" if self.state.best is None else self.state.best["metric"]
        self.display.say(
            f"stopped at step {self.state.step} of {self.total}: {measured} has not become better in {self.options.patience} "
            "validations (training.patience=none would go on)"
        )

    def _judge(self, name: str, remarks: dict[str, Any], *, ties: bool = False) -> bool:
        """Whether the present weights, to be saved as ``name``, beat the best so far by the task's first metric.

        With ``ties`` weights that are as good become the best all the same: those trained longer.
        """
        bar, done = self.display.bar("validating", total=len(self.dev)), 0

        def tick(rows: int) -> None:
            nonlocal done
            done += rows
            bar.move(done)
            if self.signals.received is not None and self.accelerator.num_processes == 1:
                raise Interrupted

        job, state = self.job, self.state
        found = evaluate(
            job.model,
            job.fitted,
            self.dev,
            job.decoder,
            seed=job.seed,
            accelerator=self.accelerator,
            predictions=False,
            final=False,
            after_batch=tick,
        )
        bar.close()
        scores = on_main(self.accelerator, lambda: found.scores)
        metric, score = next(iter(scores.items()))
        event = {"kind": "dev", "step": state.step, "epoch": self.epochs(), **remarks, **scores}
        if self.logs is not None:
            self.logs.event({**event, "seconds": found.seconds})
        sign = 1 if found.higher_is_better[metric] else -1
        better = math.isfinite(score) and (state.best is None or sign * score > sign * state.best["score"])
        if better or (ties and state.best is not None and score == state.best["score"]):
            state.best = {"checkpoint": name, "metric": metric, "score": score, "step": state.step}
        shown = ", ".join(f"{key} {value:.4g}" for key, value in scores.items())
        loss = means(state.window).get("loss")  # where updates have been made since the last line that had it
        learnt = "" if loss is None else f", loss {loss:.4f}"
        self.display.say(f"step {state.step}{learnt}, development: {shown}{' (best so far)' if better else ''}")
        return better

    def save(self) -> None:
        """Publish a checkpoint of this step, say which is the best, then remove old ones."""
        random = {
            name: self.accelerator.gather(state.unsqueeze(0).to(self.accelerator.device))
            for name, state in random_state(self.accelerator.device).items()
        }

        def write() -> None:
            assert self.logs is not None
            state = {**asdict(self.state), "logs": self.logs.sync()}
            optimizer = optimizer_tensors(self.updater.optimizer, self.job.model)
            checkpoint = Checkpoint(model_tensors(self.job.model), optimizer, random, state)
            checkpoints.publish(self.folder.path / "checkpoints", step_name(self.state.step), checkpoint)
            self.folder.write_best(self.state.best)
            checkpoints.rotate(self.folder, max(self.options.keep, self.options.average))

        on_main(self.accelerator, write)
        self.saved = self.state.step

    def try_average(self) -> None:
        """Judge the mean of the last checkpoints; where it is the best, publish it as a checkpoint of weights alone."""
        paths = self.folder.checkpoints()[-self.options.average :]
        name = f"average-{self.state.step:08d}"
        fill_model(self.job.model, checkpoints.average(paths), name)
        if not self._judge(name, {"average": len(paths)}):
            return

        def write() -> None:
            checkpoint = Checkpoint(
                model_tensors(self.job.model), {}, {}, {"step": self.state.step, "of": [path.name for path in paths]}
            )
            checkpoints.publish(self.folder.path / "checkpoints", name, checkpoint)
            self.folder.write_best(self.state.best)

        on_main(self.accelerator, write)


# Train a model in a run folder, or go on where an interrupted run stopped.

__all__ = ["Finished", "Job", "train"]


def train(job: Job, folder: str | Path, *, resume: bool = False, quiet: bool = False) -> Finished:
    """Train ``job.model`` in ``folder`` and leave the best weights in it.

    A folder with content is refused unless ``resume``, which goes on from the newest whole checkpoint (from the start
    where there is none), bit for bit as if nothing had happened on a CPU; a finished run is only read. SIGTERM and
    SIGINT end in a checkpoint and ``SystemExit`` with 143 or 130.
    """
    torch.set_flush_denormal(True)
    _check(job)
    accelerator = distributed.start(job.options.precision)
    codec = job.fitted.codec
    encoded = [codec.encode(example) for example in job.train]
    lengths = token_lengths(encoded)
    check_lengths(lengths, job.options.batch_tokens)
    run = RunFolder(folder)
    if job.options.warm_start is not None and not run.exists():
        RunFolder(job.options.warm_start).best_checkpoint()  # before there is a folder
    identity = facts(
        model=job.model,
        objective=job.objective,
        codec=codec,
        encoded=encoded,
        options=job.options,
        seed=job.seed,
        world=accelerator.num_processes,
    )
    fresh: list[RunFolder] = []  # the run, where this process has made it just now
    with ExitStack() as stack:

        def begin() -> Path | None:
            stack.enter_context(run.writing(resume=resume))
            if run.exists():
                _refuse_changes(run, identity)
            else:
                splits = {"train": job.train, "dev": job.dev}
                info = describe(
                    about=job.about, facts=identity, model=job.model, splits=splits, accelerator=accelerator
                )
                run.create(recipe=job.recipe, info=info, codec=codec.to_json())
                fresh.append(run)
            return None if run.finished() else checkpoints.newest(run)

        newest = distributed.on_main(accelerator, begin)
        if run.finished() is None:
            display = stack.enter_context(Display(quiet or not accelerator.is_main_process))
            trainer: Trainer | None = None
            try:
                trainer = Trainer(job, run, accelerator, encoded, lengths, display)
                stack.callback(trainer.close)
                _start(trainer, job, newest)
                trainer.run()
            except InputError:
                if fresh and (trainer is None or trainer.state.step == 0):
                    if trainer is not None:
                        trainer.close()
                    run.discard()  # so that the corrected command finds an empty folder
                raise
        path = run.best_checkpoint()
        fill_model(job.model, checkpoints.read_model(path), str(path))
        job.model.eval()
        return Finished(**run.finished() or {}, best=run.best())


def _check(job: Job) -> None:
    for name, examples in (("training", job.train), ("development", job.dev)):
        if not examples:
            raise InputError(f"there are no {name} examples")
    if job.seed < 0:
        raise InputError(f"seed must be at least 0, not {job.seed}")


def _refuse_changes(run: RunFolder, identity: dict[str, Any]) -> None:
    changes = differences(run.info().get("facts", {}), identity)
    if changes:
        raise InputError(f"{run.path}: can't be resumed with other settings: {'; '.join(changes)}")


def _start(trainer: Trainer, job: Job, newest: Path | None) -> None:
    """Continue from a checkpoint, or else begin, with the weights of another run if so asked."""
    if newest is not None:
        trainer.restore(newest)
        return
    if job.options.warm_start is not None:
        path = RunFolder(job.options.warm_start).best_checkpoint()
        fill_model(job.model, checkpoints.read_model(path), str(path))
    elif getattr(job.objective, "refines", False):
        trainer.display.say(
            f"{type(job.objective).__name__} refines trained models: unless this one is, give a training.warm_start"
        )
    metric = job.fitted.task.metrics()[0]
    doubt = metric.doubts([example.answers for example in job.dev]) if isinstance(metric, SupportsDoubts) else None
    if doubt is not None:
        trainer.display.say(f"{doubt}: think of another first measure (task.measures, where the task has them)")
    if trainer.total <= job.options.warmup:
        trainer.display.say(
            f"all {trainer.total} updates lie within the learning rate's warmup of {job.options.warmup}: "
            "take a smaller training.batch_tokens, more training.epochs or a shorter training.warmup"
        )
    trainer.start()
