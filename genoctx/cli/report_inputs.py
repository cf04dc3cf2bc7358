"""What ``genoctx report`` reads beside its ledgers, and how far it can check them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from genoctx.cli.console import get_console
from genoctx.errors import CheckFailed, GenoctxError, InputError, UsageError

if TYPE_CHECKING:
    from genoctx.genome.windows import WindowTable
    from genoctx.report.context_ledger import ContextLedger
    from genoctx.report.ledger import Ledger
    from genoctx.report.seeds import SeedRun
    from genoctx.report.sources import Beside

    AnyLedger = Ledger | ContextLedger


def all_ledgers(
    after: Ledger, before: Ledger | None, beside: Beside, runs: Sequence[SeedRun]
) -> list[AnyLedger]:
    """Every ledger that a number of the report comes from."""
    seeds = (ledger for run in runs[1:] for ledger in (run.after, run.before))
    beside_it = (beside.reverse, beside.contexts, beside.contexts_before, *beside.held_out, *seeds)
    return [after, *(ledger for ledger in (before, *beside_it) if ledger is not None)]


def read_seed_runs(paths: Sequence[Path]) -> list[SeedRun]:
    """Runs of one config with several seeds, each its last evaluation beside its first; none for a single one.

    Raises UsageError where configs differ in more than the seed. A ledger outside a run has no config.
    """
    from genoctx.report.ledger import Ledger
    from genoctx.report.seeds import SeedRun
    from genoctx.report.sources import find_ledgers, read_config, run_of

    if len(paths) < 2:
        return []
    runs, configs = [], []
    for path in paths:
        evaluations = find_ledgers(path)
        first, last = evaluations[0], evaluations[-1]
        run = run_of(last)
        config = read_config(run) if run else None
        seed = config["train"].pop("seed", None) if config else None
        earlier = Ledger.load(first) if first != last else None
        runs.append(SeedRun(str(path), seed, Ledger.load(last), earlier))
        configs.append(config)
    _require_one_config(paths, configs)
    return runs


def _require_one_config(paths: Sequence[Path], configs: Sequence[dict[str, Any] | None]) -> None:
    from genoctx.config import differing_keys

    known = [(path, config) for path, config in zip(paths, configs, strict=True) if config]
    for path, config in known[1:]:
        if differing := differing_keys(known[0][1], config):
            raise UsageError(
                f"{known[0][0]} and {path} are not one config with two seeds: {', '.join(differing[:3])}",
                "two configs are compared with `genoctx report ONE --before OTHER`",
            )


def check_windows(ledgers: Sequence[AnyLedger]) -> None:
    """CheckFailed where one has not the windows of its table, or bases of them that nobody accounts for.

    A table that is gone or was changed is no reason: then there is nothing to compare with.
    """
    from genoctx.report.coverage import check_accounts, check_coverage
    from genoctx.report.ledger import Ledger
    from genoctx.report.sources import table_of

    tables: dict[tuple[object, object], WindowTable | None] = {}
    for ledger in ledgers:
        key = (ledger.header.get("windows"), ledger.header.get("windows_digest"))
        if key not in tables:
            try:
                tables[key] = table_of(ledger)
            except (GenoctxError, OSError):
                tables[key] = None
        table = tables[key]
        if table is not None:
            check_coverage(ledger, table)
            if isinstance(ledger, Ledger):
                check_accounts(ledger)


def load_baselines(
    after: Ledger, path: Path, ledgers: Sequence[AnyLedger]
) -> tuple[dict[str, Ledger], list[str]]:
    """Baselines for ``after`` (kept beside its file), or none and a note that says why.

    Where they are computed the genome is at hand, and CheckFailed is raised unless all ``ledgers`` of its
    windows scored the bases that it has.
    """
    from genoctx.report import cache

    console = get_console()
    kept_in = path.with_name(cache.FILE)
    known = cache.load_baselines(kept_in, after)
    if known is not None:
        return known, []
    console.info("baselines: counting words of the training windows", level=1)
    try:
        return _compute_baselines(after, kept_in, ledgers), []
    except CheckFailed:
        raise
    except (GenoctxError, OSError) as error:
        reason = error.message if isinstance(error, GenoctxError) else str(error)
        console.warn(f"no baselines: {reason}")
        return {}, [f"No baselines: {reason}."]


def _compute_baselines(after: Ledger, keep: Path, ledgers: Sequence[AnyLedger]) -> dict[str, Ledger]:
    from genoctx.genome.store import GenomeStore
    from genoctx.report.cache import genome_baselines
    from genoctx.report.coverage import check_bases
    from genoctx.report.sources import table_of
    from genoctx.run.strata import strata_of, stratum_names

    if not after.header.get("store"):
        raise InputError("the ledger does not name its genome store")
    store, table = GenomeStore.open(after.header["store"]), table_of(after)
    if store.digest != after.header.get("store_digest"):
        raise InputError(f"{store.path} is not the store that the ledger was made from")
    for ledger in ledgers:
        if all(ledger.header.get(key) == after.header.get(key) for key in ("store_digest", "windows_digest")):
            check_bases(ledger, table, store.codes)
    known = after.strata is not None and after.strata.names == stratum_names(store)
    strata = partial(strata_of, store) if known else None
    return genome_baselines(after, store, table.split("train"), keep, strata)


def read_beside(after: Ledger, path: Path, before: Ledger | None, before_path: Path) -> Beside:
    """What lies beside the ledger at ``path`` and in its run."""
    from genoctx.report import sources
    from genoctx.report.ledger import Ledger
    from genoctx.run.metrics import read_metrics

    table, reason = sources.read_table_header(after)
    run = sources.run_of(path)
    return sources.Beside(
        reverse=sources.read_reverse(path, after),
        contexts=sources.read_contexts(path, after),
        contexts_before=sources.read_contexts(before_path, before) if before is not None else None,
        table=table,
        leakage=sources.leakage_of(table, reason),
        machine=after.header.get("session") or (sources.read_machine(run) if run else None),
        metrics=read_metrics(run / "metrics.jsonl") if run else (),
        held_out=[Ledger.load(each) for each in sources.find_ledgers(run)] if run else (),
    )
