"""What evaluation reads of tables that grow, in one compiled call: keys are found, and vectors added up while the next ones are on their way."""

from collections.abc import Sequence

import torch
from torch import Tensor

from emberline.train.dynamic.bank import KeyedBank, KeyedBlock
from emberline.train.dynamic.keyed import KeyedRows
from emberline.train.dynamic.slots import THREADED_IDS, BagsOfRead, SlotIndex


class PooledReads:
    """Sums of the bags of all reads, bit by bit as torch adds them up.

    Args:
        bank: of float32, all of it in plain memory.
        indexes: of each table.
    """

    def __init__(self, bank: KeyedBank, indexes: Sequence[SlotIndex]) -> None:
        self._bank, self._indexes, self._width = bank, tuple(indexes), bank.total_dim  # held: their addresses are given away
        reads, column = [], 0
        for place in bank.reads:
            block, within = bank.keyed(place)
            unknown = block.weights[block.fixed_row(within, is_unadmitted=False)]
            reads.append(BagsOfRead(indexes[place].address, block.view(block.weights, within).data_ptr(), unknown.data_ptr(), block.dim, column))
            column += block.dim
        self._reads = (BagsOfRead * len(reads))(*reads)

    def pooled(self, keys: Tensor, offsets: Tensor, num_rows: int) -> Tensor:
        """[B, sum of all d] float32; zeros for empty bags. Keys without a row read their table's vector of unknown ids.

        Args:
            keys: int64 [N], read by read, each row by row.
            offsets: int64 [reads * B + 1], from 0 to N, never falling.
            num_rows: B, of each read.
        """
        keys, offsets = keys.contiguous(), offsets.contiguous()
        vectors = torch.empty(num_rows, self._width)
        threads = torch.get_num_threads() if len(keys) >= THREADED_IDS else 1
        addresses = (keys.data_ptr(), offsets.data_ptr(), vectors.data_ptr())
        self._indexes[0].library.emberline_keys_pool(self._reads, len(self._reads), num_rows, self._width, *addresses, threads)
        return vectors


def pooled_reads(bank: KeyedBank, keyed: Sequence[KeyedRows]) -> PooledReads | None:
    """The one call, where it can be had: of float32 in plain memory, with the compiled index; else None."""
    indexes = [table.index for table in keyed if isinstance(table.index, SlotIndex)]
    is_plain = bank.dtype == torch.float32 and all(type(block) is KeyedBlock for block in bank.blocks)
    return PooledReads(bank, indexes) if is_plain and len(indexes) == len(keyed) else None
