"""Muon in float32: momentum, then the nearest orthogonal matrix, for equal shapes at once.

`torch.optim.Muon` orthogonalises in bfloat16, one matrix at a time, which is thirty times slower on
processors without bfloat16 arithmetic.
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_TOGETHER = 4


def orthogonalize(x: torch.Tensor, steps: int) -> torch.Tensor:
    """Newton-Schulz iteration of matrices [N, r, c] towards orthogonal rows or columns."""
    a, b, c = _COEFFICIENTS
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum with orthogonalised updates and decoupled weight decay.

    params: parameter groups. A parameter is a matrix [r, c] or a stack of them [E, r, c]; a group's `fused` says how
    many matrices lie below each other in the rows of one.
    """

    def __init__(
        self,
        params: Iterable[dict[str, Any]],
        lr: float,
        pool: ThreadPoolExecutor,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        steps: int = 5,
    ):
        settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "steps": steps, "fused": 1}
        super().__init__(params, settings)
        self._pool = pool

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """One update of every matrix; a thread takes a few equal shapes at a time."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[torch.nn.Parameter]] = {}
            for param in group["params"]:
                shapes.setdefault(param.shape, []).append(param)
            chunks = [
                same[start : start + _TOGETHER] for same in shapes.values() for start in range(0, len(same), _TOGETHER)
            ]
            list(self._pool.map(lambda chunk, group=group: self._update(group, chunk), chunks))

    @torch.no_grad()
    def _update(self, group: dict, params: list[torch.nn.Parameter]) -> None:
        beta = group["momentum"]
        directions = []
        for param in params:
            state = self.state[param]
            if not state:
                state["momentum"] = torch.zeros_like(param)
            assert param.grad is not None
            state["momentum"].lerp_(param.grad, 1 - beta)
            directions.append(param.grad.lerp(state["momentum"], beta))
        rows, columns = params[0].shape[-2] // group["fused"], params[0].shape[-1]
        scale = max(1.0, rows / columns) ** 0.5
        updates = orthogonalize(torch.stack(directions).view(-1, rows, columns), group["steps"])
        for param, update in zip(params, updates.view(len(params), *params[0].shape), strict=True):
            param.mul_(1 - group["lr"] * group["weight_decay"])
            param.add_(update, alpha=-group["lr"] * scale)
