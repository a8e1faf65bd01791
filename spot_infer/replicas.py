"""A row's root and drafted states -> replicas: which blocks they stand on, and which replica stands for which state.

A finished block's state is the all-masked block after it, so a state that runs past its root's block stands on the
blocks it finishes; states that finish a block alike share its replica. Pure; knows nothing about layouts or caches.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spot_infer.blocks import BlockState, unfold
from spot_infer.graph import DraftGraph
from spot_infer.packing import Replica


@dataclass
class RowReplicas:
    """One row's replicas in a forward, ancestors first. of_node: the replica of every graph node, the root first, None
    where a node is no state that decoding can reach; next_block: the replica that looks ahead, if any."""

    replicas: list[Replica] = field(default_factory=list)
    of_node: list[int | None] = field(default_factory=list)
    next_block: int | None = None
    _finished: dict[tuple[BlockState, ...], int] = field(default_factory=dict)

    def start(self, replica: int) -> int:
        """Absolute position of the block that `replica` lies in."""
        return self.replicas[replica].state.start

    def add_finished(self, blocks: tuple[BlockState, ...]) -> int | None:
        """The replica of the last of consecutive finished `blocks`, laid out once; None for none."""
        if not blocks:
            return None
        if blocks not in self._finished:
            self._finished[blocks] = self._add(Replica(blocks[-1], self.add_finished(blocks[:-1]), read=False))
        return self._finished[blocks]

    def add_state(self, blocks: tuple[BlockState, ...]) -> int:
        """A replica of the last of `blocks`, behind the finished ones before it."""
        return self._add(Replica(blocks[-1], self.add_finished(blocks[:-1])))

    def look_ahead(self, blocks: tuple[BlockState, ...]) -> None:
        """Have the block after finished `blocks`, all masked, whether or not it was drafted."""
        wanted = Replica(blocks[-1].following(), self.add_finished(blocks))
        self.next_block = self.replicas.index(wanted) if wanted in self.replicas else self._add(wanted)

    def _add(self, replica: Replica) -> int:
        self.replicas.append(replica)
        return len(self.replicas) - 1


def lay_out(
    unwritten: tuple[BlockState, ...],
    root: BlockState,
    graph: DraftGraph,
    end: int,
    vocab_size: int,
    completed: BlockState | None = None,
) -> RowReplicas:
    """Replicas of `root` and of the states drafted from it, behind the finished blocks that the cache does not hold.

    `end`: first position that is never returned; `vocab_size`: token ids lie below it. completed: the root's block as
    it may end, behind which the next one is laid out as well.
    """
    laid = RowReplicas()
    laid.of_node.append(laid.add_state((*unwritten, root)))
    for commits in graph.commits[1:]:
        known = all(0 <= token < vocab_size for _, token in commits)
        blocks = unfold(root, commits, end) if known else None
        laid.of_node.append(None if blocks is None else laid.add_state((*unwritten, *blocks)))
    if completed is not None:
        laid.look_ahead((*unwritten, completed))
    return laid


def lay_out_write(unwritten: tuple[BlockState, ...]) -> RowReplicas:
    """Replicas of finished blocks alone, for a forward that only writes them to the cache."""
    laid = RowReplicas()
    laid.add_finished(unwritten)
    return laid
