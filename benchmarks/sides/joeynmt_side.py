"""Train with JoeyNMT on the shared corpus; runs in benchmarks/.venv-joeynmt.

``TrainManager.train_and_validate`` does everything (iterator, update, learning rate); the subclass only measures.
JoeyNMT cannot group sentences of similar length, so it pads a lot. With the option ``grouped`` it reads a file that is
already in such an order, and does not shuffle.
"""

from pathlib import Path

import torch
from joeynmt import __version__
from joeynmt.config import parse_global_args, set_validation_args
from joeynmt.prediction import prepare
from joeynmt.training import TrainManager
from pace import Pace, options

NEVER = 10**9


def transformer(shape: dict) -> dict:
    def half(layers: int) -> dict:
        return {
            "type": "transformer",
            "num_layers": layers,
            "num_heads": shape["heads"],
            "hidden_size": shape["width"],
            "ff_size": shape["feedforward"],
            "dropout": shape["dropout"],
            "layer_norm": "pre",
            "activation": "relu",
            "embeddings": {"embedding_dim": shape["width"], "scale": True, "dropout": shape["dropout"]},
        }

    return {
        "initializer": "xavier_uniform",
        "embed_initializer": "xavier_uniform",
        "tied_embeddings": True,
        "tied_softmax": True,
        "encoder": half(shape["encoder_layers"]),
        "decoder": half(shape["decoder_layers"]),
    }


def lstm(shape: dict) -> dict:
    embeddings = {"embedding_dim": shape["width"], "scale": False, "dropout": shape["dropout"]}
    common = {
        "type": "recurrent",
        "rnn_type": "lstm",
        "num_layers": 1,
        "dropout": shape["dropout"],
        "embeddings": embeddings,
    }
    return {
        "initializer": "xavier_uniform",
        "embed_initializer": "xavier_uniform",
        "tied_embeddings": False,
        "tied_softmax": False,
        "encoder": {**common, "hidden_size": shape["encoder_direction"], "bidirectional": True},
        "decoder": {
            **common,
            "hidden_size": shape["width"],
            "hidden_dropout": shape["dropout"],
            "attention": "bahdanau",
            "init_hidden": "bridge",
            "input_feeding": shape["fed"],
        },
    }


def configuration(chosen: dict) -> dict:
    corpus = Path(chosen["corpus"]["folder"])
    language = {"voc_file": str(corpus / "vocabulary.txt"), "level": "word", "max_length": -1}
    return {
        "name": "benchmark",
        "joeynmt_version": __version__,
        "model_dir": chosen["folder"],
        "use_cuda": False,
        "fp16": False,
        "num_workers": 0,
        "random_seed": 1,
        "data": {
            "train": str(corpus / ("grouped" if chosen["grouped"] else "train")),
            "dev": str(corpus / "dev"),
            "dataset_type": "plain",
            "src": {"lang": "de", **language},
            "trg": {"lang": "en", **language},
            "special_symbols": {
                "unk_token": "<unk>",
                "unk_id": 0,
                "pad_token": "<pad>",
                "pad_id": 1,
                "bos_token": "<s>",
                "bos_id": 2,
                "eos_token": "</s>",
                "eos_id": 3,
            },
        },
        "training": {
            "optimizer": "adamw",
            "adam_betas": [0.9, 0.999],
            "learning_rate": chosen["learning_rate"],
            "learning_rate_min": 1e-12,
            "learning_rate_warmup": 400,
            "scheduling": "warmupinversesquareroot",
            "clip_grad_norm": 1.0,
            "normalization": "tokens",
            "label_smoothing": 0.0,
            "loss": "crossentropy",
            "batch_size": chosen["batch"],
            "batch_type": "sentence",
            "shuffle": not chosen["grouped"],
            "epochs": NEVER,
            "validation_freq": NEVER,
            "logging_freq": NEVER,
            "early_stopping_metric": "loss",
        },
        "testing": {"beam_size": 1, "batch_size": 64, "batch_type": "sentence", "eval_metrics": ["bleu"]},
        "model": (transformer if chosen["model"] == "transformer" else lstm)(chosen["shape"]),
    }


class Paced(TrainManager):
    """The trainer, which counts each update."""

    pace: Pace

    def _train_step(self, batch):
        self.pace.begin_update(batch.ntokens)
        return super()._train_step(batch)


def main() -> None:
    chosen = options()
    pace = Pace()
    torch.set_num_threads(chosen["threads"])
    args = parse_global_args(configuration(chosen), rank=0, mode="train")
    args.model_dir.mkdir(parents=True, exist_ok=True)
    model, train_data, dev_data, _ = prepare(args, rank=0, mode="train")
    trainer = Paced(
        rank=0,
        model=model,
        model_dir=args.model_dir,
        device=args.device,
        n_gpu=args.n_gpu,
        num_workers=args.num_workers,
        autocast=args.autocast,
        seed=args.seed,
        train_args=args.train,
        dev_args=set_validation_args(args.test),
    )
    trainer.pace = pace
    pace.ready(
        versions={"joeynmt": __version__, "torch": torch.__version__},
        parameters=sum(p.numel() for p in model.parameters() if p.requires_grad),
        threads=torch.get_num_threads(),
    )
    trainer.train_and_validate(train_data=train_data, valid_data=dev_data)


main()
