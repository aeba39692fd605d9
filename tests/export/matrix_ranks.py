"""Answers of trained models on several ranks to the odd requests of each.

    python matrix_ranks.py RUN ...

by each rank, with a launcher's variables. Rank R's answers to the requests of RUN go to RUN/answers-R.safetensors, as `<request's number>/<output>`.
The second rank goes through the requests from the last one on, so that the ranks have different numbers of rows.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from emberline.train.checkpoint import load_trained
from emberline.train.data import batch_from_encoded
from emberline.train.scoring.model import open_scorer
from emberline.train.sharding.process_group import process_group

sys.path.insert(0, str(Path(__file__).parent))

from odd_requests import cases_of  # type: ignore[import-not-found]


def main() -> None:
    """Answer, and write the answers down."""
    torch.set_num_threads(1)
    with process_group("cpu") as ranks:
        for run in map(Path, sys.argv[1:]):
            cases = list(enumerate(cases_of(load_trained(run))))
            found: dict[str, Tensor] = {}
            with open_scorer(run, ranks) as scorer:
                assert scorer.is_sharded
                for number, case in cases if ranks.is_first else cases[::-1]:
                    answers = scorer.answers(batch_from_encoded(scorer.features, case.encoded))
                    found |= {f"{number}/{name}": answer.contiguous() for name, answer in answers.items()}
            save_file(found, run / f"answers-{ranks.rank}.safetensors")


if __name__ == "__main__":
    main()
