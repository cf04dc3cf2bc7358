"""``genoctx doctor``: one line per op, with its backend and the reason."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from genoctx.cli import app
from genoctx.cli.doctor import OPS
from genoctx_kernels import dispatch

KERNELS = Path(__file__).parents[2] / "kernels/genoctx_kernels"


def test_every_op_that_asks_for_a_backend_is_listed() -> None:
    asked = {
        name for path in KERNELS.rglob("*.py") for name in re.findall(r'choose\(\s*"(\w+)"', path.read_text())
    }
    assert asked == set(OPS)


@pytest.mark.parametrize("reason", ["torch sees no GPU", ""])
def test_backends_and_reasons(
    reason: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dispatch, "machine_reason", lambda: reason)
    assert app.run(["doctor"]) == 0
    printed = capsys.readouterr().out
    for op in OPS:
        assert f"kernel {op}\t{f'plain torch: {reason}' if reason else 'Triton'}\n" in printed
    assert app.run(["doctor", "--json"]) == 0
    kernels = json.loads(capsys.readouterr().out)["machine"]["kernels"]
    assert kernels == {op: {"backend": "torch" if reason else "triton", "reason": reason} for op in OPS}
