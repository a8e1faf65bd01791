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
from transformers import PreTrainedTokenizerFast

COPIES = 2
BATCH_TOKENS = 1300
_PROMPT = "\0"
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
    """Turns problems into `Encoded` rows with a target's tokenizer, chat template and block length."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, block_length: int, filler_weight: float):
        self.tokenizer: Tokenizer = tokenizer.backend_tokenizer
        self.block_length, self.filler_weight = block_length, filler_weight
        self.mask_id, self.stop_id = int(tokenizer.mask_token_id), int(tokenizer.eos_token_id)
        self.filler_id = int(tokenizer.pad_token_id)
        turn = [{"role": "user", "content": _PROMPT}]
        rendered = str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))
        self._before, self._after = rendered.split(_PROMPT)

    def chat(self, prompt: str) -> str:
        """The prompt as the chat template renders it."""
        return f"{self._before}{prompt}{self._after}"

    def encode(self, prompt: str, answer: str, extra_blocks: int) -> Encoded:
        """Prompt, answer, stop token, filler to the block's end and `extra_blocks` more."""
        head = self.tokenizer.encode(self.chat(prompt), add_special_tokens=False).ids
        body = [*self.tokenizer.encode(answer, add_special_tokens=False).ids, self.stop_id]
        filler = -(len(head) + len(body)) % self.block_length + extra_blocks * self.block_length
        weights = [0.0] * len(head) + [1.0] * len(body) + [self.filler_weight] * filler
        return Encoded(len(head), (*head, *body, *[self.filler_id] * filler), tuple(weights))


@lru_cache(maxsize=64)
def layout(blocks: int, first: int, block_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions [S] and who-attends-whom [S,S] of the layout above."""
    clean = np.arange((blocks - 1) * block_length)
    noisy = np.arange(first * block_length, blocks * block_length)
    position = np.concatenate([clean] + [noisy] * COPIES)
    copies = [np.full_like(noisy, number + 1) for number in range(COPIES)]
    copy = np.concatenate([np.zeros_like(clean), *copies])
    block = position // block_length
    query_block, key_block = block[:, None], block[None, :]
    query_copy, key_copy = copy[:, None], copy[None, :]
    clean_rows = (query_copy == 0) & (key_copy == 0) & (key_block <= query_block)
    context = (query_copy > 0) & (key_copy == 0) & (key_block < query_block)
    own = (query_copy > 0) & (key_copy == query_copy) & (key_block == query_block)
    return torch.from_numpy(position), torch.from_numpy(clean_rows | context | own)


def noise(rng: np.random.Generator, rows: int, blocks: int, block_length: int) -> np.ndarray:
    """Masked [rows, COPIES, blocks*block_length] bool: complementary pairs, or all-masked with another."""
    shape = (rows, blocks, 1)
    ratio = rng.random(shape)
    rank = rng.random((rows, blocks, block_length))
    first = rank < ratio
    second = ~first
    full = rng.random(shape) < 0.3
    other = rng.random((rows, blocks, block_length)) < 0.3 + 0.6 * rng.random(shape)
    first = np.where(full, True, first)
    second = np.where(full, other, second)
    return np.stack([first, second], 1).reshape(rows, COPIES, blocks * block_length)


def collate(rows: list[Encoded], rng: np.random.Generator, mask_id: int, block_length: int) -> Batch:
    """One batch of rows that share their layout."""
    blocks, first = len(rows[0].ids) // block_length, rows[0].prompt_tokens // block_length
    ids = np.array([row.ids for row in rows])
    weights = np.array([row.weights for row in rows], dtype=np.float32)
    answer = weights[:, None, first * block_length :]
    masked = noise(rng, len(rows), blocks - first, block_length) & (answer > 0)
    clean = ids[:, : (blocks - 1) * block_length]
    target = np.repeat(ids[:, None, first * block_length :], COPIES, 1)
    noisy = np.where(masked, mask_id, target).reshape(len(rows), -1)
    slots = np.flatnonzero(masked.reshape(-1))
    positions, attend = layout(blocks, first, block_length)
    return Batch(
        ids=torch.from_numpy(np.concatenate([clean, noisy], 1)),
        positions=positions,
        attend=attend,
        clean_tokens=clean.shape[1],
        slots=torch.from_numpy(slots),
        labels=torch.from_numpy(target.reshape(-1)[slots]),
        weights=torch.from_numpy(np.repeat(answer, COPIES, 1).reshape(-1)[slots]),
    )


def step_batches(encoder: Encoder, seed: int, step: int, rows: int, longest_tokens: int) -> list[Batch]:
    """The batches of one optimizer step: fresh problems of at most `longest_tokens` tokens each."""
    block_length = encoder.block_length
    rng = Random(f"{seed}/{step}")
    groups: dict[tuple[int, int], list[Encoded]] = {}
    drawn = 0
    while drawn < rows:
        family = FAMILY_TURNS[drawn % len(FAMILY_TURNS)]
        problem = make_pools.draw(rng, family, "train")
        extra = int(rng.random() < 0.06)
        encoded = encoder.encode(problem.prompt, problem.answer, extra)
        key = (len(encoded.ids) // block_length, encoded.prompt_tokens // block_length)
        if len(encoded.ids) > longest_tokens:
            continue
        groups.setdefault(key, []).append(encoded)
        drawn += 1
    noise_rng = np.random.default_rng((seed, step))
    return [
        collate(part, noise_rng, encoder.mask_id, block_length)
        for key in sorted(groups, reverse=True)
        for part in parts(groups[key], key, block_length)
    ]


def parts(rows: list[Encoded], key: tuple[int, int], block_length: int) -> list[list[Encoded]]:
    """Rows of one layout in nearly equal parts of about `BATCH_TOKENS` tokens."""
    blocks, first = key
    tokens = len(rows) * block_length * (blocks - 1 + COPIES * (blocks - first))
    count = min(len(rows), max(1, round(tokens / BATCH_TOKENS)))
    return [rows[start::count] for start in range(count)]
