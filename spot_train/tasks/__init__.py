"""The evaluation tasks by name: `load_task("tiny")`. One file each; `docs/tasks.md` says where each comes from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from spot_infer.errors import SpotError
from spot_train.tasks import gsm8k, humaneval, math500, mbpp, tiny
from spot_train.tasks.sandbox import CodeExecutionNotAllowed
from spot_train.tasks.task import Example, Task

__all__ = ["TASKS", "CodeExecutionNotAllowed", "Example", "Task", "load_task"]

TASKS = {
    "gsm8k": gsm8k,
    "mbpp": mbpp,
    "humaneval": humaneval,
    "math500": math500,
    "tiny": tiny,
}


def load_task(name: str, path: str | Path | None = None, split: str | None = None, limit: int | None = None) -> Task:
    """The first `limit` examples of a task, in its official order (`tiny`: the families in turn).

    path: a local file instead of the task's own source. split: default the one that is evaluated. Raises SpotError for
    an unknown name or split and for rows that can't be read.
    """
    if name not in TASKS:
        raise SpotError(f"there is no task {name!r}; use {', '.join(TASKS)}")
    if limit is not None and limit < 1:
        raise SpotError(f"limit is {limit}; use at least 1 example")
    task = TASKS[name].load(path, split)
    return replace(task, examples=task.examples[:limit])
