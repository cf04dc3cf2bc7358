"""Compile kernels for GPUs that are not here, and read what they need from the machine code.

A test describes its kernels as data (``Variant``); ``assert_fits`` compiles them in one process without the
interpreter, for every target, and looks at registers, stack (where spilled registers go) and shared memory:

    assert_fits([Variant("genoctx_kernels.conv.triton_conv:forward_kernel",
                         {"x_ptr": "*bf16", "tokens": "i32", "stride": "i64:16"},
                         {"BLOCK": 64}, warps=4)])

Pointers count as divisible by 16 bytes, integers where ":16" says so, as Triton finds them in real launches.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

TARGETS = (90, 100)
"""Compute capabilities: Hopper and Blackwell."""

SHARED_LIMIT = 227 << 10
"""Bytes of shared memory a block may have on both."""

Constant = int | float | bool | str | None
"""Of a constexpr. A string "tl.float32" means that dtype; None is an absent pointer."""


@dataclass(frozen=True)
class Variant:
    """A kernel ("module:function"), the types of its arguments, its constants and its launch."""

    kernel: str
    signature: Mapping[str, str]
    constants: Mapping[str, Constant] = field(default_factory=dict)
    warps: int = 4
    stages: int = 3
    label: str = ""


@dataclass(frozen=True)
class Built:
    """What one variant takes on one target: registers a thread, bytes of stack a thread and of shared memory."""

    kernel: str
    label: str
    target: int
    registers: int
    stack: int
    shared: int


def assert_fits(variants: Sequence[Variant], stack: int = 0) -> list[Built]:
    """Every variant compiles for every target, within ``stack`` bytes of spills and the shared memory there is."""
    built = compile_ahead(variants)
    assert len(built) == len(variants) * len(TARGETS)
    for b in built:
        assert b.stack <= stack, f"spills above {stack} bytes: {b}"
        assert b.shared <= SHARED_LIMIT, f"too much shared memory: {b}"
    return built


def compile_ahead(variants: Sequence[Variant]) -> list[Built]:
    """All variants for all targets, in one new process."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps([asdict(v) for v in variants]),
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [Built(**b) for b in json.loads(done.stdout)]


def _build(variant: Variant, target: int) -> Built:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module, name = variant.kernel.split(":")
    kernel = getattr(import_module(module), name)
    constants = {k: _constant(v) for k, v in variant.constants.items()}
    types = dict(variant.signature) | dict.fromkeys(constants, "constexpr")
    missing = set(kernel.arg_names) ^ set(types)
    assert not missing, f"{name}: the variant and the kernel disagree about {sorted(missing)}"
    signature = {k: types[k].partition(":")[0] for k in kernel.arg_names}
    aligned = [
        i for i, k in enumerate(kernel.arg_names) if types[k].startswith("*") or types[k].endswith(":16")
    ]
    source = ASTSource(
        fn=kernel,
        signature=signature,
        constexprs=constants,
        attrs={(i,): [["tt.divisibility", 16]] for i in aligned},
    )
    options = {"num_warps": variant.warps, "num_stages": variant.stages, "enable_fp_fusion": True}
    compiled = triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)
    registers, stack = _resources(compiled.asm["cubin"])
    return Built(name, variant.label, target, registers, stack, compiled.metadata.shared)


def _constant(value: Constant) -> Any:
    import triton.language as tl

    return getattr(tl, value[3:]) if isinstance(value, str) and value.startswith("tl.") else value


def _resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack and local memory per thread, as the wheel's ``cuobjdump`` reports them."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+) .*?LOCAL:(\d+)", listing)
    assert found, listing
    registers, stack, local = (int(x) for x in found.groups())
    return registers, stack + local


if __name__ == "__main__":
    jobs = [Variant(**v) for v in json.load(sys.stdin)]
    json.dump([asdict(_build(job, target)) for job in jobs for target in TARGETS], sys.stdout)
