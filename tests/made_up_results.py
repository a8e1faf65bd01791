"""Made-up result rows, for tests of what reads results files. No figure here was measured."""

from __future__ import annotations

from typing import Any

from spot_infer.transition import CommitRule
from spot_train.results import Cell, Curve, PerPrompt, Row

COARSE = CommitRule(resolution="bfloat16").to_dict()
_PROVENANCE = {"argv": ["spot-train", "bench", "main"], "git": None, "versions": {"torch": "0"}}


def cell(method: str = "spot", budget: int = 8, nfe: tuple[int, ...] = (14, 18, 16, 20), **changes: Any) -> Cell:
    """A valid cell over four prompts, whose draft-free run took 40 forwards each."""
    n = len(nfe)
    fields: dict[str, Any] = {
        "suite": "main",
        "task": "tiny",
        "target": "tiny-sdar",
        "drafter": "tiny-sdar-drafter" if method == "spot" else None,
        "rule": CommitRule().to_dict(),
        "method": method,
        "budget": budget,
        "options": {},
        "temperature": 0.0,
        "top_k": 0,
        "top_p": 1.0,
        "verifier": "coupled",
        "seed": 0,
        "ignore_stop": False,
        "max_new_tokens": 128,
        "block_length": 32,
        "mode": "replay",
        "n": n,
        "nfe": sum(nfe) / n,
        "draft_free_nfe": 40.0,
        "reduction": 40 * n / sum(nfe),
        "accepted": 40 * n / sum(nfe) - 1,
        "drafter_calls": 60.0 if method == "spot" else 0.0,
        "states_scored": 120.0 if method == "spot" else 0.0,
        "distribution_preserving": True,
        "per_prompt": PerPrompt(nfe=list(nfe), draft_free_nfe=[40] * n),
        "provenance": _PROVENANCE,
    }
    return Cell(**fields | changes)


def real_cell(method: str = "spot", budget: int = 8, nfe: tuple[int, ...] = (14, 18, 16, 20), **changes: Any) -> Cell:
    """The same, decoded for real: wall time, accuracy, identical outputs."""
    n = len(nfe)
    fields: dict[str, Any] = {
        "mode": "real",
        "throughput_ratio": 0.4 if budget else 1.0,
        "accuracy": 0.75,
        "accuracy_by_family": {"arithmetic": 1.0, "lists": 0.5},
        "identical": n,
        "divergences": [],
        "positions": 32 * (1 + budget) * sum(nfe) / n,
        "drafter_s": 0.2 if method == "spot" else 0.0,
        "wall_s": 2.5,
        "tokens": 35 * n,
        "spread": {"reduction": (2.0, 2.7), "throughput_ratio": (0.35, 0.44)},
        "per_prompt": PerPrompt(nfe=list(nfe), draft_free_nfe=[40] * n, solved=[True, True, False, True][:n]),
    }
    return cell(method, budget, nfe, **fields | changes)


def curve(series: str = "stale order, float32 log-odds", **changes: Any) -> Curve:
    """A valid curve over four blocks, the last without an example."""
    fields: dict[str, Any] = {
        "suite": "coverage",
        "task": "tiny",
        "target": "tiny-sdar",
        "drafter": None,
        "rule": CommitRule().to_dict(),
        "temperature": 0.0,
        "ignore_stop": True,
        "series": series,
        "x_label": "block",
        "y_label": "next commit is the stale order's first",
        "x": [0, 1, 2, 3],
        "y": [0.74, 0.68, 0.34, None],
        "n": 4,
        "provenance": _PROVENANCE,
    }
    return Curve(**fields | changes)


def made_up_rows() -> list[Row]:
    """A small file: the main table under both rules and temperatures, an oracle, a marked verifier, curves."""
    coarse = CommitRule(resolution="bfloat16").to_dict()
    rows: list[Row] = []
    for rule in (CommitRule().to_dict(), coarse):
        for temperature in (0.0, 1.0):
            for make in (cell, real_cell) if temperature == 0 else (real_cell,):
                shared = {"rule": rule, "temperature": temperature}
                rows.append(make("draft-free", 0, (40, 40, 40, 40), **shared))
                for budget in (8, 12, 20):
                    rows.append(make("chain", budget, (21, 23, 20, 24), **shared))
                    rows.append(make("calibrated_graph", budget, (19, 20, 18, 21), **shared))
                    rows.append(make("spot", budget, (14, 18, 16, 20 - budget // 4), **shared))
                    rows.append(make("spot", budget, (15, 18, 17, 20), options={"floor": 0.1}, **shared))
    rows += [cell(f"{kind}_oracle", 8, (9, 10, 8, 11), suite="oracle") for kind in ("position", "token", "joint")]
    rows.append(
        real_cell(
            suite="temperature",
            temperature=1.5,
            verifier="greedy",
            identical=1,
            distribution_preserving=False,
            reason="greedy match accepts the argmax, which is not what the target draws at temperature 1.5",
            measures={"argmax_fraction": 0.958, "committed_probability": 0.9},
        )
    )
    rows.append(cell(suite="transfer", native=False, drafter="other-drafter"))
    rows += [curve(), curve("stale order, float16 probabilities", y=[0.7, 0.3, 0.1, None])]
    return rows
