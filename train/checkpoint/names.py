"""A model's tensors under names that do not depend on how it is sharded.

tables/<table>/weight                the table's vectors
tables/<table>/<moment>              the sparse optimiser's moments, under PyTorch's names: sum, exp_avg, ...
tables/<table>/step                  how many updates they have had
zch/<table>/<part>                   the id map of a ZCH table
dynamic/<table>/<part>               all of a table that grows
dense/<parameter or buffer>          everything else, under its path in the model
dense_optim/<parameter>/<state>      the dense optimiser's state, under torch's names: exp_avg, step, ...
ema/<parameter>                      the moving average of a dense parameter, where the config asks for them
scaler/<part>                        the loss scale and its counter, likewise
rng/<rank>/torch                     the state of torch's generator on each rank; rng/<rank>/cuda that of its GPU, where it has one
"""

import re
from collections.abc import Mapping

from torch import Tensor, nn

from emberline.errors import ConfigError
from emberline.schema import TableKind
from emberline.train.models.model import RecModel

NamedTensors = dict[str, Tensor]
_TABLE_WEIGHT = re.compile(r"(?:.*\.)?(?:embedding_bags|embeddings)\.([^.]+)\.weight")


def table_tensors(model: RecModel) -> NamedTensors:
    """The live weights of a model's tables of fixed rows; only before sharding."""
    tensors: NamedTensors = {}
    growing = growing_tables(model)
    for module in (model.embedding_group.pooled, model.embedding_group.sequence_tables):
        for key, value in module.state_dict().items():
            match = _TABLE_WEIGHT.fullmatch(key)
            if match and match[1] not in growing:
                tensors[f"tables/{match[1]}/weight"] = value
    return tensors


def growing_tables(model: RecModel) -> list[str]:
    """The names of a model's tables that grow, in order."""
    return [table.name for table in model.embedding_group.tables if table.kind is TableKind.DYNAMIC]


def dense_tensors(model: RecModel) -> dict[str, Tensor]:
    """The live parameters and buffers of everything that is not a table.

    Raises:
        ConfigError: a user's module keeps state that is no tensor.
    """
    group = model.embedding_group
    parts: list[tuple[str, nn.Module]] = [("head.", model.head)]
    parts += [(f"embedding_group.{name}.", getattr(group, name)) for name in ("emb_impls", "seq_emb_impls", "encoders")]
    tensors = {f"dense/{name}": value for prefix, part in parts for name, value in part.state_dict(prefix=prefix).items()}
    strange = [name for name, value in tensors.items() if not isinstance(value, Tensor)]
    if strange:
        raise ConfigError(f"the model's state must be tensors, to be kept in checkpoints; {', '.join(strange)} is something else")
    return tensors


def average_tensors(model: RecModel) -> dict[str, Tensor]:
    """The live parameters that a training step keeps moving averages of, by the averages' names."""
    group = model.embedding_group
    tables = {id(weight) for weight in group.table_weights().values()}
    named = ((name, parameter) for name, parameter in model.named_parameters() if id(parameter) not in tables)
    return {f"ema/{name}": parameter for name, parameter in named if parameter.requires_grad}


def dense_optimizer_tensors(state: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The dense optimiser's state: by parameter and state name -> by one name."""
    return {f"dense_optim/{parameter}/{name}": value for parameter, values in state.items() for name, value in values.items()}


def split_dense_optimizer_tensors(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The reverse of `dense_optimizer_tensors`."""
    state: dict[str, dict[str, Tensor]] = {}
    for full_name, value in tensors.items():
        parameter, _, name = full_name.removeprefix("dense_optim/").rpartition("/")
        state.setdefault(parameter, {})[name] = value
    return state


def generator_name(rank: int, kind: str = "torch") -> str:
    """The name of the state of a rank's generator."""
    return f"rng/{rank}/{kind}"


def is_generator(name: str) -> bool:
    """Whether a name is one of those."""
    return name.startswith("rng/")
