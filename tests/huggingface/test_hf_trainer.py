"""``UnforcedTrainer``: what it learns, and that everything else is as in ``Trainer``."""

from pathlib import Path
from typing import Any

import pytest
import torch
from hf_cases import fast
from torch import Tensor
from trainer_cases import (
    BOS,
    EOS,
    MASK,
    MODELS,
    PAD,
    arguments,
    bert,
    collate,
    copies,
    gpt2,
    losses,
    objective,
    t5,
    tf,
    trainer,
    weights,
)

import unforced
from unforced.errors import InputError
from unforced.huggingface.batches import make_batch, with_content_ids
from unforced.ops import random_streams
from unforced.types import Batch, Loss, Progress

SGD: dict[str, Any] = {"optim": "sgd", "learning_rate": 0.05}


class CountExamples:
    """Cross-entropy divided by the number of examples; records the progress and a random draw of each example."""

    def __init__(self) -> None:
        self.seen: list[tuple[Progress, list[int], list[float]]] = []

    def __call__(self, model: Any, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        loss = unforced.objective("cross_entropy")(model, batch, progress=progress, rng=rng)
        assert batch.ids is not None
        draws = random_streams.uniform(random_streams.keys(batch, rng), 0)
        self.seen.append((progress, batch.ids.tolist(), draws.tolist()))
        return loss._replace(count=torch.tensor(float(len(batch))))


# ---- the same as Trainer ----


@pytest.mark.parametrize("case", fast([("t5", 0.0), ("t5", 0.1), ("gpt2", 0.0)], ("t5", 0.1)))
def test_cross_entropy_has_the_losses_of_trainer(tmp_path: Path, case: tuple[str, float]) -> None:
    """Dropout is the same too, if the model runs over the same positions; prompts are read separately."""
    kind, dropout = case
    found = []
    for how in (None, "cross_entropy"):
        run = trainer(kind, how, tmp_path, model=MODELS[kind](dropout), max_steps=4)
        run.train()
        found.append((losses(run), [entry["grad_norm"] for entry in run.state.log_history if "grad_norm" in entry]))
    assert len(found[0][0]) == 4
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-4)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-3)


def unwrappable() -> Any:
    """A model whose decoder takes no embeddings."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "dim_head": 8, "dim_ff": 8}
    return tf.CpmAntForCausalLM(
        tf.CpmAntConfig(vocab_size=64, prompt_types=33, prompt_length=2, segment_types=33, **sizes)
    )


HIDDEN = {"input_ids": [BOS, MASK, 5, EOS], "labels": [-100, 7, -100, -100]}
GAP = {"input_ids": [5, 6, EOS], "labels": [5, -100, EOS]}
LONG = {"input_ids": [BOS, *range(4, 12), EOS], "labels": [BOS, *range(4, 12), EOS]}
OTHER = {"input_ids": [BOS, 5, 6, EOS], "labels": [-100, 5, 7, EOS]}


@pytest.mark.parametrize(
    ("model", "item"),
    [(unwrappable, LONG), (bert, HIDDEN), (t5, GAP), (gpt2, OTHER)],
    ids=["no-embeddings", "masked", "gap-in-labels", "labels-not-inputs"],
)
def test_what_cannot_be_wrapped_has_the_losses_of_trainer(tmp_path: Path, model: Any, item: dict[str, Any]) -> None:
    """Without an objective it is cross-entropy; other objectives say what is missing."""
    found = []
    for cls in (tf.Trainer, unforced.UnforcedTrainer):
        run = cls(model=model(), args=arguments(tmp_path), train_dataset=[item] * 24, data_collator=collate)
        run.remove_callback(tf.trainer_callback.PrinterCallback)
        run.train()
        found.append(losses(run))
    assert found[1] == pytest.approx(found[0], rel=1e-5)
    with pytest.raises(InputError):
        trainer("gpt2", "scheduled_sampling", tmp_path, model=model(), data=[item] * 24).train()


def test_a_micro_batch_without_labels_adds_nothing(tmp_path: Path) -> None:
    """As when a collator has masked no token of it: the mean of no losses would be NaN."""
    empty = {**HIDDEN, "labels": [-100] * 4}
    options: dict[str, Any] = {"max_steps": 1, "per_device_train_batch_size": 1, **SGD}
    runs = [
        trainer("bert", "cross_entropy", tmp_path, data=data, gradient_accumulation_steps=len(data), **options)
        for data in ([HIDDEN], [HIDDEN, empty])
    ]
    for run in runs:
        run.train()
    assert losses(runs[1]) == pytest.approx(losses(runs[0]))
    for key, value in runs[0].model.state_dict().items():
        torch.testing.assert_close(runs[1].model.state_dict()[key], value)


def test_objectives_by_name_class_and_table(tmp_path: Path) -> None:
    kind = unforced.objectives.SoftBeam
    given = [kind(beam=2), kind, "soft_beam", {"name": "soft_beam", "beam": 2}]
    assert [trainer("t5", how, tmp_path).objective for how in given] == [kind(beam=2), kind(), kind(), kind(beam=2)]


class Run:
    """A run with dropout and two micro-batches an update, that saves and evaluates in the middle."""

    def __init__(self, folder: Path, kind: str, name: str) -> None:
        self.folder, self.kind, self.name = folder, kind, name
        self.predicted: list[Any] = []
        self.steps: list[int] = []
        self.evaluation = copies(kind, 6, seed=3)
        self.model, self.trainer = self.build(folder)
        self.names, self.class_ = set(self.model.state_dict()), type(self.model)
        self.trainer.train()

    def build(self, folder: Path) -> tuple[Any, Any]:
        model = MODELS[self.kind](0.1)
        built = unforced.UnforcedSeq2SeqTrainer(
            objective=objective(self.name),
            model=model,
            args=arguments(
                folder, seq2seq=True, max_steps=3, per_device_train_batch_size=4, gradient_accumulation_steps=2,
                save_strategy="steps", save_steps=2, eval_strategy="steps", eval_steps=2, lr_scheduler_type="linear",
            ),
            train_dataset=copies(self.kind, 24),
            eval_dataset=self.evaluation,
            data_collator=collate,
            compute_metrics=lambda found: self.predicted.append(found) or {"rows": len(found.label_ids)},
        )  # fmt: skip
        built.remove_callback(tf.trainer_callback.PrinterCallback)
        run = self

        class Note(tf.TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                run.steps.append(state.global_step)

        built.add_callback(Note())
        return model, built

    def check_resume(self, folder: Path) -> None:
        _, again = self.build(folder)
        again.train(resume_from_checkpoint=str(self.folder / "checkpoint-2"))
        assert again.state.global_step == 3
        assert losses(again) == losses(self.trainer)
        for key, value in self.model.state_dict().items():
            assert torch.equal(again.model.state_dict()[key], value), key


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return Run(tmp_path_factory.mktemp("run"), "t5", "scheduled_sampling")


def test_a_resumed_run_ends_with_the_same_bits(run: Run, tmp_path: Path) -> None:
    run.check_resume(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", [("gpt2", "cross_entropy"), ("gpt2", "sequence_smoothing"), ("t5", "minimum_risk")])
def test_other_resumed_runs_end_with_the_same_bits(tmp_path: Path, case: tuple[str, str]) -> None:
    Run(tmp_path / "first", *case).check_resume(tmp_path / "again")


def test_the_plain_model_is_saved(run: Run, tmp_path: Path) -> None:
    assert type(run.model) is run.class_
    assert set(run.model.state_dict()) == run.names
    run.trainer.save_model(str(tmp_path))
    loaded = tf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path, local_files_only=True)
    for key, value in loaded.state_dict().items():
        assert torch.equal(value, run.model.state_dict()[key])
    middle = tf.AutoModelForSeq2SeqLM.from_pretrained(run.folder / "checkpoint-2", local_files_only=True)
    assert middle.config.architectures == ["T5ForConditionalGeneration"]
    assert set(middle.state_dict()) == run.names


def test_evaluation_uses_the_plain_model(run: Run, tmp_path: Path) -> None:
    inside = next(entry for entry in run.trainer.state.log_history if "eval_loss" in entry)
    assert inside["eval_rows"] == len(run.evaluation)
    middle = tf.AutoModelForSeq2SeqLM.from_pretrained(run.folder / "checkpoint-2", local_files_only=True)
    for model, expected in ((middle, inside["eval_loss"]), (run.model, run.trainer.evaluate()["eval_loss"])):
        stock = tf.Trainer(model=model, args=arguments(tmp_path), eval_dataset=run.evaluation, data_collator=collate)
        assert stock.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-6)


def test_callbacks_and_logged_metrics(run: Run) -> None:
    assert run.steps[:3] == [1, 2, 3]
    entries = [entry for entry in run.trainer.state.log_history if "loss" in entry]
    assert len(entries) == 3
    assert all({"nll", "accuracy", "fed", "grad_norm", "learning_rate"} <= set(entry) for entry in entries)
    assert all(0 < entry["fed"] < 1 for entry in entries)
    assert entries[0]["nll"] == pytest.approx(entries[0]["loss"], rel=0.1)


def test_prediction_with_generate(tmp_path: Path) -> None:
    made = trainer(
        "t5", "cross_entropy", tmp_path, cls=unforced.UnforcedSeq2SeqTrainer, predict_with_generate=True,
        generation_max_length=6,
    )  # fmt: skip
    found = made.predict(copies("t5", 5))
    assert found.predictions.shape == (5, 20)  # padded to the length of the model's own settings
    assert (found.predictions[:, 6:] == PAD).all()
    assert found.metrics["test_loss"] > 0


BF16 = [(kind, name) for kind in MODELS for name in ("cross_entropy", "parallel_scheduled_sampling", "soft_beam")]


@pytest.mark.parametrize("case", fast(BF16, ("gpt2", "soft_beam")))
def test_bf16(tmp_path: Path, case: tuple[str, str]) -> None:
    made = trainer(case[0], objective(case[1]), tmp_path, bf16=True)
    before = weights(made.model)
    made.train()
    assert all(torch.isfinite(torch.tensor(loss)) for loss in losses(made))
    assert all(p.dtype == torch.float32 for p in made.model.parameters())
    assert all(not torch.equal(p, before[n]) for n, p in made.model.named_parameters())


def test_model_init_and_a_second_training(tmp_path: Path) -> None:
    made = unforced.UnforcedTrainer(
        objective="label_smoothing",
        model_init=lambda: t5(),
        args=arguments(tmp_path, max_steps=2),
        train_dataset=copies("t5", 24),
        data_collator=collate,
    )
    ends = []
    for _ in range(2):
        made.train()
        ends.append(weights(made.model))
    for name, value in ends[0].items():
        assert torch.equal(ends[1][name], value)


# ---- micro-batches and counts ----

MICRO = [("t5", "cross_entropy"), ("t5", "scheduled_sampling"), ("gpt2", "parallel_scheduled_sampling")]
MICRO += [("gpt2", "sequence_smoothing"), ("t5", "soft_beam"), ("gpt2", "minimum_risk"), ("bert", "masked_lm")]


@pytest.mark.parametrize(
    "case", fast(MICRO, ("t5", "scheduled_sampling"), ("gpt2", "minimum_risk"), ("bert", "masked_lm"))
)
def test_micro_batches_change_nothing(tmp_path: Path, case: tuple[str, str]) -> None:
    """1 x 8 and 4 x 2 rows an update have the same losses and, up to rounding, the same weights."""
    kind, name = case
    found = []
    for size, steps in ((8, 1), (2, 4)):
        made = trainer(
            kind, objective(name), tmp_path, max_steps=2, model={**MODELS, "bert": bert}[kind]().double(), **SGD,
            per_device_train_batch_size=size, gradient_accumulation_steps=steps,
        )  # fmt: skip
        made.train()
        found.append((losses(made), made.model.state_dict()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    for name, value in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], value, rtol=1e-4, atol=1e-6)


def test_the_objectives_own_count_divides(tmp_path: Path) -> None:
    """The gradient is that of total / count, although the count is known only after the last micro-batch."""
    data = copies("t5", 6, least=2)
    made = trainer(
        "t5", CountExamples(), tmp_path, model=t5().double(), data=data, max_steps=1, optim="sgd", learning_rate=1.0,
        max_grad_norm=0.0, per_device_train_batch_size=2, gradient_accumulation_steps=3,
    )  # fmt: skip
    before = weights(made.model)
    model = unforced.wrap(t5().double())
    data_batch = make_batch(model, **collate(data))
    loss = unforced.objective("cross_entropy")(model, data_batch, progress=Progress(), rng=torch.Generator())
    (loss.total / 6).backward()
    made.train()
    assert losses(made) == pytest.approx([float(loss.total.detach()) / 6], rel=1e-5)
    for name, parameter in model.model.named_parameters():
        moved = before[name] - made.model.get_parameter(name)
        torch.testing.assert_close(moved, parameter.grad, rtol=1e-4, atol=1e-5)


def test_progress_and_draws(tmp_path: Path) -> None:
    """Progress is that of the trainer. An example's draws differ between updates and not between micro-batches."""
    runs = []
    for size, steps in ((6, 1), (2, 3)):
        how = CountExamples()
        made = trainer(
            "t5", how, tmp_path, data=copies("t5", 6, least=3, most=3), max_steps=-1, num_train_epochs=2,
            per_device_train_batch_size=size, gradient_accumulation_steps=steps,
        )  # fmt: skip
        made.train()
        runs.append(how.seen)
    assert [seen[0] for seen in runs[0]] == [Progress(0, 0.0, 2), Progress(1, 1.0, 2)]
    assert [seen[0].step for seen in runs[1]] == [0, 0, 0, 1, 1, 1]
    draws = [
        {(progress.step, id): draw for progress, ids, drawn in run for id, draw in zip(ids, drawn)} for run in runs
    ]
    assert draws[0] == draws[1]
    assert len(set(draws[0].values())) == len(draws[0]) == 12


def test_ids_depend_on_the_example_only() -> None:
    for kind in MODELS:
        model, data = unforced.wrap(MODELS[kind]()), copies(kind, 6, seed=2)
        ids = with_content_ids(make_batch(model, **collate(data))).ids
        assert ids is not None
        assert len(set(ids.tolist())) == len({str(item) for item in data})
        alone: Any = [with_content_ids(make_batch(model, **collate([item]))).ids for item in data]
        assert torch.equal(torch.cat(alone), ids)
        back: Any = with_content_ids(make_batch(model, **collate(data[::-1]))).ids
        assert torch.equal(back.flip(0), ids)


# ---- data ----


def test_prompts_are_neither_replaced_nor_scored(tmp_path: Path) -> None:
    """Even if every fed token is the model's own, the prompt is fed as given."""
    made = trainer("gpt2", unforced.objective("scheduled_sampling", mixing=0.0), tmp_path, max_steps=1)
    fed: list[Tensor] = []
    embed = made.wrapped.embed
    made.wrapped.embed = lambda ids: fed.append(ids) or embed(ids)
    made.train()
    given = make_batch(made.wrapped, **collate(made.train_dataset))
    assert given.source is not None
    prompts = {tuple(row[row != PAD].tolist()) for row in given.source}
    assert {tuple(row[row != PAD].tolist()) for row in fed[0]} <= prompts
    assert all(bool((ids[:, 0] == MASK).all()) for ids in fed[1:] if ids.shape[1] > 1)


def test_objectives_are_fitted_to_the_vocabulary_and_the_labels(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Fitted(CountExamples):
        def fitted(self, codec: Any, examples: Any) -> Any:
            seen.extend([codec.sizes.target, codec.token_names(), len(examples), examples[0].target])
            seen.append([example.target for example in examples][:2])
            return self

    made = trainer("gpt2", Fitted(), tmp_path)
    labels = [[id for id in item["labels"] if id != -100] for item in made.train_dataset[:2]]
    assert seen[0] == len(seen[1]) == made.model.config.vocab_size
    assert seen[2:] == [24, labels[0], labels]


@pytest.mark.slow
def test_iterable_data_sets(tmp_path: Path) -> None:
    """Objectives that count n-grams in the examples need not know how many there are."""

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(copies("t5", 8))

    def build(**fields: Any) -> Any:
        return unforced.UnforcedTrainer(
            objective=unforced.objective("sequence_smoothing", **fields),
            model=t5(),
            args=arguments(tmp_path, max_steps=2),
            train_dataset=Stream(),
            data_collator=collate,
        )

    counted = build(reward="cider", samples=3, proposal_tau=0.5)
    counted.train()
    assert len(losses(counted)) == 2
    with pytest.raises(InputError, match="needs training examples with references"):
        build(vocabulary="references")


def test_costs_look_up_tokens_in_the_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    names = ["<pad>", "<s>", "</s>", "<mask>", *(f"w{n}" for n in range(12))]
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({n: i for i, n in enumerate(names)}, "<mask>"))
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="</s>")
    cost = {"name": "weighted_hamming", "token": "w3", "weight": 2.0}
    how = unforced.objective("soft_beam", beam=2, alpha=4.0, cost=cost)
    given: dict[str, Any] = {"args": arguments(tmp_path), "train_dataset": copies("t5", 8), "data_collator": collate}
    made = unforced.UnforcedTrainer(objective=how, model=t5(), processing_class=tokenizer, **given)
    assert made.wrapped.vocabulary.token_names()[7] == "w3"
    with pytest.raises(InputError, match="is not among the tokens"):
        unforced.UnforcedTrainer(objective=how, model=t5(), **given)


# ---- errors ----


@pytest.mark.parametrize(
    ("how", "options", "message"),
    [
        ("cross_entropy", {"label_smoothing_factor": 0.1}, 'set objective="label_smoothing"'),
        ("cross_entrop", {}, 'did you mean "cross_entropy"'),
        (unforced.Progress, {}, "must be a name or an object"),
        ("soft_beam", {"gradient_checkpointing": True}, "goes step by step and needs a cache"),
        ("scheduled_sampling", {"gradient_checkpointing": True}, "goes step by step and needs a cache"),
    ],
)
def test_refused_arguments(tmp_path: Path, how: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        trainer("gpt2", how, tmp_path, **options)


def test_other_refused_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {"objective": "label_smoothing", "args": arguments(tmp_path)}
    with pytest.raises(InputError, match="compute_loss_func"):
        unforced.UnforcedTrainer(model=t5(), compute_loss_func=lambda *_, **__: None, **given)
    model = gpt2()
    model.config.output_router_logits = True
    with pytest.raises(InputError, match="the routers' loss that output_router_logits adds"):
        unforced.UnforcedTrainer(model=model, **given)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="started 2 processes"):
        unforced.UnforcedTrainer(model=gpt2(), **given)


def test_refused_batches(tmp_path: Path) -> None:
    made = trainer("t5", "cross_entropy", tmp_path)
    inputs = collate(copies("t5", 2))
    with pytest.raises(InputError, match="no labels"):
        made.collated_batch({"input_ids": inputs["input_ids"]})
    with pytest.raises(InputError, match="no input_ids; it has labels"):
        made.collated_batch({"labels": inputs["labels"]})
    with pytest.raises(InputError, match="CrossEntropy does not use position_ids of the batch"):
        made.collated_batch({**inputs, "position_ids": torch.zeros(2, 3)})


def test_gradient_checkpointing(tmp_path: Path) -> None:
    """Objectives that feed everything at once, or step in evaluation mode, work with gradient checkpointing."""
    how = unforced.objective("scheduled_sampling", feed="argmax", mixing=0.5, dropout=False)
    plain, saving = (trainer("gpt2", how, tmp_path, gradient_checkpointing=on, max_steps=2) for on in (False, True))
    plain.train()
    saving.train()
    assert losses(saving) == pytest.approx(losses(plain), rel=1e-4)


# ---- what a training learns from ----


def test_trainings_in_which_nothing_is_scored_are_refused(tmp_path: Path) -> None:
    only_special = [{"input_ids": [BOS, EOS]}] * 8  # a tokenizer without words reads every text like this
    with pytest.raises(InputError, match="nothing was scored in 2 updates"):
        trainer("bert", objective("masked_lm"), tmp_path, data=only_special, max_steps=2).train()


def test_trainings_that_hardly_feed_own_tokens_warn_once(tmp_path: Path) -> None:
    slow = unforced.objective("scheduled_sampling", mixing={"name": "inverse_sigmoid", "k": 10, "warmup": 10})
    with pytest.warns(UserWarning, match=r"only 0\.0% of the inputs were the model's own tokens") as warned:
        trainer("t5", slow, tmp_path, max_steps=20).train()
    assert sum("own tokens" in str(each.message) for each in warned) == 1
