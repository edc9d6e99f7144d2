"""``UnforcedTrainer``: every objective trains, and everything else is as users of ``Trainer`` know it."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_cases import fast
from torch import Tensor
from trainer_cases import (
    EOS,
    MASK,
    MODELS,
    MORE,
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
from unforced.huggingface.codec import LabelledExamples
from unforced.types import Batch, Loss, Progress

KINDS = pytest.mark.parametrize("kind", list(MODELS))


class Counts:
    """Cross-entropy that counts examples and draws a number for each: what tests want to see of an objective."""

    def __init__(self) -> None:
        self.seen: list[tuple[Progress, list[int], list[float]]] = []

    def __call__(self, model: Any, batch: Batch, *, progress: Progress, rng: torch.Generator) -> Loss:
        loss = unforced.objective("cross_entropy")(model, batch, progress=progress, rng=rng)
        assert batch.ids is not None
        draws = unforced.ops.random_streams.uniform(unforced.ops.random_streams.keys(batch, rng), 0)
        self.seen.append((progress, batch.ids.tolist(), draws.tolist()))
        return loss._replace(count=torch.tensor(float(len(batch))))


# ---- other forms of the objectives that test_hf_kinds.py tries ----


@KINDS
@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_other_forms_train(tmp_path: Path, kind: str, name: str) -> None:
    made = trainer(kind, unforced.objective(name, **MORE[name]), tmp_path)
    made.train()
    assert len(losses(made)) == 3


@pytest.mark.parametrize("steps", [2])
def test_what_a_masked_objective_draws_does_not_depend_on_micro_batches(tmp_path: Path, steps: int) -> None:
    """It divides by the tokens that it hid, which nobody knows before."""
    made = trainer(
        "bert", objective("masked_lm"), tmp_path, model=bert().double(), optim="sgd", learning_rate=0.1,
        per_device_train_batch_size=8 // steps, gradient_accumulation_steps=steps,
    )  # fmt: skip
    made.train()
    whole = trainer("bert", objective("masked_lm"), tmp_path, model=bert().double(), optim="sgd", learning_rate=0.1)
    whole.train()
    assert losses(made) == pytest.approx(losses(whole), rel=1e-5)
    for name, value in whole.model.state_dict().items():
        torch.testing.assert_close(made.model.state_dict()[name], value, rtol=1e-6, atol=1e-8)


# ---- like Trainer ----


@pytest.mark.parametrize("case", fast([("t5", 0.0), ("t5", 0.1), ("gpt2", 0.0)], ("t5", 0.1)))
def test_cross_entropy_gives_the_losses_of_trainer(tmp_path: Path, case: tuple[str, float]) -> None:
    """With dropout too, where the model runs over the same positions: prompts are read apart from what follows them."""
    kind, dropout = case
    found = []
    for how in (None, "cross_entropy"):
        made = trainer(kind, how, tmp_path, model=MODELS[kind](dropout), max_steps=6)
        made.train()
        found.append((losses(made), [e["grad_norm"] for e in made.state.log_history if "grad_norm" in e]))
    assert len(found[0][0]) == 6
    assert found[1][0] == pytest.approx(found[0][0], rel=1e-4)
    assert found[1][1] == pytest.approx(found[0][1], rel=1e-3)


@pytest.mark.slow
def test_accumulated_cross_entropy_gives_the_losses_of_trainer(tmp_path: Path) -> None:
    """With a model that divides by the labels of all micro-batches itself, as T5 doesn't."""
    found = []
    for how in (None, "cross_entropy"):
        made = trainer("gpt2", how, tmp_path, max_steps=4, per_device_train_batch_size=3, gradient_accumulation_steps=2)
        made.train()
        found.append(losses(made))
    assert found[1] == pytest.approx(found[0], rel=1e-4)


MICRO = [("t5", "cross_entropy"), ("t5", "scheduled_sampling"), ("gpt2", "parallel_scheduled_sampling")]
MICRO += [("gpt2", "sequence_smoothing"), ("t5", "soft_beam"), ("gpt2", "minimum_risk")]


@pytest.mark.parametrize("case", fast(MICRO, ("t5", "scheduled_sampling"), ("gpt2", "minimum_risk")))
def test_micro_batches_change_nothing(tmp_path: Path, case: tuple[str, str]) -> None:
    """1 × 8 and 4 × 2 rows an update: the same losses and, but for rounding, the same weights."""
    kind, name = case
    found = []
    for size, steps in ((8, 1), (2, 4)):
        made = trainer(
            kind, objective(name), tmp_path, max_steps=2, model=MODELS[kind]().double(), optim="sgd", learning_rate=0.05,
            per_device_train_batch_size=size, gradient_accumulation_steps=steps,
        )  # fmt: skip
        made.train()
        found.append((losses(made), made.model.state_dict()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-4)
    for name, value in found[0][1].items():
        torch.testing.assert_close(found[1][1][name], value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("steps", [3])
def test_the_objectives_own_count_divides(tmp_path: Path, steps: int) -> None:
    """What is learnt is total / count, though counts are known only when the last micro-batch has been seen."""
    data = copies("t5", 6, least=2)
    made = trainer(
        "t5", Counts(), tmp_path, model=t5().double(), data=data, max_steps=1, optim="sgd", learning_rate=1.0,
        max_grad_norm=0.0, per_device_train_batch_size=6 // steps, gradient_accumulation_steps=steps,
    )  # fmt: skip
    before = weights(made.model)
    model = unforced.wrap(t5().double())
    loss = unforced.objective("cross_entropy")(
        model, make_batch(model, **collate(data)), progress=Progress(), rng=torch.Generator()
    )
    (loss.total / 6).backward()
    made.train()
    assert losses(made) == pytest.approx([float(loss.total.detach()) / 6], rel=1e-5)
    for name, parameter in model.model.named_parameters():
        moved = before[name] - made.model.get_parameter(name)
        torch.testing.assert_close(moved, parameter.grad, rtol=1e-4, atol=1e-5)


RESUMED = [
    ("gpt2", "cross_entropy"),
    ("t5", "scheduled_sampling"),
    ("gpt2", "sequence_smoothing"),
    ("t5", "minimum_risk"),
]


@pytest.mark.parametrize("case", fast(RESUMED, ("t5", "scheduled_sampling")))
def test_a_resumed_run_ends_with_the_same_bits(tmp_path: Path, case: tuple[str, str]) -> None:
    kind, name = case
    options: dict[str, Any] = {
        "max_steps": 5, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2, "save_strategy": "steps",
        "save_steps": 4, "lr_scheduler_type": "linear", "save_total_limit": None,
    }  # fmt: skip
    how = objective(name)
    whole = trainer(kind, how, tmp_path / "whole", model=MODELS[kind](0.1), **options)
    whole.train()
    again = trainer(kind, how, tmp_path / "again", model=MODELS[kind](0.1), **options)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert again.state.global_step == 5
    assert losses(again) == losses(whole)
    for key, value in whole.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[key], value), key


def test_progress_and_draws(tmp_path: Path) -> None:
    """Progress is the trainer's; an example's draws differ between updates and not between runs."""
    runs = []
    for size, steps in ((6, 1), (2, 3)):
        how = Counts()
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
    assert len(draws[0]) == 12
    assert len(set(draws[0].values())) == 12


def test_what_is_saved_is_the_plain_model(tmp_path: Path) -> None:
    model = t5()
    names, kind = set(model.state_dict()), type(model)
    made = trainer("t5", "scheduled_sampling", tmp_path, model=model, save_strategy="steps", save_steps=2, max_steps=3)
    made.train()
    assert type(model) is kind
    assert set(model.state_dict()) == names
    made.save_model(str(tmp_path / "end"))
    loaded = tf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "end", local_files_only=True)
    for key, value in loaded.state_dict().items():
        torch.testing.assert_close(value, model.state_dict()[key], rtol=0, atol=0)
    middle = tf.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "checkpoint-2", local_files_only=True)
    assert middle.config.architectures == ["T5ForConditionalGeneration"]
    assert set(middle.state_dict()) == names


def test_evaluation_is_the_plain_models(tmp_path: Path) -> None:
    """The same loss and logits as stock evaluation, within training as well, whatever the objective."""
    seen: list[Any] = []
    data = copies("t5", 12, seed=3)
    made = unforced.UnforcedTrainer(
        objective="scheduled_sampling",
        model=t5(),
        args=arguments(tmp_path, eval_strategy="steps", eval_steps=2, max_steps=2),
        train_dataset=copies("t5", 24),
        eval_dataset=data,
        data_collator=collate,
        compute_metrics=lambda found: seen.append(found) or {"rows": len(found.label_ids)},
    )
    made.train()
    inside = next(entry for entry in made.state.log_history if "eval_loss" in entry)
    assert inside["eval_rows"] == 12
    stock = tf.Trainer(model=made.model, args=made.args, eval_dataset=data, data_collator=collate)
    assert made.evaluate()["eval_loss"] == pytest.approx(inside["eval_loss"], rel=1e-6)
    assert stock.evaluate()["eval_loss"] == pytest.approx(inside["eval_loss"], rel=1e-6)


def test_the_seq2seq_trainer_generates(tmp_path: Path) -> None:
    made = trainer(
        "t5", "parallel_scheduled_sampling", tmp_path, cls=unforced.UnforcedSeq2SeqTrainer,
        predict_with_generate=True, generation_max_length=6,
    )  # fmt: skip
    made.train()
    found = made.predict(copies("t5", 5))
    assert found.predictions.shape == (5, 20)  # padded to what the model's own settings allow
    assert (found.predictions[:, 6:] == PAD).all()
    assert found.metrics["test_loss"] > 0


def test_callbacks_arguments_and_metrics(tmp_path: Path) -> None:
    steps: list[int] = []

    class Note(tf.TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            steps.append(state.global_step)

    made = trainer("gpt2", objective("scheduled_sampling"), tmp_path, logging_steps=2, max_steps=4)
    made.add_callback(Note())
    made.train()
    assert steps == [1, 2, 3, 4]
    entries = [entry for entry in made.state.log_history if "loss" in entry]
    assert len(entries) == 2
    assert all({"nll", "accuracy", "fed", "grad_norm", "learning_rate"} <= set(entry) for entry in entries)
    assert all(0 < entry["fed"] < 1 for entry in entries)
    assert entries[0]["nll"] == pytest.approx(entries[0]["loss"], rel=0.1)


BF16 = [(kind, name) for kind in MODELS for name in ("cross_entropy", "parallel_scheduled_sampling", "soft_beam")]


@pytest.mark.parametrize("case", fast(BF16, ("gpt2", "soft_beam")))
def test_bf16(tmp_path: Path, case: tuple[str, str]) -> None:
    for kind, name in [case]:
        made = trainer(kind, objective(name), tmp_path, bf16=True)
        before = weights(made.model)
        made.train()
        assert all(torch.isfinite(torch.tensor(loss)) for loss in losses(made))
        assert all(p.dtype == torch.float32 for p in made.model.parameters())
        assert all(not torch.equal(p, before[n]) for n, p in made.model.named_parameters())


def test_model_init_and_a_second_training(tmp_path: Path) -> None:
    made = unforced.UnforcedTrainer(
        objective="label_smoothing",
        model_init=lambda: t5(),
        args=arguments(tmp_path),
        train_dataset=copies("t5", 24),
        data_collator=collate,
    )
    ends = []
    for _ in range(2):
        made.train()
        ends.append(weights(made.model))
    for name, value in ends[0].items():
        assert torch.equal(ends[1][name], value)


@pytest.mark.slow
def test_a_subclass_may_still_compute_its_own_loss(tmp_path: Path) -> None:
    class Doubled(unforced.UnforcedTrainer):
        def compute_loss(self, *arguments: Any, **options: Any) -> Any:
            return 2 * super().compute_loss(*arguments, **options)

    once, twice = (
        trainer("t5", "cross_entropy", tmp_path, cls=cls, max_steps=1) for cls in (unforced.UnforcedTrainer, Doubled)
    )
    once.train()
    twice.train()
    assert losses(twice) == pytest.approx([2 * losses(once)[0]], rel=1e-5)


# ---- prompts ----


def test_prompts_are_neither_replaced_nor_scored(tmp_path: Path) -> None:
    """With every fed token the model's own, the prompt is still what was given, and its tokens add nothing."""
    made = trainer("gpt2", unforced.objective("scheduled_sampling", mixing=0.0), tmp_path, max_steps=1)
    fed: list[Tensor] = []
    embed = made.wrapped.embed
    made.wrapped.embed = lambda ids: fed.append(ids) or embed(ids)
    made.train()
    given = make_batch(made.wrapped, **collate(made.train_dataset))
    assert given.source is not None
    prompts = {tuple(row[row != PAD].tolist()) for row in given.source}
    rows = {tuple(row[row != PAD].tolist()) for row in fed[0]}
    assert rows <= prompts
    assert all(bool((ids[:, 0] == MASK).all()) for ids in fed[1:] if ids.shape[1] > 1)
    entry = next(e for e in made.state.log_history if "nll" in e)
    assert entry["nll"] > 0


# ---- what objectives learn of the data ----


def test_objectives_get_the_vocabulary_and_the_labels(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Asking(Counts):
        def fitted(self, codec: Any, examples: Any) -> Any:
            seen.extend([codec.sizes.target, codec.token_names(), len(examples), examples[0].target])
            seen.append([example.target for example in examples][:2])
            return self

    made = trainer("gpt2", Asking(), tmp_path)
    assert seen[0] == made.model.config.vocab_size
    assert len(seen[1]) == seen[0]
    assert seen[2] == 24
    assert seen[3] == [id for id in made.train_dataset[0]["labels"] if id != -100]
    assert seen[4][1] == [id for id in made.train_dataset[1]["labels"] if id != -100]
    made = trainer("gpt2", unforced.objective("token_smoothing", vectors="co-occurrence", tau=0.3), tmp_path)
    made.train()
    assert len(losses(made)) == 3


@pytest.mark.slow
def test_data_sets_that_stream(tmp_path: Path) -> None:
    """They don't know how many examples they have, and objectives that count in them need not."""

    class Stream(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return iter(copies("t5", 8))

    def made(**fields: Any) -> Any:
        return unforced.UnforcedTrainer(
            objective=unforced.objective("sequence_smoothing", **fields),
            model=t5(),
            args=arguments(tmp_path, max_steps=2),
            train_dataset=Stream(),
            data_collator=collate,
        )

    counted = made(reward="cider", samples=3, proposal_tau=0.5)
    counted.train()
    assert len(losses(counted)) == 2
    with pytest.raises(InputError, match="no training example has references"):
        made(vocabulary="references")


def test_data_sets_that_do_not_say_where_they_end() -> None:
    """A data set need have no more than a length and items."""

    class Endless(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 5

        def __getitem__(self, number: int) -> dict[str, list[int]]:
            return {"labels": [4 + number % 3, EOS]}

    found = [example.target for example in itertools.islice(LabelledExamples(Endless()), 9)]
    assert found == [[4, EOS], [5, EOS], [6, EOS], [4, EOS], [5, EOS]]


@pytest.mark.slow
def test_costs_that_name_tokens_ask_the_tokenizer(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers")
    names = ["<pad>", "<s>", "</s>", "<mask>", *(f"w{n}" for n in range(12))]
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel({n: i for i, n in enumerate(names)}, "<mask>"))
    tokenizer = tf.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="</s>")
    how = unforced.objective(
        "soft_beam", beam=2, alpha=4.0, cost={"name": "weighted_hamming", "token": "w3", "weight": 2.0}
    )
    made = unforced.UnforcedTrainer(
        objective=how,
        model=t5(),
        args=arguments(tmp_path),
        train_dataset=copies("t5", 8),
        data_collator=collate,
        processing_class=tokenizer,
    )
    assert made._fitted.cost.id == 7  # type: ignore[union-attr]
    made.train()
    with pytest.raises(InputError, match="is not among the tokens"):
        trainer("t5", how, tmp_path)


# ---- numbers of examples ----


def test_numbers_are_a_function_of_the_example_alone() -> None:
    for kind in MODELS:
        model, data = unforced.wrap(MODELS[kind]()), copies(kind, 6, seed=2)
        whole = with_content_ids(make_batch(model, **collate(data))).ids
        assert whole is not None
        assert len(set(whole.tolist())) == len({str(item) for item in data})
        alone = [with_content_ids(make_batch(model, **collate([item]))).ids for item in data]
        assert torch.equal(torch.cat(alone), whole)  # type: ignore[arg-type]
        back = with_content_ids(make_batch(model, **collate(data[::-1]))).ids
        assert torch.equal(back.flip(0), whole)  # type: ignore[union-attr]


# ---- complaints ----


def test_complaints(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='set objective="label_smoothing"'):
        trainer("t5", "cross_entropy", tmp_path, label_smoothing_factor=0.1)
    with pytest.raises(InputError, match='did you mean "cross_entropy"'):
        trainer("t5", "cross_entrop", tmp_path)
    with pytest.raises(InputError, match="must be a name or an object"):
        trainer("t5", unforced.Progress, tmp_path)
    with pytest.raises(TypeError, match="objective"):
        unforced.UnforcedTrainer(model=t5())  # type: ignore[call-arg]
    with pytest.raises(InputError, match="compute_loss_func"):
        unforced.UnforcedTrainer(
            objective="cross_entropy", model=t5(), args=arguments(tmp_path), compute_loss_func=lambda *_, **__: None
        )
    made = trainer("t5", "cross_entropy", tmp_path, data=[{"input_ids": [5, EOS]}] * 8)
    with pytest.raises(InputError, match="no labels"):
        made.train()
    assert type(made.model) is tf.T5ForConditionalGeneration


def test_what_nothing_looks_at_is_refused(tmp_path: Path) -> None:
    made = trainer("gpt2", "cross_entropy", tmp_path)
    made.data_collator = lambda items: {**collate(items), "position_ids": torch.zeros(len(items), 3).long()}
    with pytest.raises(InputError, match="objectives do not use position_ids of the batch"):
        made.train()


def test_gradient_checkpointing(tmp_path: Path) -> None:
    """Methods that feed all at once take it; those that go step by step say that they can't."""
    plain, saving = (
        trainer("gpt2", objective("parallel_scheduled_sampling"), tmp_path, gradient_checkpointing=on)
        for on in (False, True)
    )
    plain.train()
    saving.train()
    assert losses(saving) == pytest.approx(losses(plain), rel=1e-4)
    for stepwise in (objective("soft_beam"), unforced.objective("scheduled_sampling")):
        with pytest.raises(InputError, match="goes step by step and needs a cache"):
            trainer("gpt2", stepwise, tmp_path, gradient_checkpointing=True)
    asked = unforced.objective("scheduled_sampling", feed="argmax", mixing=0.5, dropout=False)  # in evaluation
    assert learns_something(trainer("gpt2", asked, tmp_path, gradient_checkpointing=True))


def learns_something(made: Any) -> bool:
    made.train()
    return len(losses(made)) == 3


def test_a_loss_of_the_models_own_is_not_dropped_in_silence(tmp_path: Path) -> None:
    model = gpt2()
    model.config.output_router_logits = True
    with pytest.raises(InputError, match="the routers' loss that output_router_logits adds"):
        trainer("gpt2", objective("cross_entropy"), tmp_path, model=model)


def test_a_launcher_whose_processes_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    args = arguments(tmp_path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="started 2 processes"):
        unforced.UnforcedTrainer(objective="cross_entropy", model=gpt2(), args=args)
