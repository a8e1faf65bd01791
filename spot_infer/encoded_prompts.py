"""Rows of a prompt file to token ids that a target can decode, or the line that it can't."""

from __future__ import annotations

from collections.abc import Iterator

from spot_infer.api import encode_prompt
from spot_infer.decode import request_fault
from spot_infer.errors import SpotError
from spot_infer.prompts_io import PromptRow, Prompts
from spot_infer.requests import Request
from spot_infer.targets.protocol import Target


def encode_rows(
    target: Target, prompts: Prompts, max_new_tokens: int, raw: bool = False
) -> Iterator[tuple[PromptRow, tuple[int, ...]]]:
    """Every row with its ids. Raises SpotError naming the line of a prompt that can't be encoded or decoded."""
    for row in prompts.rows:
        try:
            ids = encode_prompt(target, row.prompt, raw)
        except SpotError as error:
            raise SpotError(f"{prompts.source} {row.line}: {error}") from error
        if fault := request_fault(target.spec, Request(ids), max_new_tokens):
            raise SpotError(f"{prompts.source} {row.line} {fault}")
        yield row, ids
