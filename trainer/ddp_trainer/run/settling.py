"""Wait for the device and for the other ranks before a run saves or evaluates."""

from ddp_trainer.numerics.batch_norm import average_norm_statistics
from ddp_trainer.ranks.collectives import finish_updates
from ddp_trainer.run.garbage import Collector
from ddp_trainer.run.replicas import check_replicas
from ddp_trainer.run.run import Run


def settle(run: Run) -> None:
    """Finish the updates on the device, give all ranks the same model, and compare the ranks.

    The host runs ahead of the GPU. Without this wait, a rank whose update waits for a hung rank
    would seem to save or to evaluate, and these may take much longer than an update.

    Raises:
        ReplicasDifferError: On every rank, if the weights differ. Then they must not be saved.
    """
    step, learner = run.position.step, run.learner
    if run.synchronized_step == step:
        return
    finish_updates(learner.device)
    average_norm_statistics(learner.model, run.ranks.world_size, learner.gate)
    late = learner.synchronize()
    if late:
        run.report.warn(
            f"the loss began to change {len(late)} buffers after the first update, first"
            f' "{late[0]}"; from now on parallel.buffers applies to them'
        )
    check_replicas(run)
    run.synchronized_step = step
    Collector.collect_all()
