"""``--launcher ray``: the ranks of a run as workers of Ray Train. The extra ``ray``, imported here alone.

Workers call ``train_rank`` like the ranks of every launcher. When one dies all are started again and go on
from the run directory, which they share; Ray keeps no checkpoints.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from genoctx.config import Config
from genoctx.errors import GenoctxError, LostContact, UsageError
from genoctx.run.desk import Attempt, Desk
from genoctx.run.driver import drive
from genoctx.run.launch import Place
from genoctx.run.loop import Outcome
from genoctx.run.monitor import Monitor
from genoctx.run.ranks import backend, patience
from genoctx.run.relay import Chatter, Message
from genoctx.run.remote_rank import Job, run_rank
from genoctx.run.rundir import checkpoint_step, latest_checkpoint

try:
    import ray
    from ray import train
    from ray.exceptions import RayActorError
    from ray.train.torch import TorchConfig, TorchTrainer
except ImportError as error:
    raise UsageError("ray is not installed", "install it: pip install 'genoctx[ray]'") from error

RESTARTS = 2
"""So often the ranks are started again without a new checkpoint in between."""
_HINT = "the same command goes on from the last checkpoint"
_STORE_BYTES = 100 * 2**20
"""Ray's shared memory: only messages go through it here, and Ray would take a third of the machine."""


def start_ray(
    config: Config,
    *,
    source: str,
    out: Path,
    monitor: Monitor,
    fresh: bool = False,
    max_seconds: float = 0.0,
    nproc: int,
) -> Outcome:
    """Train on ``nproc`` workers of the Ray cluster at RAY_ADDRESS, or of one started on this machine.

    Raises the error that the ranks share (StoppedOnRequest after a signal or the time limit), the one of the
    rank that failed, or one that names a rank which died without a word.
    """
    job = Job(config, source, out.absolute(), tuple(sys.argv), os.environ.get("OMP_NUM_THREADS", ""))
    with contextlib.redirect_stdout(Chatter(monitor)):
        mine = _connect(nproc)
        try:
            _check_size(_kind(config), nproc, monitor, mine)
            desk = ray.remote(num_cpus=0)(Desk).remote(fresh)
            return drive(_Line(desk), lambda: _fit(job, desk, nproc), monitor, max_seconds)
        finally:
            if mine:
                ray.shutdown()


def _connect(nproc: int) -> bool:
    """To the cluster at RAY_ADDRESS, or to one that lives as long as this process.

    False where this process is connected already.
    """
    if ray.is_initialized():
        return False
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "local")
    own: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_worker_niceness", "0")  # Ray's own is 15: last in line for the cores
        own = {"num_cpus": nproc, "object_store_memory": _STORE_BYTES, "include_dashboard": False}
    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, RuntimeError, ValueError, TimeoutError) as error:
        raise GenoctxError(
            f"no Ray cluster at {address}: {_first_line(error)}",
            "RAY_ADDRESS names the cluster; without it one is started on this machine",
        ) from error
    return True


def _kind(config: Config) -> str:
    """What every worker gets one of."""
    device = config.stream.device
    gpu = device == "cuda" or (device == "auto" and ray.cluster_resources().get("GPU", 0) > 0)
    return "GPU" if gpu else "CPU"


def _check_size(kind: str, nproc: int, monitor: Monitor, mine: bool) -> None:
    """UsageError where ``nproc`` workers will never find their place; a warning where the cluster may grow."""
    there = int(ray.cluster_resources().get(kind, 0))
    if there >= nproc:
        return
    if mine:
        raise UsageError(
            f"this machine has {there} {kind}s for {nproc} workers", f"--nproc {there}, or RAY_ADDRESS"
        )
    monitor.warn(f"the Ray cluster has {there} {kind}s for {nproc} workers; waiting until it has more")


def _fit(job: Job, desk: Any, nproc: int) -> Outcome | None:
    """Train; start the trainer anew as long as its restarts were enough for a new checkpoint."""
    while True:
        before = _steps(job.out)
        try:
            with tempfile.TemporaryDirectory(prefix="genoctx-ray-") as folder:
                return _trainer(job, desk, nproc, folder).fit().return_value
        except train.TrainingFailedError as error:
            if _steps(job.out) <= before:
                raise _in_our_terms(error) from error


def _steps(run: Path) -> int:
    checkpoint = latest_checkpoint(run)
    return -1 if checkpoint is None else checkpoint_step(checkpoint)


def _trainer(job: Job, desk: Any, nproc: int, folder: str) -> TorchTrainer:
    """``folder``: scratch on this machine."""
    gpu = _kind(job.config) == "GPU"
    return TorchTrainer(
        _work,
        train_loop_config={"job": job, "desk": desk},
        torch_config=TorchConfig(backend(gpu), timeout_s=int(patience(job.config.parallel.hang_seconds))),
        scaling_config=train.ScalingConfig(num_workers=nproc, use_gpu=gpu),
        run_config=train.RunConfig(
            name="genoctx",
            storage_path=folder,
            failure_config=train.FailureConfig(max_failures=RESTARTS),
            callbacks=[_Watcher(desk, nproc)],
        ),
    )


def _work(settings: dict[str, Any]) -> Outcome | None:
    """In a worker, where Ray has set up torch.distributed."""
    context = train.get_context()
    here = Place(context.get_world_rank(), context.get_world_size(), context.get_local_rank(), "ray")
    return run_rank(here, context.get_local_world_size(), settings["job"], _Line(settings["desk"]))


class _Line:
    """A Desk that is an actor; every call but ``send`` waits for its answer."""

    def __init__(self, desk: Any) -> None:
        self._desk = desk

    def begin(self) -> Attempt | None:
        return ray.get(self._desk.begin.remote())

    def send(self, attempt: int, message: Message) -> None:
        self._desk.send.remote(attempt, message)

    def asked(self) -> str:
        return ray.get(self._desk.asked.remote())

    def end(self, error: GenoctxError) -> None:
        ray.get(self._desk.end.remote(error))

    def failed(self, error: GenoctxError) -> None:
        ray.get(self._desk.failed.remote(error))

    def take(self) -> list[Message]:
        return ray.get(self._desk.take.remote())

    def ask(self, reason: str) -> bool:
        return ray.get(self._desk.ask.remote(reason))

    def ending(self) -> GenoctxError | None:
        return ray.get(self._desk.ending.remote())


class _Watcher(train.UserCallback):
    """Works in Ray's controller, and tells the desk which rank ended an attempt."""

    def __init__(self, desk: Any, nproc: int) -> None:
        self._desk, self._nproc = desk, nproc

    def after_exception(self, run_context: Any, worker_exceptions: Mapping[int, Exception]) -> None:
        _Line(self._desk).failed(first_cause(worker_exceptions, self._nproc))


def first_cause(errors: Mapping[int, Exception], nproc: int) -> GenoctxError:
    """The error that names the rank which ended first: one that died before one that noticed.

    ``errors``: by rank, as Ray's controller reports them.
    """
    found = {rank: getattr(error, "health_check_failure", error) for rank, error in errors.items()}

    def order(rank: int) -> tuple[int, int]:
        late = isinstance(found[rank], LostContact)
        return 0 if isinstance(found[rank], RayActorError) else 1 + late, rank

    rank = min(found, key=order)
    error = found[rank]
    if isinstance(error, GenoctxError):
        return error
    if not isinstance(error, RayActorError):
        return GenoctxError(
            f"rank {rank} of {nproc}: unexpected {type(error).__name__}: {_first_line(error)}",
            f"-vv shows the traceback; {_HINT}",
        )
    cause = "its node was taken away" if error.preempted else "the kernel kills so when memory runs out"
    return GenoctxError(
        f"rank {rank} of {nproc} died without a word; {cause}", f"checkpoints are intact: {_HINT}"
    )


def _in_our_terms(error: Exception) -> GenoctxError:
    """What Ray itself ran into."""
    cause = getattr(error, "controller_failure", error)
    return GenoctxError(f"Ray ended the run: {_first_line(cause)}", f"-vv shows all of it; {_HINT}")


def _first_line(error: object) -> str:
    return str(error).strip().partition("\n")[0]
