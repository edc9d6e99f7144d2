"""A run in progress: updates, log lines, validation by decoding, early stopping, checkpoints."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import Accelerator

from unforced.objectives.protocol import fitted
from unforced.training import checkpoints
from unforced.training.batching import epoch_batches, planned_updates
from unforced.training.checkpoints import Checkpoint, step_name
from unforced.training.display import Display
from unforced.training.distributed import on_main
from unforced.training.evaluate import evaluate, spread
from unforced.training.job import Job, State
from unforced.training.logs import Logs
from unforced.training.meter import Meter, means
from unforced.training.randomness import random_state, restore_random_state, seed_everything
from unforced.training.rates import learning_rate
from unforced.training.records import RunFolder
from unforced.training.signals import Interrupted, Signals, catch_signals
from unforced.training.update import Updater
from unforced.training.weights import fill_model, fill_optimizer, model_tensors, optimizer_tensors
from unforced.types import Encoded, Progress


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
        limits = {
            "batch_tokens": job.options.batch_tokens,
            "max_rows": job.options.max_rows,
            "seed": job.seed,
        }
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
        self.display.say(
            f"step {state.step}{learnt}, development: {shown}{' (best so far)' if better else ''}"
        )
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
                model_tensors(self.job.model),
                {},
                {},
                {"step": self.state.step, "of": [path.name for path in paths]},
            )
            checkpoints.publish(self.folder.path / "checkpoints", name, checkpoint)
            self.folder.write_best(self.state.best)

        on_main(self.accelerator, write)
