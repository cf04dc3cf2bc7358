"""Shared by all tests: one thread, so that sums have one order, and the paths of data and fixtures."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")

settings.register_profile(
    "genoctx", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("genoctx")

GZIP_MAGIC = b"\x1f\x8b"


def pytest_make_parametrize_id(val: object) -> str | None:
    """Gzip holds the time it was written: in a test's name it would differ between two workers."""
    return "gzip" if isinstance(val, bytes) and val.startswith(GZIP_MAGIC) else None


DATA = Path(__file__).resolve().parent.parent / "data"


@pytest.fixture(scope="session")
def genomes() -> Path:
    """Real sequences that ship with the repository."""
    return DATA / "genomes"


@pytest.fixture(scope="session")
def tiny_fixtures() -> Path:
    """Reference tensors of the tiny glm5_next checkpoint."""
    return DATA / "fixtures" / "glm5_next_tiny"
