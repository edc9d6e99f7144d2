"""An LSTM encoder-decoder with Bahdanau's attention, as one would write it for Hugging Face's trainer.

It has the shape of ``unforced.models.lstm.LSTM``: both directions of the encoder and the decoder are 256 wide. With
``fed`` the context enters the recurrence (Bahdanau et al. 2015), one step at a time. Otherwise attention reads the
decoder's states after one call of the fused LSTM.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


class PlainLstm(nn.Module):
    """Return the loss of ``labels``; positions with the label ``ignored`` do not count."""

    def __init__(self, shape: dict, vocabulary: int, *, pad: int, bos: int, ignored: int) -> None:
        super().__init__()
        width, memory = shape["width"], 2 * shape["encoder_direction"]
        self.pad, self.bos, self.ignored, self.fed = pad, bos, ignored, shape["fed"]
        self.source_embedding = nn.Embedding(vocabulary, width, padding_idx=pad)
        self.target_embedding = nn.Embedding(vocabulary, width, padding_idx=pad)
        self.encoder = nn.LSTM(width, shape["encoder_direction"], batch_first=True, bidirectional=True)
        self.bridge = nn.Linear(memory, 2 * width)
        if self.fed:
            self.cell = nn.LSTMCell(width + memory, width)
        else:
            self.decoder = nn.LSTM(width, width, batch_first=True)
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(memory, width, bias=False)
        self.energy = nn.Linear(width, 1, bias=False)
        self.combine = nn.Linear(width + memory, width)
        self.output = nn.Linear(width, vocabulary, bias=False)
        self.dropout = nn.Dropout(shape["dropout"])

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> dict[str, Tensor]:
        lengths = attention_mask.sum(dim=1)
        packed = pack_padded_sequence(
            self.dropout(self.source_embedding(input_ids)), lengths, batch_first=True, enforce_sorted=False
        )
        states, (last, _) = self.encoder(packed)
        memory, _ = pad_packed_sequence(states, batch_first=True)
        memory = self.dropout(memory)
        hidden, cell = self.bridge(torch.cat([last[0], last[1]], dim=-1)).chunk(2, dim=-1)
        hidden = torch.tanh(hidden)
        keys, padding = self.key(memory), attention_mask == 0

        shifted = labels[:, :-1].masked_fill(labels[:, :-1] == self.ignored, self.pad)
        prefix = torch.cat([torch.full_like(labels[:, :1], self.bos), shifted], dim=1)
        inputs = self.dropout(self.target_embedding(prefix))
        if self.fed:
            steps = []
            for step in inputs.unbind(1):
                context = self.attend(hidden.unsqueeze(1), keys, memory, padding).squeeze(1)
                hidden, cell = self.cell(torch.cat([step, context], dim=-1), (hidden, cell))
                steps.append(torch.cat([hidden, context], dim=-1))
            found = torch.stack(steps, dim=1)
        else:
            outputs, _ = self.decoder(inputs, (hidden.unsqueeze(0), cell.unsqueeze(0).contiguous()))
            found = torch.cat([outputs, self.attend(outputs, keys, memory, padding)], dim=-1)
        logits = self.output(self.dropout(torch.tanh(self.combine(found))))
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=self.ignored)
        return {"loss": loss}

    def attend(self, queries: Tensor, keys: Tensor, memory: Tensor, padding: Tensor) -> Tensor:
        """Return contexts [B,T,M] for queries [B,T,Q]."""
        sums = torch.tanh(self.query(queries).unsqueeze(2) + keys.unsqueeze(1))  # [B,T,S,A]
        scores = self.energy(sums).squeeze(-1).masked_fill(padding.unsqueeze(1), float("-inf"))
        return scores.softmax(dim=-1) @ memory
