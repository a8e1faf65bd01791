"""One small file a drafter: order (SPOT), chain; trees of confidence, odds, trajectories; graph, oracle, random."""

from spot_infer.drafters.calibrated_graph import CalibratedGraph, CalibratedGraphDrafter
from spot_infer.drafters.chain import ChainDrafter
from spot_infer.drafters.confidence_tree import ConfidenceTreeDrafter
from spot_infer.drafters.odds_tree import OddsTreeDrafter
from spot_infer.drafters.oracle import OracleDrafter
from spot_infer.drafters.order import DraftSettings, OrderDrafter
from spot_infer.drafters.random import RandomDrafter
from spot_infer.drafters.trajectory_tree import TrajectoryTreeDrafter

__all__ = [
    "CalibratedGraph",
    "CalibratedGraphDrafter",
    "ChainDrafter",
    "ConfidenceTreeDrafter",
    "DraftSettings",
    "OddsTreeDrafter",
    "OracleDrafter",
    "OrderDrafter",
    "RandomDrafter",
    "TrajectoryTreeDrafter",
]
