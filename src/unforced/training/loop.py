"""Train a model in a run folder, or go on where an interrupted run stopped."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from unforced.errors import InputError
from unforced.metrics.protocol import Doubting
from unforced.training import checkpoints, distributed
from unforced.training.batching import check_lengths, token_lengths
from unforced.training.display import Display
from unforced.training.identity import describe, facts
from unforced.training.job import Finished, Job
from unforced.training.records import RunFolder, differences
from unforced.training.trainer import Trainer
from unforced.training.weights import fill_model

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
    doubt = metric.doubts([example.answers for example in job.dev]) if isinstance(metric, Doubting) else None
    if doubt is not None:
        trainer.display.say(
            f"{doubt}: think of another first measure (task.measures, where the task has them)"
        )
    if trainer.total <= job.options.warmup:
        trainer.display.say(
            f"all {trainer.total} updates lie within the learning rate's warmup of {job.options.warmup}: "
            "take a smaller training.batch_tokens, more training.epochs or a shorter training.warmup"
        )
    trainer.start()
