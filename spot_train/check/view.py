"""The check as a terminal picture. Measures nothing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from spot_infer.blocks import Commit, Step
from spot_infer.targets.protocol import Target
from spot_infer.verify import distribution_preserving, verdict_line
from spot_train.check.decoding import DecodingAudit
from spot_train.check.flips import Flip, Flips
from spot_train.check.run import Check
from spot_train.check.structure import Line
from spot_train.check.suggestions import Remedy

_SHOWN_FLIPS = 5
_COUNTED = ("identical", "flips", "steps", "a step", "faults", "moved")


def print_check(console: Console, found: Check) -> None:
    """Everything that was found, the verdict last."""
    spec, settings = found.subject.target.spec, found.subject.settings
    _say(
        console,
        f"{found.subject.name}: {spec.dtype} on {found.subject.target.device}, block length {spec.block_length}, "
        f"{len(found.subject.requests)} prompts of at most {settings.max_new_tokens} new tokens, batches of "
        f"{settings.batch_size}, drafter {found.drafter} at budget {settings.budget}",
    )
    _say(console, verdict_line(*distribution_preserving(spec, settings)))
    console.print(structure_table(found.lines))
    if found.audits:
        console.print(decoding_table(list(found.audits.values())))
    if found.bitwise:
        console.print(bitwise_table({name: audit.flips for name, audit in found.bitwise.items()}))
    for sentence in named_flips(found):
        _say(console, sentence)
    if found.audits and (sentence := fewest_flips(found.audits)):
        _say(console, sentence)
    if found.remedies:
        console.print(remedies_table(found.remedies))
        for remedy in found.remedies:
            if remedy.refused:
                _say(console, f"{remedy.setting}: {remedy.refused}")
    if found.bitwise_refused:
        _say(console, found.bitwise_refused)
    _say(console, verdict(found))


def _say(console: Console, text: str) -> None:
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def structure_table(lines: Sequence[Line]) -> Table:
    """One row a line."""
    table = _table("structure", "", "difference", "tolerance", "")
    for line in lines:
        verdict = "holds" if line.holds else "FAILS"
        table.add_row(line.name, line.statement, f"{line.difference:.2g}", f"{line.tolerance:.2g}", verdict)
    return table


def decoding_table(audits: Sequence[DecodingAudit]) -> Table:
    """Two rows a resolution: batches against one by one, drafted against draft-free."""
    table = _table("rule", "decoding", *_COUNTED, "ties")
    for audit in audits:
        table.add_row(str(audit.resolution), "batches", *_counts(audit.batches), f"{audit.tie_rate:.1%}")
        table.add_row("", "drafted", *_counts(audit.drafted), "")
    return table


def bitwise_table(runs: dict[str, Flips]) -> Table:
    """One row a resolution."""
    table = _table("rule", "bitwise", *_COUNTED)
    for resolution, flips in runs.items():
        table.add_row(resolution, "drafted", *_counts(flips))
    return table


def _counts(flips: Flips) -> list[str]:
    identical = f"{flips.identical}/{flips.prompts}"
    moved = f"{flips.largest_shift:.1e}" if flips.largest_shift else "0"
    return [identical, str(len(flips.flips)), str(flips.steps), f"{flips.rate:.1e}", str(len(flips.faults)), moved]


def remedies_table(remedies: Sequence[Remedy]) -> Table:
    """One row a remedy: flips of compared steps, by comparison and resolution."""
    resolutions = list(remedies[0].batches)
    kinds = [f"{compared}, {one}" for compared in ("batches", "drafted") for one in resolutions]
    table = _table("with", *kinds)
    for remedy in remedies:
        cells = [_share(runs.get(one)) for runs in (remedy.batches, remedy.drafted) for one in resolutions]
        table.add_row(remedy.setting, *cells)
    return table


def _share(flips: Flips | None) -> str:
    return "-" if flips is None else f"{len(flips.flips)}/{flips.steps}"


def fewest_flips(audits: dict[str, DecodingAudit]) -> str:
    """Which resolutions flip least by batch shape alone, where any does."""
    found = {name: audit.batches for name, audit in audits.items()}
    if not any(flips.flips for flips in found.values()):
        return ""
    counts = ", ".join(f"{len(flips.flips)} of {flips.steps} under {name}" for name, flips in found.items())
    least = min(flips.rate for flips in found.values())
    names = " and ".join(name for name, flips in found.items() if flips.rate == least)
    return f"Steps that batch shape alone flips, by resolution of the rule: {counts}; fewest under {names}."


def named_flips(found: Check) -> Iterator[str]:
    """Every fault and the first near-ties of every comparison, by prompt, position, tokens and gap."""
    comparisons = [
        (f"{audit.resolution} rule, {name}", flips)
        for audit in found.audits.values()
        for name, flips in (("batches against alone", audit.batches), ("drafted against draft-free", audit.drafted))
    ]
    comparisons += [(f"{one} rule, bitwise", audit.flips) for one, audit in found.bitwise.items()]
    for name, flips in comparisons:
        near = [flip for flip in flips.flips if flip.near_tie]
        for flip in [*flips.faults, *near[:_SHOWN_FLIPS]]:
            yield f"{name}: {describe(found.subject.target, flip)}"
        if len(near) > _SHOWN_FLIPS:
            yield f"{name}: {len(near) - _SHOWN_FLIPS} more near-ties"


def describe(target: Target, flip: Flip) -> str:
    """One flip in a sentence."""
    one = flip.divergence
    shown = " against ".join(_commits(target, step) for step in (one.control, one.other))
    what = "log-odds" if one.kind == "order" else "logits"
    verdict = "a near-tie" if flip.near_tie else "FAILS: more than rounding"
    return (
        f"prompt {flip.prompt} step {one.step} ({one.kind}), {shown}, gap {one.gap:.2g}: {what} that moved by "
        f"{flip.needed:.2g} flip it, rounding allows {flip.allowed:.2g}, {verdict}"
    )


def _commits(target: Target, step: Step) -> str:
    return " and ".join(_commit(target, commit) for commit in sorted(step)) or "nothing"


def _commit(target: Target, commit: Commit) -> str:
    text = "" if target.tokenizer is None else f" {target.tokenizer.decode([commit.token])!r}"
    return f"position {commit.position} token {commit.token}{text}"


def verdict(found: Check) -> str:
    """The last line."""
    if found.holds:
        flips = sum(len(runs.flips) for audit in found.audits.values() for runs in (audit.batches, audit.drafted))
        if found.bitwise:
            return "holds: drafted and draft-free runs are identical to the bit"
        return f"holds: {flips} flips, all near-ties" if flips else "holds: nothing flipped"
    failed = [f"{line.name}" for line in found.lines if not line.holds]
    failed += [f"decoding under the {one} rule" for one, audit in found.audits.items() if not audit.holds]
    failed += [f"bitwise mode under the {one} rule" for one, audit in found.bitwise.items() if not audit.holds]
    failed += ["bitwise mode"] if found.bitwise_refused else []
    return f"FAILS: {', '.join(failed)}"


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for number, name in enumerate(names):
        table.add_column(name, justify="left" if number < 2 else "right")
    return table
