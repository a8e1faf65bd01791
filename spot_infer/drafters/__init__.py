"""One small file a drafter: order (SPOT), chain (untrained confidence order), oracle, random."""

from spot_infer.drafters.chain import ChainDrafter
from spot_infer.drafters.oracle import OracleDrafter
from spot_infer.drafters.order import DraftSettings, OrderDrafter
from spot_infer.drafters.random import RandomDrafter

__all__ = ["ChainDrafter", "DraftSettings", "OracleDrafter", "OrderDrafter", "RandomDrafter"]
