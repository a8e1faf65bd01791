"""Training batches for block diffusion, as a pure function of (seed, step).

A row is the chat-formatted prompt, the answer, the stop token and filler up to the end of a block.
The block grid starts at position 0, so the tail of the prompt shares a block with the first answer
tokens and stays visible there. The model sees

    [clean blocks 0..n-2 | noisy answer blocks, copy 0 | noisy answer blocks, copy 1]

where clean tokens attend block-causally and a noisy block attends to itself and to the clean
blocks before it. Rows with the same (number of blocks n, first answer block f) form batches,
without padding, of a size at which a processor's cache still holds the activations.
"""

from dataclasses import dataclass
from functools import lru_cache
from random import Random

import make_pools
import numpy as np
import torch
from tokenizers import Tokenizer

BLOCK = 32
COPIES = 2
BATCH_TOKENS = 1300
FAMILY_TURNS = (*("math", "list", "json") * 5, "list", "math", "list", "code")


@dataclass(frozen=True)
class Encoded:
    """One row in tokens: the length of the prompt, all ids, and the loss weight of each id."""

    prompt_tokens: int
    ids: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True)
class Batch:
    """ids [B,S] with masks put in, positions [S], attend [S,S] bool, clean_tokens C.

    `slots` [M] index the noisy part flattened to [B*(S-C)]; `labels`, `weights` [M] go with them.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    attend: torch.Tensor
    clean_tokens: int
    slots: torch.Tensor
    labels: torch.Tensor
    weights: torch.Tensor


class Encoder:
    """Turns problems into `Encoded` rows with a tokenizer and its special ids."""

    def __init__(self, tokenizer: Tokenizer, mask_id: int, stop_id: int, filler_id: int, filler_weight: float):
        self.tokenizer, self.mask_id = tokenizer, mask_id
        self.stop_id, self.filler_id, self.filler_weight = stop_id, filler_id, filler_weight

    def chat(self, prompt: str) -> str:
        """The prompt as the chat template renders it."""
        return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n"

    def encode(self, prompt: str, answer: str, extra_blocks: int) -> Encoded:
        """Prompt, answer, stop token, filler to the block's end and `extra_blocks` more."""
        head = self.tokenizer.encode(self.chat(prompt), add_special_tokens=False).ids
        body = [*self.tokenizer.encode(answer, add_special_tokens=False).ids, self.stop_id]
        filler = -(len(head) + len(body)) % BLOCK + extra_blocks * BLOCK
        weights = [0.0] * len(head) + [1.0] * len(body) + [self.filler_weight] * filler
        return Encoded(len(head), (*head, *body, *[self.filler_id] * filler), tuple(weights))


@lru_cache(maxsize=64)
def layout(blocks: int, first: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions [S] and who-attends-whom [S,S] of the layout above."""
    clean = np.arange((blocks - 1) * BLOCK)
    noisy = np.arange(first * BLOCK, blocks * BLOCK)
    position = np.concatenate([clean] + [noisy] * COPIES)
    copies = [np.full_like(noisy, number + 1) for number in range(COPIES)]
    copy = np.concatenate([np.zeros_like(clean), *copies])
    block = position // BLOCK
    query_block, key_block = block[:, None], block[None, :]
    query_copy, key_copy = copy[:, None], copy[None, :]
    clean_rows = (query_copy == 0) & (key_copy == 0) & (key_block <= query_block)
    context = (query_copy > 0) & (key_copy == 0) & (key_block < query_block)
    own = (query_copy > 0) & (key_copy == query_copy) & (key_block == query_block)
    return torch.from_numpy(position), torch.from_numpy(clean_rows | context | own)


def noise(rng: np.random.Generator, rows: int, blocks: int) -> np.ndarray:
    """Masked [rows, COPIES, blocks*BLOCK] bool: complementary pairs, or all-masked with another."""
    shape = (rows, blocks, 1)
    ratio = rng.random(shape)
    rank = rng.random((rows, blocks, BLOCK))
    first = rank < ratio
    second = ~first
    full = rng.random(shape) < 0.3
    other = rng.random((rows, blocks, BLOCK)) < 0.3 + 0.6 * rng.random(shape)
    first = np.where(full, True, first)
    second = np.where(full, other, second)
    return np.stack([first, second], 1).reshape(rows, COPIES, blocks * BLOCK)


def collate(rows: list[Encoded], rng: np.random.Generator, mask_id: int) -> Batch:
    """One batch of rows that share their layout."""
    blocks, first = len(rows[0].ids) // BLOCK, rows[0].prompt_tokens // BLOCK
    ids = np.array([row.ids for row in rows])
    weights = np.array([row.weights for row in rows], dtype=np.float32)
    answer = weights[:, None, first * BLOCK :]
    masked = noise(rng, len(rows), blocks - first) & (answer > 0)
    clean = ids[:, : (blocks - 1) * BLOCK]
    target = np.repeat(ids[:, None, first * BLOCK :], COPIES, 1)
    noisy = np.where(masked, mask_id, target).reshape(len(rows), -1)
    slots = np.flatnonzero(masked.reshape(-1))
    positions, attend = layout(blocks, first)
    return Batch(
        ids=torch.from_numpy(np.concatenate([clean, noisy], 1)),
        positions=positions,
        attend=attend,
        clean_tokens=clean.shape[1],
        slots=torch.from_numpy(slots),
        labels=torch.from_numpy(target.reshape(-1)[slots]),
        weights=torch.from_numpy(np.repeat(answer, COPIES, 1).reshape(-1)[slots]),
    )


def step_batches(encoder: Encoder, seed: int, step: int, rows: int, longest_blocks: int) -> list[Batch]:
    """The batches of one optimizer step: fresh problems of at most `longest_blocks` blocks."""
    rng = Random(f"{seed}/{step}")
    groups: dict[tuple[int, int], list[Encoded]] = {}
    drawn = 0
    while drawn < rows:
        family = FAMILY_TURNS[drawn % len(FAMILY_TURNS)]
        problem = make_pools.draw(rng, family, "train")
        extra = int(rng.random() < 0.06)
        encoded = encoder.encode(problem.prompt, problem.answer, extra)
        key = (len(encoded.ids) // BLOCK, encoded.prompt_tokens // BLOCK)
        if key[0] > longest_blocks:
            continue
        groups.setdefault(key, []).append(encoded)
        drawn += 1
    noise_rng = np.random.default_rng((seed, step))
    return [
        collate(part, noise_rng, encoder.mask_id)
        for key in sorted(groups, reverse=True)
        for part in parts(groups[key], key)
    ]


def parts(rows: list[Encoded], key: tuple[int, int]) -> list[list[Encoded]]:
    """Rows of one layout in nearly equal parts of about `BATCH_TOKENS` tokens."""
    blocks, first = key
    tokens = len(rows) * BLOCK * (blocks - 1 + COPIES * (blocks - first))
    count = min(len(rows), max(1, round(tokens / BATCH_TOKENS)))
    return [rows[start::count] for start in range(count)]
