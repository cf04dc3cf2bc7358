"""Data for tests of whole runs, made once per session."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from hub_checkpoint import make_hub, read_hub
from tiny_run import Data, make_data
from torch import Tensor
from whole_run import Whole

from genoctx.model.config import ModelConfig
from genoctx.model.hybrid import Hybrid
from genoctx.run.data import Data as OpenData
from genoctx.run.data import open_data
from genoctx.run.trainer import build_model

GAPPED_CONTEXT = 512


@pytest.fixture(scope="session")
def phage(tmp_path_factory: pytest.TempPathFactory, genomes: Path) -> Data:
    """Lambda phage in windows of 2,048 bases, a fifth of them held out."""
    folder = tmp_path_factory.mktemp("phage")
    return make_data(folder, genomes / "lambda_phage.fa.gz", context=2048, holdout="0.2")


def gapped_bases() -> str:
    """Eight windows' worth of bases with everything that is no target: N runs, IUPAC, lower case."""
    rng = random.Random(5)
    bases = rng.choices("ACGT", k=8 * GAPPED_CONTEXT)
    for start, end in ((100, 300), (505, 515), (1024, 1030), (2040, 2048), (3071, 3073)):
        bases[start:end] = "N" * (end - start)
    for i in (0, 17, 511, 512, 1535, 1536, 2500, 4095):
        bases[i] = "RYKMSWBDHV"[i % 10]
    bases[1600:1700] = "".join(bases[1600:1700]).lower()
    bases[5 * GAPPED_CONTEXT : 6 * GAPPED_CONTEXT] = "N" * GAPPED_CONTEXT
    return "".join(bases)


@pytest.fixture(scope="session")
def gapped_text() -> str:
    """The bases of the contig ``gaps``."""
    return gapped_bases()


@pytest.fixture(scope="session")
def gapped(tmp_path_factory: pytest.TempPathFactory, gapped_text: str) -> Data:
    """Windows of 512 bases with gaps, all of them held out or trained on by contig; one is nothing but N."""
    folder = tmp_path_factory.mktemp("gapped")
    fasta = folder / "gapped.fa"
    whole = "".join(random.Random(6).choices("ACGT", k=2 * GAPPED_CONTEXT))
    fasta.write_text(f">whole\n{whole}\n>gaps\n{gapped_text}\n")
    return make_data(folder, fasta, context=GAPPED_CONTEXT, holdout="gaps", max_n=1.0)


@pytest.fixture(scope="session")
def model(phage: Data, tmp_path_factory: pytest.TempPathFactory) -> Hybrid:
    """Weights of a size at which every base has its own loss; fresh ones say 1/16 for all."""
    torch.set_num_threads(1)
    model = build_model(phage.config(tmp_path_factory.mktemp("model")))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.2 * torch.randn(p.shape, generator=generator))
    return model


@pytest.fixture(scope="session")
def phage_data(phage: Data) -> OpenData:
    return open_data(phage.store, phage.windows, ModelConfig(vocab_size=16))


@pytest.fixture(scope="session")
def gapped_data(gapped: Data) -> OpenData:
    return open_data(gapped.store, gapped.windows, ModelConfig(vocab_size=16))


@pytest.fixture(scope="session")
def whole(phage: Data, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    """Never written to."""
    return Whole(phage, tmp_path_factory.mktemp("whole"))


@pytest.fixture(scope="session")
def hub(tiny_fixtures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With float8, MTP, vision; never written to."""
    folder = tmp_path_factory.mktemp("hub") / "GLM"
    make_hub(tiny_fixtures / "checkpoint", folder)
    return folder


@pytest.fixture(scope="session")
def stored(hub: Path) -> dict[str, Tensor]:
    return read_hub(hub)
