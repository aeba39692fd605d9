"""Tables on the CPU that learn inside backward, with every optimiser that fbgemm's GPU kernels know, and two more.

`bank` lays tables out in memory (`memory`, `rows`) and finds a batch's rows in it; `fused` looks rows up and trains them (`segments` adds up
gradients, `optimizers` and `averages` have the update rules); `gate` can hold updates back, `copies` keeps tables equal that several ranks hold.
"""

from emberline.train.kernels.averages import ROW_OPTIMIZER, AdaDelta, RmsProp
from emberline.train.kernels.bank import Table, TableBank
from emberline.train.kernels.copies import Copies
from emberline.train.kernels.fused import FusedTables
from emberline.train.kernels.gate import UpdateGate
from emberline.train.kernels.optimizers import (
    Adagrad,
    Adam,
    Lamb,
    LarsSgd,
    Moment,
    PartialRowWiseAdam,
    PartialRowWiseLamb,
    RowOptimizer,
    RowWiseAdagrad,
    Sgd,
    WeightDecay,
)

__all__ = [
    "ROW_OPTIMIZER",
    "AdaDelta",
    "Adagrad",
    "Adam",
    "Copies",
    "FusedTables",
    "Lamb",
    "LarsSgd",
    "Moment",
    "PartialRowWiseAdam",
    "PartialRowWiseLamb",
    "RmsProp",
    "RowOptimizer",
    "RowWiseAdagrad",
    "Sgd",
    "Table",
    "TableBank",
    "UpdateGate",
    "WeightDecay",
]
