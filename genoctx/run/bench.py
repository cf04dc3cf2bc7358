"""``genoctx bench length``: one exact training step on real windows of growing length, one process each.

Every length runs in a process of its own, so that its peak resident memory is its own. The figures
are of one machine and one run; compare ratios, not seconds, across machines.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from genoctx.errors import GenoctxError, InputError
from genoctx.genome.manifest import Contig
from genoctx.model.config import ModelConfig
from genoctx.run.machine import peak_resident_memory


@dataclass(frozen=True)
class LengthResult:
    """One training step of one window: both sweeps and the optimizer."""

    context: int
    chunk: int
    forward_s: float
    backward_s: float
    optimizer_s: float
    tokens_per_s: float
    peak_bytes: int
    """Peak resident memory of the process."""
    base_bytes: int
    """Resident memory with the model built and the window read, before the step."""
    cache_bytes: int
    """Latents, d-latents, pooled keys, pool and expert ids, and carries of the window."""
    graph_bytes: int
    """Largest sum of tensors saved for backward by one chunk: the part that must not grow."""
    nats_per_base: float


def run_length(
    store: Path, contig: str, start: int, context: int, preset: str, chunk: int, threads: int
) -> LengthResult:
    """Measure one length in a fresh process; GenoctxError with its last words when it dies."""
    arguments = [str(store), contig, str(start), str(context), preset, str(chunk), str(threads)]
    done = subprocess.run(
        [sys.executable, "-m", "genoctx.run.bench", *arguments],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        reason = "it was killed, most likely for memory" if done.returncode < 0 else "see its message above"
        raise GenoctxError(
            f"the step at {context:,} bases ended with status {done.returncode}: {reason}",
            "give a smaller --chunk",
        )
    return LengthResult(**json.loads(done.stdout))


def refuse_unfit(contig: Contig, start: int, context: int) -> None:
    """InputError unless ``contig`` has a window of ``context`` bases at ``start``, with bases to predict."""
    if context < 2:
        raise InputError(
            f"a window of {context} base has nothing to predict", "for instance --contexts 16k,64k"
        )
    if start + context > contig.length:
        raise InputError(
            f"{contig.name}:{start + 1}-{start + context} reaches past its end ({contig.length:,} bases)",
            "give a smaller --contexts or --start",
        )


class _GraphMeter:
    """Counts the bytes autograd keeps for one chunk's backward, each address once."""

    def __init__(self) -> None:
        self.largest = 0
        self._seen: dict[int, int] = {}

    def hooks(self) -> AbstractContextManager[Any]:
        import torch

        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Any) -> Any:
        # by address, not by storage: a carry is a small view of a slab that grows with the window
        self._seen[tensor.data_ptr()] = max(tensor.nbytes, self._seen.get(tensor.data_ptr(), 0))
        return tensor

    def end_of_chunk(self) -> None:
        self.largest = max(self.largest, sum(self._seen.values()))
        self._seen.clear()


def measure_step(
    store: Path, contig: str, start: int, context: int, preset: str, chunk: int, threads: int
) -> LengthResult:
    """One training step of a freshly drawn ``preset`` on ``contig:start-(start+context)`` in this process."""
    import torch

    from genoctx.config import preset_model
    from genoctx.engine.allocator import keep_freed_memory
    from genoctx.engine.batch import Coefficients, Denominators, bounds
    from genoctx.engine.optimizer import AdamWSettings, Optimizer
    from genoctx.engine.stream import backward_sweep, forward_sweep
    from genoctx.model.hybrid import build

    keep_freed_memory()
    if threads:
        torch.set_num_threads(threads)
    model = build(preset_model(preset), seed=0)
    optimizer = Optimizer(model, AdamWSettings())
    batch = _window(store, contig, start, context, model.config)
    limits, per = bounds(context, chunk), Denominators.of([batch], model.config.index_kpool)
    base, meter, report = peak_resident_memory(), _GraphMeter(), _progress(context)

    begin = time.perf_counter()
    tape = forward_sweep(model, batch, limits, report)
    forward = time.perf_counter()
    cache = tape.held_bytes()

    def after_chunk(tokens: int, sweep: str) -> None:
        meter.end_of_chunk()
        report(tokens, sweep)

    with meter.hooks():
        losses = backward_sweep(model, batch, limits, tape, Coefficients(), per, after_chunk)
    backward = time.perf_counter()
    optimizer.step(1e-3, optimizer.grad_norm())
    end = time.perf_counter()
    return LengthResult(
        context=context,
        chunk=chunk,
        forward_s=forward - begin,
        backward_s=backward - forward,
        optimizer_s=end - backward,
        tokens_per_s=context / (end - begin),
        peak_bytes=peak_resident_memory(),
        base_bytes=base,
        cache_bytes=cache,
        graph_bytes=meter.largest,
        nats_per_base=losses.nats / losses.weight,
    )


def _window(store: Path, contig: str, start: int, context: int, model: ModelConfig) -> Any:
    import torch

    from genoctx.engine.batch import refuse_without_targets, stack_rows
    from genoctx.genome.codec import Codec, read_window
    from genoctx.genome.store import GenomeStore
    from genoctx.genome.windows import Window

    opened = GenomeStore.open(store)
    refuse_unfit(opened.contig(contig), start, context)
    name = f"{contig}:{start + 1}-{start + context}"
    window = Window(contig, start, start + context, name, "+", "train", gc=0.0, n_fraction=0.0)
    tokens = read_window(opened, window, Codec.for_vocab(model.vocab_size, model.token_bases))
    batch = stack_rows([(torch.from_numpy(tokens.ids), torch.from_numpy(tokens.targets), name)])
    refuse_without_targets([batch])
    return batch


def _progress(context: int) -> Callable[[int, str], None]:
    """A plain line on stderr every half minute: these steps can take long."""
    state = {"sweep": "", "tokens": 0, "last": time.monotonic()}

    def report(tokens: int, sweep: str) -> None:
        if sweep != state["sweep"]:
            state.update(sweep=sweep, tokens=0)
        state["tokens"] += tokens  # type: ignore[operator]
        if time.monotonic() - state["last"] > 30:  # type: ignore[operator]
            state["last"] = time.monotonic()
            print(f"{context:,}: {sweep} sweep {state['tokens']:,} of {context:,} tokens", file=sys.stderr)

    return report


def _main(argv: list[str]) -> None:
    store, contig, start, context, preset, chunk, threads = argv
    try:
        result = measure_step(Path(store), contig, int(start), int(context), preset, int(chunk), int(threads))
    except GenoctxError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(json.dumps(asdict(result)))


if __name__ == "__main__":
    _main(sys.argv[1:])
