"""MMoE (Ma et al., 2018, "Modeling Task Relationships in Multi-task Learning with Multi-gate Mixture-of-Experts").

Letters used in shapes: B rows, D width of the group, E experts, H width of an expert.
"""

import torch
from torch import Tensor, nn

from emberline.errors import ConfigError
from emberline.train.config.model_config import MlpConfig, MmoeConfig, TaskTowerConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.models.groups import check_groups
from emberline.train.models.mlp import MLP, LogitLayer


class Gate(nn.Module):
    """How much of each expert a task takes: an MLP, where there is one, a linear layer and a softmax.

    Args:
        in_dim: D.
        config: the hidden layers, or None.
        num_expert: E.
    """

    def __init__(self, in_dim: int, config: MlpConfig | None, num_expert: int) -> None:
        super().__init__()
        self.mlp = MLP(in_dim, config) if config is not None else None
        self.linear = nn.Linear(in_dim if self.mlp is None else self.mlp.out_dim, num_expert)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, D] -> [B, E], each row adding up to 1."""
        return torch.softmax(self.linear(inputs if self.mlp is None else self.mlp(inputs)), dim=1)


class TaskTower(nn.Module):
    """From a task's mixture of experts to its logits.

    Args:
        in_dim: H.
        config: of the task.
    """

    def __init__(self, in_dim: int, config: TaskTowerConfig) -> None:
        super().__init__()
        self.mlp = MLP(in_dim, config.mlp) if config.mlp is not None else None
        self.output = LogitLayer(in_dim if self.mlp is None else self.mlp.out_dim, config.num_class)

    def forward(self, mixture: Tensor) -> Tensor:
        """[B, H] -> [B], or [B, C] for C classes."""
        logits: Tensor = self.output(mixture if self.mlp is None else self.mlp(mixture))
        return logits


class MmoeHead(nn.Module):
    """Experts that all tasks share, and for each task a gate that mixes them and a tower.

    Groups: one, [B, D].

    Raises:
        ConfigError: there are several groups, or it is a sequence.
    """

    def __init__(self, embedding_group: EmbeddingGroup, config: MmoeConfig) -> None:
        super().__init__()
        names = embedding_group.group_names()
        if len(names) != 1:
            raise ConfigError(f"mmoe reads one feature group, found {', '.join(names)}; put all features into one")
        check_groups(embedding_group, names, "mmoe")
        self.group = names[0]
        width = embedding_group.group_total_dim(self.group)
        self.task_names = tuple(task.tower_name for task in config.task_towers)
        self.experts = nn.ModuleList(MLP(width, config.expert_mlp) for _ in range(config.num_expert))
        self.gates = nn.ModuleList(Gate(width, config.gate_mlp, config.num_expert) for _ in config.task_towers)
        self.task_towers = nn.ModuleList(TaskTower(config.expert_mlp.hidden_units[-1], task) for task in config.task_towers)

    def forward(self, groups: dict[str, Tensor]) -> dict[str, Tensor]:
        """`logits_<task>` of each task: [B], or [B, C] for C classes."""
        inputs = groups[self.group]
        experts = torch.stack([expert(inputs) for expert in self.experts], dim=1)  # [B, E, H]
        logits = {}
        for name, gate, tower in zip(self.task_names, self.gates, self.task_towers, strict=True):
            mixture = torch.bmm(gate(inputs).unsqueeze(1), experts).squeeze(1)
            logits[f"logits_{name}"] = tower(mixture)
        return logits
