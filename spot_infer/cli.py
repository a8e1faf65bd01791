"""`spot-infer`: parse, call, print. The one place where errors become a sentence and an exit code.

torch and transformers load when a command needs them, so that `--help` is quick.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spot_infer.command import run_command
from spot_infer.errors import SpotError

if TYPE_CHECKING:
    from spot_infer.api import GenerationConfig

app = typer.Typer(
    name="spot-infer",
    help="Decode diffusion language models with drafts that never change the output.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

_WHERE, _WHAT, _HOW, _RULE, _OUT = "Models", "Output depends on", "Speed only", "Commit rule", "Input and output"


def _option(panel: str, help_: str, *names: str, **fields: Any) -> Any:
    return typer.Option(*names, help=help_, rich_help_panel=panel, **fields)


@app.command()
def generate(
    prompt: Annotated[list[str] | None, _option(_OUT, "One user message. Repeatable.")] = None,
    input_: Annotated[
        Path | None, _option(_OUT, "JSONL with `prompt`, `messages` or `tokens` a line.", "--input")
    ] = None,
    output: Annotated[Path | None, _option(_OUT, "JSONL of results; resumed if it has some.")] = None,
    as_json: Annotated[bool, _option(_OUT, "Print one JSON row a sample.", "--json")] = False,
    live: Annotated[bool | None, _option(_OUT, "Show the active block; on in a terminal.", "--live/--no-live")] = None,
    pace: Annotated[float, _option(_OUT, "Seconds to hold each round in view.", min=0)] = 0.0,
    target: Annotated[str | None, _option(_WHERE, "Folder or hub id. Default: the packaged tiny target.")] = None,
    drafter: Annotated[
        str | None, _option(_WHERE, "Folder, hub id, or untrained. Default: the packaged target's own.")
    ] = None,
    draft_free: Annotated[bool, _option(_WHERE, "No drafts.", "--draft-free")] = False,
    dtype: Annotated[str, _option(_WHERE, "auto, float32, bfloat16, float16 or float64.")] = "auto",
    device: Annotated[str | None, _option(_WHERE, "cpu, cuda, cuda:1, ...")] = None,
    revision: Annotated[str | None, _option(_WHERE, "Of the target on the hub.")] = None,
    block_length: Annotated[
        int | None, _option(_WHERE, "Slots a block; default the config's, else its family's.", min=1)
    ] = None,
    mask_id: Annotated[int | None, _option(_WHERE, "The mask token; default what the files name.", min=0)] = None,
    cache: Annotated[str | None, _option(_WHERE, "Under full attention: none, prefix or dual.")] = None,
    chat_template: Annotated[str | None, _option(_WHERE, "Jinja, or a file of it.")] = None,
    device_map: Annotated[str | None, _option(_WHERE, "Spread by transformers: auto.")] = None,
    tp_plan: Annotated[str | None, _option(_WHERE, "Sharded, under torchrun: auto.")] = None,
    threads: Annotated[int | None, _option(_WHERE, "CPU threads.", min=1)] = None,
    max_new_tokens: Annotated[int, _option(_WHAT, "Most tokens a sample.")] = 256,
    temperature: Annotated[float, _option(_WHAT, "0 is greedy.")] = 0.0,
    top_k: Annotated[int, _option(_WHAT, "0 keeps all tokens.")] = 0,
    top_p: Annotated[float, _option(_WHAT, "1 keeps all tokens.")] = 1.0,
    verifier: Annotated[str, _option(_WHAT, "coupled, uncoupled, greedy or rejection.")] = "coupled",
    seed: Annotated[int, _option(_WHAT, "Of the run.")] = 0,
    n: Annotated[int, _option(_WHAT, "Samples a prompt.", "--n", "-n")] = 1,
    stop: Annotated[list[str] | None, _option(_WHAT, "End at this text. Repeatable.")] = None,
    ignore_stop: Annotated[bool, _option(_WHAT, "Decode to the limit.", "--ignore-stop")] = False,
    raw: Annotated[bool, _option(_WHAT, "Skip the chat template.", "--raw")] = False,
    ranking: Annotated[str, _option(_RULE, "probability, margin or entropy.")] = "probability",
    resolution: Annotated[str, _option(_RULE, "float32, bfloat16 or a number.")] = "float32",
    selection: Annotated[str, _option(_RULE, "one, quota or threshold.")] = "one",
    quota: Annotated[int, _option(_RULE, "Slots a step, at least.")] = 1,
    threshold: Annotated[float, _option(_RULE, "Commit above this probability.")] = 0.9,
    budget: Annotated[str, _option(_HOW, "Most drafted states a round, or auto: as many as pay.")] = "8",
    cost_curve: Annotated[
        str | None, _option(_HOW, "For budget auto: file or named curve; default measures this machine once.")
    ] = None,
    floor: Annotated[float, _option(_HOW, "Smallest mass worth verifying.")] = 0.0,
    pad: Annotated[bool, _option(_HOW, "Pad every forward to 1 + budget states.", "--pad")] = False,
    layout: Annotated[str, _option(_HOW, "auto, concat or batch.")] = "auto",
    batch_size: Annotated[int, _option(_HOW, "Samples decoded together.")] = 8,
    boundary: Annotated[str, _option(_HOW, "seamless, fused or separate; auto is seamless where exact.")] = "auto",
    preset: Annotated[str, _option(_HOW, "default, or paper: separate boundaries, a tree, stale tables.")] = "default",
    bitwise: Annotated[
        bool, _option(_HOW, "One shape for every forward: layout batch, separate writes.", "--bitwise")
    ] = False,
) -> None:
    """Decode prompts. The drafter and the options under "Speed only" change forwards and time, never the text."""
    flags = dict(locals())
    if bool(prompt) == (input_ is not None):
        raise SpotError("give prompts with --prompt TEXT or with --input FILE, one of the two")
    if output is not None and input_ is None:
        raise SpotError("--output needs --input; for single prompts use --json and redirect it")
    config = _config(flags)
    from spot_infer.generate_run import generate_to_file, generate_to_terminal, load_run
    from spot_infer.prompts_io import PromptRow, Prompts, read_prompts

    if input_ is not None:
        prompts = read_prompts(input_)
    else:
        prompts = Prompts(tuple(PromptRow(i, text, i + 1) for i, text in enumerate(prompt or ())), "--prompt")
    loading = {name: flags[name] for name in _LOADING}
    run_ = load_run(target, drafter, draft_free, config, loading, threads)
    if output is not None:
        generate_to_file(run_, prompts, output)
    else:
        generate_to_terminal(run_, prompts, as_json=as_json, live=live, pace_s=pace)


_LOADING = (
    "dtype",
    "device",
    "revision",
    "block_length",
    "mask_id",
    "cache",
    "chat_template",
    "device_map",
    "tp_plan",
)


def _config(flags: Mapping[str, Any]) -> GenerationConfig:
    """The generation settings among the parsed flags, checked."""
    from dataclasses import fields

    from spot_infer.allocate import budget_option
    from spot_infer.api import GenerationConfig
    from spot_infer.transition import CommitRule

    try:
        resolution: str | float = float(flags["resolution"])
    except ValueError:
        resolution = flags["resolution"]
    rule = CommitRule(
        **{name: flags[name] for name in CommitRule().to_dict() if name != "resolution"}, resolution=resolution
    )
    flags = {**flags, "budget": budget_option(flags["budget"])}
    plain = {f.name: flags[f.name] for f in fields(GenerationConfig) if f.name not in ("rule", "stop")}
    config = GenerationConfig(**plain, rule=rule, stop=tuple(flags["stop"] or ()))
    config.settings(drafted=True)
    return config


@app.command()
def env(as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False) -> None:
    """Print what a bug report needs."""
    from spot_infer.environment import environment, environment_lines

    found = environment()
    typer.echo(json.dumps(found, indent=1) if as_json else "\n".join(environment_lines(found)))


def run(arguments: Sequence[str]) -> int:
    """One command; returns its exit code: 0, 2 for an error the user can fix, 130 after an interrupt."""
    try:
        return run_command(app, "spot-infer", arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def main() -> None:
    """Entry point of the `spot-infer` command."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
