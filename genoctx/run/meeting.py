"""Where the ranks of one start meet, so that what an earlier start has left is not taken for theirs.

torchrun's agent starts ranks again (``--max-restarts``) on the store that those before them used, and torch
2.13 lets them read there under which addresses these were to be reached. So every start agrees on a name of
its own: each rank says hello with a word that nobody used before, and the first rank answers every such word
until all have come. How often an agent started its ranks is no such name: it differs between nodes.
"""

from __future__ import annotations

import datetime
import os
import time
import uuid

import torch.distributed as dist

from genoctx.errors import NoAnswer
from genoctx.run.launch import Place

_POLL_SECONDS = 0.05


def meeting_store(place: Place, seconds: float) -> dist.Store | None:
    """The agent's store under a name of this start; None where no agent keeps one.

    Raises NoAnswer for ranks that have not come after ``seconds``.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    limit = datetime.timedelta(seconds=seconds)
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)
    return dist.PrefixStore(agreed_name(store, place.rank, place.size, seconds), store)


def agreed_name(store: dist.Store, rank: int, size: int, seconds: float) -> str:
    """The same name on all ranks that are there now, and on none before them. Collective."""
    return _announce(store, size, seconds) if rank == 0 else _ask(store, rank, seconds)


def _ask(store: dist.Store, rank: int, seconds: float) -> str:
    word = uuid.uuid4().hex
    store.set(f"genoctx/hello/{rank}", word)
    try:
        name: str = store.get(f"genoctx/name/{word}").decode()
    except RuntimeError as error:
        raise _missing("rank 0", seconds) from error
    store.set(f"{name}/here/{rank}", "")
    return name


def _announce(store: dist.Store, size: int, seconds: float) -> str:
    name, answered = f"genoctx/start/{uuid.uuid4().hex}", set[bytes]()
    absent, end = set(range(1, size)), time.monotonic() + seconds
    while absent:
        if time.monotonic() > end:
            raise _missing(f"rank {', '.join(map(str, sorted(absent)))}", seconds)
        for rank in [r for r in absent if store.check([f"genoctx/hello/{r}"])]:
            word = store.get(f"genoctx/hello/{rank}")
            if word not in answered:  # it may be that of a rank which is gone
                store.set(f"genoctx/name/{word.decode()}", name)
                answered.add(word)
            if store.check([f"{name}/here/{rank}"]):
                absent.discard(rank)
        time.sleep(_POLL_SECONDS)
    return name


def _missing(who: str, seconds: float) -> NoAnswer:
    return NoAnswer(
        f"no sign of {who} for {seconds:g} s while the ranks were starting",
        "look at that machine's log, and at the network; the same command goes on from the last checkpoint",
    )
