"""The vocabulary of a transformers model: special tokens, names of tokens and how many of them it scores."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

from unforced.errors import InputError
from unforced.huggingface.parts import embedded_tokens, output_layer
from unforced.types import Sizes, Symbols

ModelKind = Literal["encoder_decoder", "causal", "masked"]


class ModelVocabulary:
    """What a model and its tokenizer say about tokens.

    A special token is looked up in the tokenizer, then in the generation settings, then in the configuration. Arguments
    come before all of them; they are those of `unforced.wrap`. ``model`` is a model, or anything with ``config`` and
    ``generation_config``.
    """

    def __init__(
        self,
        model: Any,
        kind: ModelKind,
        tokenizer: Any = None,
        *,
        start: int | Sequence[int] | None = None,
        pad: int | None = None,
        eos: int | None = None,
        mask: int | None = None,
        banned: Iterable[int] = (),
    ) -> None:
        self.kind, self.tokenizer = kind, tokenizer
        config, self._settings = model.config, getattr(model, "generation_config", None)
        text = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
        self._places = (tokenizer, self._settings, text, config)
        self._model = "the model" if isinstance(model, tuple) else type(model).__name__
        starts = (start,) if isinstance(start, int) else tuple(start or ())
        self.prompt = starts[:-1]  # ids that an encoder-decoder is fed before the start symbol
        self.mask_token: int | None = None  # the id that hides a token
        if kind == "masked":
            self.symbols = self._masked_symbols(pad, mask, banned)
        else:
            self.symbols = self._decoder_symbols(starts[-1] if starts else None, pad, eos, banned)
        weight = getattr(output_layer(model), "weight", None)
        size = int(text.vocab_size) if weight is None or weight.dim() != 2 else len(weight)
        self.sizes = Sizes(size, size)
        self._check_tokenizer(max(size, embedded_tokens(model)))
        limits = (getattr(text, name, None) for name in ("max_position_embeddings", "max_target_positions"))
        self.positions: int | None = next((int(limit) for limit in limits if limit), None)

    def _check_tokenizer(self, embedded: int) -> None:
        """Raise `InputError` if the tokenizer is another model's.

        Many models have some more embeddings than tokens, for round numbers and later additions, but never twice as
        many.
        """
        if not hasattr(self.tokenizer, "__len__"):
            return
        known, size = len(self.tokenizer), self.sizes.target
        if known > embedded:
            raise InputError(
                f"the tokenizer has {known} tokens, but {self._model} only {embedded}: use the model's own tokenizer, "
                f"or call model.resize_token_embeddings({known}) and train the new tokens"
            )
        if 2 * known < size:
            raise InputError(
                f"the tokenizer has only {known} tokens, but {self._model} scores {size}: "
                "use the model's own tokenizer, as written by tokenizer.save_pretrained (vocab.txt alone is not enough)"
            )

    def _decoder_symbols(self, start: int | None, pad: int | None, eos: int | None, banned: Iterable[int]) -> Symbols:
        """Return the symbols of a model that generates.

        Padding differs from EOS wherever another token can be taken, because soft beams tell finished outputs by it.
        Padding and the tokens that ``generate`` suppresses are never emitted.
        """
        eos = self._find("eos_token_id") if eos is None else eos
        names = ("decoder_start_token_id", "bos_token_id") if self.kind == "encoder_decoder" else ("bos_token_id",)
        bos = self._find(*names) if start is None else start
        if bos is None and self.kind == "encoder_decoder":
            raise InputError(
                f"{self._model} has no decoder start token: pass start=, the id of the decoder's first input"
            )
        if pad is None:
            candidates = [self._find("pad_token_id"), bos, self._find("unk_token_id"), eos]
            known = [id for id in candidates if id is not None]
            pad = next((id for id in known if id != eos), known[0] if known else 0)
        single = [words[0] for words in getattr(self._settings, "bad_words_ids", None) or [] if len(words) == 1]
        suppressed = getattr(self._settings, "suppress_tokens", None) or []
        never = {pad, *banned, *single, *suppressed} - {eos}
        return Symbols(pad=pad, bos=pad if bos is None else bos, eos=eos, banned=tuple(sorted(never)))

    def _masked_symbols(self, pad: int | None, mask: int | None, banned: Iterable[int]) -> Symbols:
        """Return the symbols of a masked model. All special tokens are banned, because a mask never hides them."""
        self.mask_token = self._find("mask_token_id") if mask is None else mask
        if self.mask_token is None:
            raise InputError(f"{self._model} has no mask token: pass tokenizer=, or mask=, the id of that token")
        pad = (self._find("pad_token_id") or 0) if pad is None else pad
        names = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
        special = {
            pad,
            self.mask_token,
            *banned,
            *self.special_ids,
            *(id for name in names for id in self._find_all(name)),
        }
        bos = self._find("cls_token_id", "bos_token_id")
        return Symbols(pad=pad, bos=pad if bos is None else bos, eos=None, banned=tuple(sorted(special)))

    def _find(self, *names: str) -> int | None:
        """Return the first id that has one of these names, or None."""
        return next((id for name in names for id in self._find_all(name)), None)

    def _find_all(self, name: str) -> list[int]:
        for place in self._places:
            value = getattr(place, name, None)
            if value is not None:
                return [int(id) for id in value] if isinstance(value, Sequence) else [int(value)]
        return []

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids that the tokenizer reserves for something other than text."""
        named = getattr(self.tokenizer, "all_special_ids", None) or ()
        added = getattr(self.tokenizer, "added_tokens_decoder", None) or {}
        return frozenset(map(int, named)) | {int(id) for id, token in added.items() if token.special}

    @property
    def unknown_id(self) -> int | None:
        """The id of words that the tokenizer does not know, if there is one."""
        return getattr(self.tokenizer, "unk_token_id", None)

    def token_names(self) -> tuple[str, ...]:
        """Return the name of each id that has a score; ids that the tokenizer does not know have an empty name."""
        size = self.sizes.target
        known = 0 if self.tokenizer is None else min(len(self.tokenizer), size)
        names = self.tokenizer.convert_ids_to_tokens(list(range(known))) if known else []
        return (*("" if name is None else str(name) for name in names), *[""] * (size - known))
