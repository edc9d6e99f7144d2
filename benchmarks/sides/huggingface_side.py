"""Train with Hugging Face's ``Seq2SeqTrainer`` on the shared corpus, with a model of the same shape.

The Transformer is Pegasus with our sizes: layer normalisation before each block, sinusoidal positions, one embedding
for source, target and output. ``transformers`` has no LSTM of this kind, so the trainer gets a plain module. Its
settings are the fastest here: fused AdamW, batches grouped by length, a collator that only pads, and no worker
processes (the data are in memory). Logging, evaluation and saving are off.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import transformers
from pace import Pace, options
from plain_lstm import PlainLstm
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

import corpus
from models import huggingface_transformer

IGNORED = -100  # the label that Hugging Face's losses ignore


class Pairs(Dataset):
    """The examples as tensors, converted once."""

    def __init__(self, pairs: list[tuple[list[int], list[int]]]) -> None:
        self.items = [{"input_ids": torch.tensor(s), "labels": torch.tensor(t)} for s, t in pairs]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.items[index]


def collate(items: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    source = pad_sequence([item["input_ids"] for item in items], batch_first=True, padding_value=corpus.PAD)
    labels = pad_sequence([item["labels"] for item in items], batch_first=True, padding_value=IGNORED)
    return {"input_ids": source, "attention_mask": (source != corpus.PAD).long(), "labels": labels}


class Paced(Seq2SeqTrainer):
    """The trainer, which counts each update."""

    pace: Pace

    def training_step(self, model, inputs, num_items_in_batch=None):
        self.pace.begin_update(int((inputs["labels"] != IGNORED).sum()))
        return super().training_step(model, inputs, num_items_in_batch)


def build(name: str, shape: dict, vocabulary: int) -> nn.Module:
    if name == "transformer":
        return huggingface_transformer(shape, vocabulary)
    return PlainLstm(shape, vocabulary, pad=corpus.PAD, bos=corpus.BOS, ignored=IGNORED)


def main() -> None:
    chosen = options()
    pace = Pace()
    torch.set_num_threads(chosen["threads"])
    torch.manual_seed(1)
    data = corpus.Corpus(**chosen["corpus"])
    model = build(chosen["model"], chosen["shape"], data.vocabulary)
    arguments = Seq2SeqTrainingArguments(
        output_dir=chosen["folder"],
        use_cpu=True,
        max_steps=10**6,
        per_device_train_batch_size=chosen["batch"],
        train_sampling_strategy="group_by_length",
        learning_rate=chosen["learning_rate"],
        lr_scheduler_type="inverse_sqrt",
        warmup_steps=400,
        max_grad_norm=1.0,
        optim="adamw_torch_fused",
        logging_strategy="no",
        save_strategy="no",
        eval_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_nan_inf_filter=False,
        dataloader_num_workers=0,
        remove_unused_columns=False,
        seed=1,
    )
    trainer = Paced(model=model, args=arguments, train_dataset=Pairs(data.ids("train")), data_collator=collate)
    trainer.pace = pace
    pace.ready(
        versions={"transformers": transformers.__version__, "torch": torch.__version__},
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        threads=torch.get_num_threads(),
    )
    trainer.train()


main()
