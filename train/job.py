"""The training job: from a config and an empty folder, or a checkpoint, to a trained model.

    build ─► restore? ─► epoch: batch ─► loss ─► backward (tables learn here) ─► dense step ─► log? save? ─► evaluate ─► result

One process, or several that share each step's rows and the tables. A run that was killed at any moment and goes on from its newest checkpoint, on as
many ranks, ends with the same bits as one that was not. `job_run` has the run, `job_loop` its steps, `job_numbers` what it tells.
"""

from pathlib import Path

from emberline.train.checkpoint import store
from emberline.train.checkpoint.start import Beginning, Start, prepare
from emberline.train.config import PipelineConfig
from emberline.train.dynamic.options import KernelKind
from emberline.train.job_build import check_complete
from emberline.train.job_folder import claim_folder, newest_checkpoint, plan_of_checkpoint
from emberline.train.job_run import TrainingRun, TrainResult
from emberline.train.job_signals import SharedStop, StopRequest
from emberline.train.sharding import process_group
from emberline.train.sharding.shared_fate import shared_fate

__all__ = ["TrainResult", "run_training"]


def run_training(
    config: PipelineConfig,
    output: Path,
    *,
    resume: bool = False,
    stop: StopRequest | None = None,
    plan: Path | None = None,
    device: str = "cpu",
    begin: Beginning | None = None,
    accept_data_changes: bool = False,
    pipelined: bool | None = None,
    dynamic_kernel: KernelKind = KernelKind.AUTO,
) -> TrainResult:
    """Train what a config describes, with checkpoints in `output`; torch's generator is seeded and used.

    Where torchrun has started several processes, all of them call this, and train together.

    Args:
        config: a whole pipeline: data, features, groups, model, training.
        output: a new or empty folder, or with `resume` one that a run has written to; the same for all processes.
        resume: go on from the newest intact checkpoint; without one, begin. So does a run that torchrun has restarted.
        stop: asks for an end after the step under way, with a checkpoint.
        plan: the file of the plan to shard by; None: the planner makes one, or a checkpoint has one for as many ranks.
        device: `cpu` or `cuda`.
        begin: what a run that begins takes over; one that goes on has it already.
        accept_data_changes: go on, also from another run's place, though the data changed; a pass under way begins anew.
        pipelined: whether the next batches are copied, and their ids exchanged, while one is trained; None: on CUDA. The numbers are the same.
        dynamic_kernel: which kernel holds tables that grow.

    Raises:
        ConfigError: the config does not describe a run that this release can do, or the folder is in use or not empty.
        DataError: rows that cannot be read or trained on; names file and column.
        CheckpointError: with `resume`: the config or the data have changed, or every checkpoint is damaged.
        TrainingError: the loss became NaN or infinite, or another rank failed.
    """
    check_complete(config)
    start = prepare(begin or Beginning(), config) if not store.list_steps(output) else Start()
    with process_group(device) as ranks, shared_fate(ranks), claim_folder(output, resume=resume, ranks=ranks) as goes_on:
        checkpoint = newest_checkpoint(output, config, ranks) if goes_on else None
        if plan is None and checkpoint is not None:
            plan = plan_of_checkpoint(checkpoint, config, ranks)
        run = TrainingRun(
            config,
            output,
            SharedStop(StopRequest() if stop is None else stop, ranks),
            plan,
            ranks,
            pipelined=pipelined,
            dynamic_kernel=dynamic_kernel,
        )
        if checkpoint is not None:
            if begin is not None and ranks.is_first:
                print(*begin.unused(), sep="\n", end="\n" if begin.unused() else "")
            run.restore(checkpoint, accept_data_changes=accept_data_changes)
        else:
            run.begin(start, accept_data_changes=accept_data_changes)
        return run.train()
