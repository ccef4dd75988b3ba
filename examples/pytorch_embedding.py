# SPDX-License-Identifier: Apache-2.0
"""A language model with a sparse embedding, on the text of Python's own standard library.

p4reduce-lab exec -n 4 -- python examples/pytorch_embedding.py

A batch has few of the 20,000 words, so the embedding's gradient (``sparse=True``) has few rows that
are not zero. Only those travel to the switch, never the dense array; the last line says how
many bytes those are.
"""

from __future__ import annotations

import collections
import re
import sysconfig
from pathlib import Path

import torch
import torch.distributed as dist
from p4reduce.torch import statistics
from torch import nn
from torch.nn.parallel import DistributedDataParallel

WORDS = 20_000
WIDTH = 32
CONTEXT = 4  # words that the next one is guessed from
BATCH = 64
STEPS = 60


def read_words() -> list[str]:
    """The words of the documentation and code of the standard library's modules."""
    library = Path(sysconfig.get_path("stdlib"))
    files = sorted(library.glob("*.py"))
    return [
        word for file in files for word in re.findall(r"\w+", file.read_text("utf-8", "replace"))
    ]


class NextWord(nn.Module):
    """Guesses a word from those before it (Bengio et al., JMLR 2003), among a few others."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH, sparse=True)
        self.hidden = nn.Sequential(nn.Linear(CONTEXT * WIDTH, 64), nn.Tanh(), nn.Linear(64, WIDTH))

    def forward(self, before: torch.Tensor, candidates: torch.Tensor) -> torch.Tensor:
        """Scores of the candidates, shape (batch, candidates)."""
        guess = self.hidden(self.words(before).flatten(1))
        return torch.einsum("bw,bcw->bc", guess, self.words(candidates))


def main() -> None:
    """Trains on a part of the text for each rank."""
    dist.init_process_group("p4reduce")
    rank, size = dist.get_rank(), dist.get_world_size()
    text = read_words()
    common = collections.Counter(text).most_common(WORDS - 1)
    number = {word: place for place, (word, _) in enumerate(common, start=1)}
    numbers = torch.tensor([number.get(word, 0) for word in text])
    mine = numbers[rank * len(numbers) // size : (rank + 1) * len(numbers) // size]

    torch.manual_seed(0)
    model = DistributedDataParallel(NextWord())
    optimiser = torch.optim.Adagrad(model.parameters(), lr=0.1)  # one of those for sparse gradients
    draw = torch.Generator().manual_seed(rank)
    target = torch.zeros(BATCH, dtype=torch.long)  # the right word is the first candidate
    for step in range(STEPS):
        places = torch.randint(len(mine) - CONTEXT, (BATCH,), generator=draw)
        window = mine[places[:, None] + torch.arange(CONTEXT + 1)]
        others = torch.randint(WORDS, (BATCH, 15), generator=draw)
        optimiser.zero_grad()
        scores = model(window[:, :CONTEXT], torch.cat((window[:, CONTEXT:], others), 1))
        loss = nn.functional.cross_entropy(scores, target)
        loss.backward()
        optimiser.step()
        if rank == 0 and step % 20 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}")

    sent = statistics().switch["all_reduce"]
    dense = STEPS * WORDS * WIDTH * 4
    print(f"rank {rank}: final loss {loss.item():.4f}; {sent.bytes:,} bytes, {dense:,} if dense")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
