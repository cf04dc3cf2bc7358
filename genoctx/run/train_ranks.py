"""One rank's whole life: join, work, and end in a way that its launcher understands."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from genoctx.config import Config
from genoctx.errors import GenoctxError, is_shared
from genoctx.run.device import choose_device
from genoctx.run.launch import Place
from genoctx.run.monitor import Monitor
from genoctx.run.ranks import RESUMES, Joined, lost_contact
from genoctx.run.train import Outcome, check_devices, check_layout, train


@contextmanager
def joined(here: Place, device: str, hang_seconds: float, remedy: str = RESUMES) -> Iterator[Joined]:
    """This process among the ranks, from their meeting until all have left; ``device`` is ``cpu`` or ``cuda``.

    Raises GenoctxError: one that all ranks share as it is, any other with the rank's name. LostContact where
    another rank is gone, NoAnswer where one was waited for in vain.
    """
    # FSDP2 warns of views that somebody might change in place; no layer of the model changes an activation
    warnings.filterwarnings("ignore", "FSDP2-wrapped module", UserWarning)
    ranks = Joined(here, device, hang_seconds, remedy)
    try:
        yield ranks
        ranks.leave()
    except Exception as error:
        if isinstance(error, GenoctxError) and is_shared(error):
            ranks.leave()
            raise
        if (lost := lost_contact(error)) is not None:
            raise lost from error
        if isinstance(error, GenoctxError):
            raise _named(here, error) from error
        raise


def train_rank(
    here: Place,
    config: Config,
    *,
    source: str,
    out: Path,
    monitor: Monitor,
    fresh: bool = False,
    max_seconds: float = 0.0,
) -> Outcome:
    """``train`` as one of many ranks; every launcher's per-rank entry point. Errors as in ``joined``."""
    check_layout(config, here.size)
    check_devices(config.stream.device, here.local_rank + 1)
    with joined(here, choose_device(config.stream.device).type, config.parallel.hang_seconds) as ranks:
        return train(
            config,
            source=source,
            out=out,
            monitor=ranks.monitor(monitor),
            fresh=fresh,
            max_seconds=max_seconds,
            ranks=ranks,
        )


def _named(here: Place, error: GenoctxError) -> GenoctxError:
    named = type(error)(f"rank {here.rank}: {error.message}", error.hint)
    named.exit_code = error.exit_code
    return named
