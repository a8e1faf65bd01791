"""Times methods that run interleaved in one process, on a clock of choice. Knows nothing about what the times mean."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spot_infer.clock import Clock
from spot_infer.errors import SpotError
from spot_infer.requests import DecodeSettings, Request
from spot_infer.targets.protocol import Target
from spot_train.compare.compare import Method, MethodRun, run_methods


def timed_methods(
    target: Target,
    requests: Sequence[Request],
    methods: Sequence[Method],
    settings: DecodeSettings,
    clock: Clock,
    between: Callable[[int], None] = lambda prompt: None,
) -> tuple[list[MethodRun], list[float]]:
    """What `compare.run_methods` returns, and the time on `clock` that each method took for all requests.

    `settings.batch_size` must be 1; methods are told apart by their labels, which must differ. The first request is
    decoded by every method beforehand and not counted: allocators are warm when timing starts. `between` is called
    after each prompt and not timed.
    """
    labels = [method.label for method in methods]
    if len(set(labels)) < len(labels) or settings.batch_size != 1:
        raise SpotError(f"methods {labels} are timed one row at a time; use batch_size 1 and a name for each")
    run_methods(target, requests[:1], methods, settings)
    spent = dict.fromkeys(labels, 0.0)
    decoded = 0
    last = clock.now()

    def note(label: str, count: int) -> None:
        nonlocal decoded, last
        spent[label] += clock.now() - last
        decoded += 1
        if decoded % len(methods) == 0:
            between(decoded // len(methods) - 1)
        last = clock.now()

    runs = run_methods(target, requests, methods, settings, note)
    return runs, [spent[label] for label in labels]
