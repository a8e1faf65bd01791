"""The active block as a terminal picture, one frame a round: the paper's Figure 1.

Red is committed (bold where this round committed it, with a tick where it had been drafted), amber is drafted and not
accepted, grey is masked with its stale argmax. Beside it the round's draft graph. Knows rounds; knows nothing about how
they came about.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from spot_infer.blocks import Commit
from spot_infer.graph import DraftGraph
from spot_infer.requests import Round

COMMITTED = "red"
NEW = "bold red"
DRAFTED = "yellow"
MASKED = "dim"
CELL_WIDTH = 9
GRAPH_LINES = 12
GRAPH_WIDTH = 36
_FRAME_S = 1 / 15

TokenText = Callable[[int], str]


def visible(text: str, width: int = CELL_WIDTH - 1) -> str:
    """A token's text on one line: spaces and line breaks drawn, cut to `width`."""
    if text.startswith("<|") and text.endswith("|>") and len(text) > 4:
        text = f"⟨{text[2:-2]}⟩"
    drawn = text.replace("\n", "↵").replace("\t", "⇥").replace(" ", "␣") or "∅"
    return drawn if len(drawn) <= width else drawn[: width - 1] + "…"


def block_cells(round_: Round, token_text: TokenText) -> list[tuple[str, str]]:
    """(text, style) of every slot after `round_`."""
    start, mask_id = round_.state.start, round_.state.mask_id
    drafted = _drafted_tokens(round_.graph)
    stale = {}
    if round_.tables:
        newest = round_.tables[-1]
        stale = dict(zip(newest.slots.tolist(), newest.top_token[:, 0].tolist(), strict=True))
    fresh = {commit.position - start: (commit.token, step) for step in round_.steps for commit in step}
    last = round_.steps[-1] if round_.steps else frozenset()
    cells: list[tuple[str, str]] = []
    for slot, token in enumerate(round_.state.tokens):
        if token != mask_id:
            cells.append((visible(token_text(token)), COMMITTED))
        elif slot in fresh:
            token, step = fresh[slot]
            tick = "" if step == last else "✓"
            cells.append((visible(token_text(token), CELL_WIDTH - 2) + tick, NEW))
        elif start + slot in drafted:
            cells.append((visible(token_text(drafted[start + slot].token)), DRAFTED))
        elif slot in stale:
            cells.append((visible(token_text(stale[slot])), MASKED))
        else:
            cells.append(("·", MASKED))
    return cells


def _drafted_tokens(graph: DraftGraph | None) -> dict[int, Commit]:
    """Per position the commit of the heaviest drafted state that fills it."""
    if graph is None:
        return {}
    heaviest = sorted(range(1, len(graph.keys)), key=lambda node: graph.masses[node])
    return {commit.position: commit for node in heaviest for commit in graph.commits[node]}


@dataclass(frozen=True)
class GraphNode:
    """One drafted state as a line: the commits that lead to it from `parent`."""

    node: int
    parent: int
    depth: int
    commits: tuple[Commit, ...]
    mass: float
    accepted: bool


def graph_nodes(round_: Round) -> list[GraphNode]:
    """The drafted states depth first, each under the first parent that reaches it, accepted branches first."""
    graph = round_.graph
    if graph is None:
        return []
    accepted = set()
    node: int | None = 0
    for step in round_.steps[:-1]:
        node = graph.child(node, step) if node is not None else None
        if node is not None:
            accepted.add(node)
    children: dict[int, list[int]] = {}
    for child in range(1, len(graph.keys)):
        children.setdefault(_parent(graph, child, accepted), []).append(child)
    lines: list[GraphNode] = []
    waiting = [(child, 0, 0) for child in _ordered(children.get(0, []), graph, accepted)]
    while waiting:
        child, parent, depth = waiting.pop(0)
        written = tuple(sorted(graph.commits[child] - graph.commits[parent]))
        lines.append(GraphNode(child, parent, depth, written, graph.masses[child], child in accepted))
        waiting[:0] = [
            (grandchild, child, depth + 1) for grandchild in _ordered(children.get(child, []), graph, accepted)
        ]
    return lines


def _parent(graph: DraftGraph, child: int, accepted: set[int]) -> int:
    reached = [
        node
        for node in range(len(graph.keys))
        if graph.commits[node] < graph.commits[child]
        and graph.child(node, graph.commits[child] - graph.commits[node]) == child
    ]
    deepest = max(len(graph.commits[node]) for node in reached)
    nearest = [node for node in reached if len(graph.commits[node]) == deepest]
    return next((node for node in nearest if node in accepted), nearest[0])


def _ordered(nodes: list[int], graph: DraftGraph, accepted: set[int]) -> list[int]:
    return sorted(nodes, key=lambda node: (node not in accepted, -graph.masses[node]))


class LiveView:
    """Follows one request of a run; `update` with every round of it, render with rich at any time. `writes`: the target
    caches finished blocks, which costs draft-free decoding a forward each."""

    def __init__(
        self, token_text: TokenText, text_of: Callable[[list[int]], str], drafting: bool, writes: bool = True
    ) -> None:
        self.token_text = token_text
        self.text_of = text_of
        self.drafting = drafting
        self.writes = writes
        self.final: list[int] = []
        self.latest: Round | None = None
        self.blocks: set[int] = set()
        self.nfe = self.steps = self.accepted = self.drafted_rounds = 0

    def update(self, round_: Round) -> None:
        self.nfe += 1
        self.blocks |= {min(step).position // len(round_.state.tokens) for step in round_.steps}
        self.steps += len(round_.steps)
        self.accepted += max(0, len(round_.steps) - 1)
        self.drafted_rounds += round_.graph is not None and len(round_.graph) > 0
        self.final += round_.final_tokens
        if round_.steps:
            self.latest = round_

    @property
    def stats_line(self) -> str:
        """Forwards so far beside what draft-free decoding needs for the same steps."""
        free = self.steps + (len(self.blocks) - 1 if self.writes else 0)
        line = f"NFE {self.nfe} · draft-free {free} · {free / max(self.nfe, 1):.2f}x fewer forwards"
        if self.drafting:
            line += f" · {self.accepted / max(self.drafted_rounds, 1):.1f} accepted a round"
        return line

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if self.latest is None:
            return
        round_ = self.latest
        width = options.max_width
        yield Panel(Text(_tail(self.text_of(self.final), 4 * (width - 4)) or " "), title="text", border_style="dim")
        block = _block(round_, self.token_text, width)
        graph = _graph(round_, self.token_text)
        if graph is not None and width >= _block_width(len(round_.state.tokens), width) + GRAPH_WIDTH:
            grid = Table.grid(padding=(0, 2))
            grid.add_row(block, graph)
            yield grid
        else:
            yield Group(*(part for part in (block, graph) if part is not None))
        yield _legend(self.drafting)
        yield Text(self.stats_line)


def _columns(block_length: int, width: int) -> int:
    room = max(1, min(8, (width - 6) // CELL_WIDTH))
    return next(count for count in range(room, 0, -1) if block_length % count == 0 or count == 1)


def _block_width(block_length: int, width: int) -> int:
    return _columns(block_length, width) * CELL_WIDTH + 6


def _block(round_: Round, token_text: TokenText, width: int) -> RenderableType:
    cells = block_cells(round_, token_text)
    columns = _columns(len(cells), width)
    grid = Table.grid(padding=(0, 1, 0, 0))
    grid.add_column(style="dim", justify="right", width=3)
    for _ in range(columns):
        grid.add_column(width=CELL_WIDTH - 1, no_wrap=True)
    for first in range(0, len(cells), columns):
        grid.add_row(str(first), *(Text(text, style=style) for text, style in cells[first : first + columns]))
    return Panel(grid, title=f"block at position {round_.state.start}", border_style="dim", expand=False)


def _graph(round_: Round, token_text: TokenText) -> RenderableType | None:
    nodes = graph_nodes(round_)
    if not nodes:
        return None
    lines = Text()
    for line in nodes[:GRAPH_LINES]:
        commits = " ".join(f"{c.position - round_.state.start}:{visible(token_text(c.token))}" for c in line.commits)
        style = NEW if line.accepted else DRAFTED
        mark = " ✓" if line.accepted else ""
        indent = "  " * min(line.depth, 12)
        lines.append(f"{indent}└ {commits} ", style=style).append(f"{line.mass:.2f}{mark}\n", style="dim")
    if len(nodes) > GRAPH_LINES:
        lines.append(f"and {len(nodes) - GRAPH_LINES} more states\n", style="dim")
    lines.rstrip()
    accepted = sum(line.accepted for line in nodes)
    return Panel(lines, title=f"drafted {len(nodes)}, accepted {accepted}", border_style="dim", expand=False)


def _legend(drafting: bool) -> Text:
    legend = Text().append("committed", style=COMMITTED).append(" · ").append("this round", style=NEW).append(" · ")
    if drafting:
        legend.append("✓ had been drafted", style=NEW).append(" · ").append("drafted", style=DRAFTED).append(" · ")
    return legend.append("masked, stale argmax", style=MASKED)


def _tail(text: str, characters: int) -> str:
    return text if len(text) <= characters else "…" + text[-characters:]


class _Screen:
    """The view of the first request that is not finished."""

    def __init__(self, new_view: Callable[[], LiveView]) -> None:
        self.new_view = new_view
        self.views: dict[int, LiveView] = {}
        self.finished: set[int] = set()

    def update(self, round_: Round) -> None:
        self.views.setdefault(round_.request, self.new_view()).update(round_)
        if round_.result is not None:
            self.finished.add(round_.request)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        active = [request for request in self.views if request not in self.finished] or list(self.views)[-1:]
        if not active:
            yield Text("encoding the prompt", style=MASKED)
            return
        yield self.views[active[0]]
        if len(active) > 1:
            yield Text(f"and {len(active) - 1} more in the batch", style=MASKED)


@contextmanager
def live_frames(
    new_view: Callable[[], LiveView], console: Console, pace_s: float = 0.0
) -> Iterator[Callable[[Round], None]]:
    """A callback that shows rounds as they come, each for at least `pace_s` seconds."""
    screen = _Screen(new_view)
    with Live(screen, console=console, auto_refresh=False) as live:
        shown_s = 0.0

        def show(round_: Round) -> None:
            nonlocal shown_s
            screen.update(round_)
            now = time.monotonic()
            if pace_s or now - shown_s >= _FRAME_S or round_.result is not None:
                live.refresh()
                shown_s = now
            if pace_s and round_.steps:
                time.sleep(pace_s)

        yield show
    if not console.is_terminal:
        console.line()
