"""Sharding: the process group, the plan that says which rank holds which table, and `DistributedModelParallel` run by it."""

from emberline.train.sharding.plan import create_single_process_plan
from emberline.train.sharding.process_group import Ranks, process_group
from emberline.train.sharding.shard import shard_model
from emberline.train.sharding.sharders import create_sharders

__all__ = ["Ranks", "create_sharders", "create_single_process_plan", "process_group", "shard_model"]
