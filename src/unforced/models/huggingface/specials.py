"""A model's special tokens as ``Symbols``, from what its tokenizer and its configurations say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from unforced.errors import InputError
from unforced.models.huggingface.parts import is_encoder_decoder, named
from unforced.types import Symbols


def special_ids(tokenizer: Any) -> frozenset[int]:
    """The ids that a tokenizer, or its absence, keeps for other things than text: those with a role, and all that are flagged so."""
    named = getattr(tokenizer, "all_special_ids", None) or ()
    added = getattr(tokenizer, "added_tokens_decoder", None) or {}
    return frozenset(map(int, named)) | {int(id) for id, token in added.items() if token.special}


class Specials:
    """Looks token ids up: the tokenizer knows best, then the generation settings, then the configuration."""

    def __init__(self, model: Any, tokenizer: Any = None) -> None:
        text = getattr(model.config, "get_text_config", None)
        self.tokenizer = tokenizer
        places = [tokenizer, getattr(model, "generation_config", None)]
        self.places = [*places, text(decoder=True) if text else None, model.config]

    def all(self, name: str) -> list[int]:
        """The ids that go by a name, those of the first place that knows any."""
        for place in self.places:
            value = getattr(place, name, None)
            if value is not None:
                return [int(number) for number in value] if isinstance(value, Sequence) else [int(value)]
        return []

    def __call__(self, name: str) -> int | None:
        return next(iter(self.all(name)), None)

    def unheeded(self) -> list[str]:
        """Settings of the model for ``generate`` that decoders here don't follow."""
        settings = self.places[1]
        plain = {
            "repetition_penalty": (1.0,),
            "no_repeat_ngram_size": (0,),
            "encoder_no_repeat_ngram_size": (0,),
        }
        names = (
            "forced_bos_token_id",
            "forced_eos_token_id",
            "begin_suppress_tokens",
            "sequence_bias",
            *plain,
        )
        found = [
            name for name in names if getattr(settings, name, None) not in (None, [], *plain.get(name, ()))
        ]
        return found + ["eos_token_id (the first is taken)"] * (len(self.all("eos_token_id")) > 1)

    def never(self) -> set[int]:
        """Tokens that ``generate`` never emits with the model's own settings."""
        settings = self.places[1]
        single = [words[0] for words in getattr(settings, "bad_words_ids", None) or [] if len(words) == 1]
        return {*single, *(getattr(settings, "suppress_tokens", None) or [])}


def decoder_symbols(
    model: Any,
    known: Specials,
    start: int | None = None,
    pad: int | None = None,
    eos: int | None = None,
    banned: Iterable[int] = (),
) -> Symbols:
    """The symbols of a model that generates.

    Padding is another token than EOS wherever there is one to take (methods that let finished outputs stay in a beam tell
    them apart by it), and is never emitted then.
    """
    eos = known("eos_token_id") if eos is None else eos
    bos = known("bos_token_id") if start is None else start
    if start is None and is_encoder_decoder(model):
        told = known("decoder_start_token_id")
        bos = bos if told is None else told
        if bos is None:
            raise InputError(
                f"{named(model)} does not say what its decoder starts with: pass start=, the id of its first input"
            )
    if pad is None:
        choices = [known("pad_token_id"), bos, known("unk_token_id"), eos]
        named_ = [choice for choice in choices if choice is not None]
        pad = next((choice for choice in named_ if choice != eos), next(iter(named_), 0))
    never = {pad, *banned, *known.never()} - {eos}
    return Symbols(pad=pad, bos=pad if bos is None else bos, eos=eos, banned=tuple(sorted(never)))


def masked_symbols(
    model: Any, known: Specials, pad: int | None = None, mask: int | None = None, banned: Iterable[int] = ()
) -> tuple[Symbols, int]:
    """The symbols of a masked model, and its mask token. All special tokens are banned: no mask hides them."""
    mask = known("mask_token_id") if mask is None else mask
    if mask is None:
        raise InputError(
            f"{named(model)} does not say what its mask token is: pass tokenizer=, or mask=, the id of that token"
        )
    pad = known("pad_token_id") if pad is None else pad
    pad = 0 if pad is None else pad
    names = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
    special = {pad, mask, *banned, *(number for name in names for number in known.all(name))}
    special |= special_ids(known.tokenizer)
    bos = known("cls_token_id")
    bos = known("bos_token_id") if bos is None else bos
    return Symbols(pad=pad, bos=pad if bos is None else bos, eos=None, banned=tuple(sorted(special))), mask
