"""Full-attention targets: every position sees the whole canvas, so a prefix cache is approximate, or there is none.

A block is opened by a forward of the whole canvas, whose answers commit like any other's; its keys and values are kept
while the block lasts, as the target's `cache` says. Drafted and draft-free runs share them, so verification is exact
relative to the cached decoder. Knows nothing about families.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from spot_infer.canvas import CanvasCache, CanvasForward, CanvasPacked, plan_canvases, whole_canvases, windows
from spot_infer.packing import Layout, Packed, RowStates, pack
from spot_infer.targets.native_model import NativeModel
from spot_infer.targets.protocol import PrefixCache


class FullAttentionTarget(NativeModel):
    """A native causal LM under all-ones masks; logits may be shifted (`spec.logit_shift`)."""

    def new_cache(self) -> CanvasCache:
        return CanvasCache(self.spec.block_length)

    def prefill(self, cache: PrefixCache, rows: Sequence[int], prefixes: Sequence[Sequence[int]]) -> None:
        """Nothing: a prompt is encoded when its first block opens."""

    def open_blocks(self, cache: PrefixCache, canvases: Sequence[Sequence[int]], starts: Sequence[int]) -> None:
        """Every row's canvas, masks to its end, and where its active block starts. A block already open stays so."""
        assert isinstance(cache, CanvasCache)
        for row, (canvas, start) in enumerate(zip(canvases, starts, strict=True)):
            if cache.starts[row] != start:
                cache.open_block(row, canvas, start)

    def pack(self, rows: Sequence[RowStates], cache: PrefixCache, layout: Layout, pad_states: int) -> CanvasPacked:
        """Lay out the rows' replicas; a block that no forward has opened takes its root alone."""
        assert isinstance(cache, CanvasCache)
        packed = pack(rows, layout, self.device, pad_states)
        return plan_canvases(packed, cache, self.spec.cache, self.spec.logit_shift)

    def forward(self, packed: Packed, cache: PrefixCache) -> Tensor:
        assert isinstance(packed, CanvasPacked) and isinstance(cache, CanvasCache)
        parts = self._whole(packed, cache) | self._windowed(packed, cache)
        return torch.cat([parts[state] for state in range(len(packed.sequence_of))])

    def _whole(self, packed: CanvasPacked, cache: CanvasCache) -> dict[int, Tensor]:
        """Hidden states [m, H] at the masked slots of the states that take their whole canvas."""
        if not packed.whole:
            return {}
        rows = packed.cache_rows[[packed.sequence_of[state] for state in packed.whole]].tolist()
        canvases = []
        for state, row in zip(packed.whole, rows, strict=True):
            canvases.append(list(cache.canvases[row]))
            canvases[-1][cache.starts[row] : cache.starts[row] + cache.block_length] = self._block(packed, state)
        call = whole_canvases(canvases)
        if self.spec.cache == "none":
            hidden = self.run(call.input_ids, call.position_ids, call.attention_mask, None)
        else:
            hidden = self._call(call, cache)
            cache.store(rows, [len(canvas) for canvas in canvases])
        shift = self.spec.logit_shift
        return {
            state: hidden[number, self._slots(packed, state) + (cache.starts[row] - shift)]
            for number, (state, row) in enumerate(zip(packed.whole, rows, strict=True))
        }

    def _windowed(self, packed: CanvasPacked, cache: CanvasCache) -> dict[int, Tensor]:
        """The same of the states that take a window, out of their sequences."""
        if not packed.windowed:
            return {}
        sequences = list(packed.windowed)
        tokens = packed.input_ids[sequences].cpu().unflatten(1, (-1, cache.block_length))
        rows = packed.cache_rows[sequences].tolist()
        call = windows(tokens, rows, cache, self.spec.cache, self.spec.logit_shift)
        hidden = self._call(call, cache)
        parts = {}
        for state, sequence in enumerate(packed.sequence_of):
            if sequence in packed.windowed:
                # a window leads by as much as the logits are shifted, so slot s is predicted by its row s
                first = packed.offset_of[state] // cache.block_length * call.width
                parts[state] = hidden[packed.windowed.index(sequence), self._slots(packed, state) + first]
        return parts

    def _call(self, call: CanvasForward, cache: CanvasCache) -> Tensor:
        cache.begin(None if call.cache_rows is None else call.cache_rows.to(self.device), call.kept)
        return self.run(call.input_ids, call.position_ids, call.attention_mask, cache)

    def _slots(self, packed: Packed, state: int) -> Tensor:
        return packed.read_slot[packed.state_start[state] : packed.state_start[state + 1]]

    def _block(self, packed: Packed, state: int) -> list[int]:
        first = packed.offset_of[state]
        return packed.input_ids[packed.sequence_of[state], first : first + self.spec.block_length].tolist()
