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

    def look_ahead(self) -> None:
        """Lay out the block after the root's, all masked, behind the root as it is."""
        root = self.of_node[0]
        assert root is not None
        self.next_block = self._add(Replica(self.replicas[root].state.following(), root))

    def _add(self, replica: Replica) -> int:
        self.replicas.append(replica)
        return len(self.replicas) - 1


def lay_out(
    unwritten: tuple[BlockState, ...],
    root: BlockState,
    graph: DraftGraph,
    end: int,
    vocab_size: int,
    look_ahead: bool = False,
) -> RowReplicas:
    """Replicas of `root` and of the states drafted from it, behind the finished blocks that the cache does not hold.

    `end`: first position that is never returned; `vocab_size`: token ids lie below it. With `look_ahead` the block
    after the root's is laid out as well.
    """
    laid = RowReplicas()
    laid.of_node.append(laid.add_state((*unwritten, root)))
    if look_ahead:
        laid.look_ahead()
    for commits in graph.commits[1:]:
        known = all(0 <= token < vocab_size for _, token in commits)
        blocks = unfold(root, commits, end) if known else None
        laid.of_node.append(None if blocks is None else laid.add_state((*unwritten, *blocks)))
    return laid


def lay_out_write(unwritten: tuple[BlockState, ...]) -> RowReplicas:
    """Replicas of finished blocks alone, for a forward that only writes them to the cache."""
    laid = RowReplicas()
    laid.add_finished(unwritten)
    return laid
