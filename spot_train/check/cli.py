"""`spot-train check`: options in, a verdict out. Heavy libraries load when the command runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spot_train.cli_options import BlockLengthOption, MaskOption, ThreadsOption, set_threads


def check(
    target: Annotated[
        str, typer.Argument(help="Target (folder, hub id, builtin: path) or a recipe.", show_default=False)
    ],
    drafter: Annotated[str | None, typer.Option(help="Exported drafter; default the untrained chain.")] = None,
    prompts: Annotated[int, typer.Option(min=1, help="Prompts decoded, from the first.")] = 16,
    input_: Annotated[
        Path | None,
        typer.Option("--input", help="JSONL with prompt, messages or tokens; default a held-out pool."),
    ] = None,
    rule: Annotated[
        list[str] | None,
        typer.Option(help="Resolution: float32, bfloat16 or e: p >= 1 - e tie; default both. Repeatable."),
    ] = None,
    bitwise: Annotated[bool, typer.Option("--bitwise", help="Decode in bitwise mode, and compare every bit.")] = False,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16, float16 or float64.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1, ...")] = None,
    block_length: BlockLengthOption = None,
    mask_id: MaskOption = None,
    cache: Annotated[str | None, typer.Option(help="Under full attention: none, prefix or dual.")] = None,
    budget: Annotated[int | None, typer.Option(min=1, help="Most drafted states a round; default 8.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Prompts decoded together; default 8.")] = None,
    max_new_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens a prompt; default 128.")] = None,
    threads: ThreadsOption = None,
    json_: Annotated[Path | None, typer.Option("--json", help="Also write the whole record to this file.")] = None,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="With a recipe: set a key, section.key=value. Repeatable.")
    ] = None,
) -> None:
    """Whether "lossless" holds for a target in a dtype on this machine. Exit code 1 where something does not hold."""
    from rich.console import Console

    from spot_infer.atomic import check_place, write_json
    from spot_infer.checkpoint import load_drafter
    from spot_infer.transition import named_resolution
    from spot_train.check.decoding import RESOLUTIONS
    from spot_train.check.run import check as run
    from spot_train.check.subject import SubjectOptions, load_subject
    from spot_train.check.view import print_check
    from spot_train.provenance import provenance
    from spot_train.recipe.recipe import resolve_path

    if json_ is not None:
        check_place(json_)
    set_threads(threads)
    loading = {"dtype": dtype, "device": device, "block_length": block_length, "mask_id": mask_id, "cache": cache}
    subject = load_subject(
        SubjectOptions(
            target=target,
            prompts=prompts,
            input=input_,
            overrides=tuple(set_ or ()),
            loading={name: value for name, value in loading.items() if value is not None},
            budget=budget,
            batch_size=batch_size,
            max_new_tokens=max_new_tokens,
            resolutions=tuple(map(named_resolution, rule or ())) or RESOLUTIONS,
        )
    )
    order = None
    if drafter is not None:
        order = load_drafter(resolve_path(drafter, Path.cwd())).to(device=subject.target.device)
        order.check_block_length(subject.target.spec.block_length)
    with Console(stderr=True).status("check") as status:
        found = run(subject, order, bitwise or subject.bitwise, drafter or "chain", progress=status.update)
    if json_ is not None:
        write_json(json_, {**found.to_dict(), "provenance": provenance()})
    print_check(Console(), found)
    if not found.holds:
        raise typer.Exit(1)
