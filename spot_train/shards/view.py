"""What `spot-train shards info` prints. Reads nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table


def print_description(console: Console, found: Mapping[str, Any]) -> None:
    """Print what `describe` found."""
    grid = Table.grid(padding=(0, 2))
    for name, text in _lines(found):
        grid.add_row(name, text)
    console.print(grid)
    commits = max(1, found["commits"])
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("array", "dtype", "a row a", "bytes a commit"):
        table.add_column(title, justify="right" if title.startswith("bytes") else "left")
    for name, array in sorted(found["arrays"].items(), key=lambda one: -one[1]["bytes"]):
        width = "" if array["columns"] is None else f" x {array['columns']}"
        row = {"rows": "masked slot", "trajectories": "trajectory"}.get(array["rows"], array["rows"].removesuffix("s"))
        table.add_row(name, array["dtype"] + width, row, f"{array['bytes'] / commits:.1f}")
    console.print(table)
    console.print("Checksums were not compared: spot-train shards verify does.", style="dim")


def print_study(console: Console, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what `study` measured."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    titles = ["bytes", "all", "accuracy", "depth 0", *(f"NFE {budget}" for budget in rows[0]["nfe"])]
    for title in ["probabilities as", *titles]:
        table.add_column(title, justify="left" if title.startswith("prob") else "right", no_wrap=True)
    for row in rows:
        accuracy, size = row["accuracy"], row["bytes_a_commit"]
        nfe = [f"{one['nfe']:.2f} {one['change']:+.2f}{_error(one['change_error'])}" for one in row["nfe"].values()]
        shares = [f"{accuracy['all']:.4f}", f"{accuracy['depth_0']:.4f}"]
        table.add_row(row["encoding"], f"{size['probabilities']:.0f}", f"{size['all']:.0f}", *shares, *nfe)
    console.print(table)
    console.print(
        f"{rows[0]['trajectories']} held-out trajectories, a drafter trained on the first encoding. Bytes a commit: "
        "of the probabilities, and of all a shard holds. Beside NFE: its paired change a trajectory, standard error.",
        soft_wrap=True,
        highlight=False,
    )


def _error(value: float | None) -> str:
    """Behind a mean; nothing where there was one value."""
    return "" if value is None else f"±{value:.2f}"


def _lines(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    attributes, target = found["attributes"], found["attributes"]["target"]
    trajectories, commits = max(1, found["trajectories"]), max(1, found["commits"])
    complete = "complete" if found["shards"] == found["leases"] else "incomplete"
    yield "set", f"{found['path']}: {found['shards']} of {found['leases']} shards, {complete}"
    split = f"{found['heldout']:,} held out, {found['trajectories'] - found['heldout']:,} to train on"
    yield "trajectories", f"{found['trajectories']:,} ({split})"
    yield (
        "commits",
        f"{found['commits']:,} in {found['steps']:,} steps, {commits / trajectories:.1f} a trajectory; "
        f"{found['rows'] / commits:.1f} table rows a commit",
    )
    size = found["bytes"]
    yield "size", f"{decimal(size)}, {decimal(size // trajectories)} a trajectory, {size / commits:,.0f} bytes a commit"
    hashes = ", ".join(f"{name} {target[f'{name}_hash'][:12]}" for name in ("config", "weights") if _has(target, name))
    revision = f" at {target['revision']}" if target.get("revision") else ""
    yield "target", f"{target['name']}{revision}, {target.get('dtype', 'dtype not recorded')}, {hashes or 'no hashes'}"
    yield "block length", str(attributes["block_length"])
    yield "rule", _pairs(attributes["rule"])
    yield "sampling", _pairs(attributes["sampling"])
    methods = ", ".join(f"{count:,} shards by {name}" for name, count in found["methods"].items())
    yield "decoding", _pairs(attributes.get("decoding", {}))
    yield "collected", f"{methods}; {found['nfe']:,} target forwards"
    yield from _prompts(found)
    for number, part in enumerate(attributes.get("merged", ()), 1):
        yield f"merged {number}", f"{part['trajectories']:,} trajectories of {_sources(part.get('prompts', {}))}"
    yield "recipe", str(attributes.get("recipe_hash", "not recorded"))
    yield "written by", _pairs(attributes.get("versions", {}))


def _prompts(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    prompts, report = found["attributes"].get("prompts", {}), found["prompts"]
    fraction = f", held-out fraction {prompts['heldout_fraction']:g}" if "heldout_fraction" in prompts else ""
    yield "prompts", f"{_sources(prompts)}{fraction}"
    skipped = ", ".join(f"{count:,} {reason}" for reason, count in report.get("skipped", {}).items() if count)
    if "rows" in report:
        yield "", f"{report['used']:,} used of {report['rows']:,} rows; skipped: {skipped or 'none'}"


def _sources(prompts: Mapping[str, Any]) -> str:
    return ", ".join(str(one.get("path_or_id")) for one in prompts.get("sources", ())) or "not recorded"


def _has(target: Mapping[str, Any], name: str) -> bool:
    return bool(target.get(f"{name}_hash"))


def _pairs(values: Mapping[str, Any]) -> str:
    shown = ((key, value) for key, value in values.items() if value not in (None, [], "", {}))
    return ", ".join(f"{key} {value}" for key, value in shown)
