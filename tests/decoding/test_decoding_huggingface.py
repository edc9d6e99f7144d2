"""Pool mode against Hugging Face's ``generate``: the same ids and scores on the same model."""

import pytest
import torch
from small_models import make_batch
from torch import Tensor, nn

from unforced.decoding import Beam, Greedy
from unforced.types import Batch, DecoderState, Symbols

transformers = pytest.importorskip("transformers")

V, STEPS = 40, 9
SYMBOLS = Symbols(pad=0, bos=1, eos=2, banned=(0, 1))
SOURCES = ([5, 6, 7, 2], [9, 2], [10, 11, 12, 13, 14, 2], [8, 30, 2])


class Wrapped(nn.Module):
    """A BART whose state is all it was fed: slow, and with nothing in it that could go wrong."""

    def __init__(self, model) -> None:
        super().__init__()
        self.model = model

    def start(self, batch: Batch) -> DecoderState:
        mask = batch.source_mask.long()
        memory = self.model.model.encoder(input_ids=batch.source, attention_mask=mask).last_hidden_state
        return DecoderState(memory.new_zeros(len(batch), 0, memory.shape[2]), (memory, mask))

    def embed(self, ids: Tensor) -> Tensor:
        return self.model.model.decoder.embed_tokens(ids)

    def embed_mix(self, weights: Tensor) -> Tensor:
        raise NotImplementedError("decoding by tokens alone")

    def advance(self, state: DecoderState, inputs: Tensor) -> tuple[Tensor, DecoderState]:
        fed = torch.cat([state.carry, inputs], dim=1)
        memory, mask = state.shared
        features = self.model.model.decoder(
            inputs_embeds=fed, encoder_hidden_states=memory, encoder_attention_mask=mask, use_cache=False
        ).last_hidden_state
        return features[:, -inputs.shape[1] :], DecoderState(fed, state.shared)

    def score(self, features: Tensor) -> Tensor:
        return self.model.lm_head(features) + self.model.final_logits_bias


def bart(seed: int, end: float):
    """A random model, with ``end`` added to the end symbol's score so that outputs do end."""
    torch.manual_seed(seed)
    config = transformers.BartConfig(
        vocab_size=V,
        d_model=16,
        encoder_layers=1,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        max_position_embeddings=64,
        init_std=0.6,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
        forced_eos_token_id=None,
    )
    model = transformers.BartForConditionalGeneration(config).eval()
    model.final_logits_bias[0, 2] += end
    return model


def generate(model, batch: Batch, **options):
    return model.generate(
        input_ids=batch.source,
        attention_mask=batch.source_mask.long(),
        do_sample=False,
        suppress_tokens=[0, 1],
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )


def theirs(output, batch: Batch, nbest: int) -> list[list[list[int]]]:
    """Without the start symbol, the end symbol and padding."""
    cut = [[t for t in row if t not in (0, 1, 2)] for row in output.sequences.tolist()]
    return [cut[i * nbest : (i + 1) * nbest] for i in range(len(batch))]


EARLY = {"heuristic": False, "full": True, "never": "never"}
SETTINGS = [
    # beam, penalty, nbest, minimum, stopping
    (5, 1.0, 5, 0, "heuristic"),
    (4, 0.0, 3, 0, "never"),
    (3, -1.0, 3, 0, "never"),
    (5, 0.6, 5, 0, "full"),
    (3, 1.0, 3, 4, "heuristic"),
    (4, 1.5, 2, 2, "full"),
]


@pytest.mark.parametrize(("beam", "penalty", "nbest", "minimum", "stopping"), SETTINGS)
def test_ids_and_scores_equal_generates(beam, penalty, nbest, minimum, stopping):
    lengths = set()
    for seed in range(4):
        model = bart(seed, end=[0.0, 2.0, 4.0, 6.0][seed])
        batch = make_batch(SOURCES, SYMBOLS)
        decoder = Beam(beam, penalty, nbest, minimum, STEPS, early_stopping=stopping)
        ours = decoder(Wrapped(model), batch)
        output = generate(
            model,
            batch,
            num_beams=beam,
            length_penalty=penalty,
            num_return_sequences=nbest,
            min_new_tokens=minimum,
            max_new_tokens=STEPS,
            early_stopping=EARLY[stopping],
        )
        ids = [ours.ids(SYMBOLS, n) for n in range(nbest)]
        assert [[ids[n][b] for n in range(nbest)] for b in range(len(batch))] == theirs(output, batch, nbest)
        if beam > 1:  # a beam of one is generate's greedy search, which reports no scores
            torch.testing.assert_close(ours.scores.flatten(), output.sequences_scores, atol=2e-5, rtol=1e-5)
        lengths |= set(ours.lengths.flatten().tolist())
    assert lengths - {STEPS}, "no output ended by itself"


def test_greedy_equals_generates():
    for seed in range(4):
        model, batch = bart(seed, end=2.0 * seed), make_batch(SOURCES, SYMBOLS)
        output = generate(model, batch, num_beams=1, max_new_tokens=STEPS)
        assert Greedy(max_length=STEPS)(Wrapped(model), batch).ids(SYMBOLS) == [
            row[0] for row in theirs(output, batch, 1)
        ]
