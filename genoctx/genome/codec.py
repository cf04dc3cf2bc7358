"""Between base codes and the token ids of a model, and the one way to read a window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from genoctx.errors import ConfigError
from genoctx.genome.alphabet import LETTERS, N_CODE, reverse_complement
from genoctx.genome.store import GenomeStore
from genoctx.genome.window_table import Window

NO_TARGET = -100
"""Target of a position that predicts nothing: nothing follows, or N or another ambiguity letter does."""

GLM_VOCABULARY = 154_880
_GLM_IDS = (32, 34, 38, 51, 45)  # the single letters A C G T N of its byte-level tokenizer
_LARGEST_OWN = 1024


@dataclass(frozen=True)
class Codec:
    """One token per base."""

    base_ids: tuple[int, int, int, int, int]
    """Token ids of A, C, G, T, N; every other ambiguity letter is read as N."""
    prefix: tuple[int, ...] = ()
    """Token ids put before each window. The last of them predicts the window's first base."""

    def __post_init__(self) -> None:
        if len(self.base_ids) != N_CODE + 1 or len(set(self.base_ids)) != N_CODE + 1:
            raise ConfigError(f"base ids {self.base_ids} are not five different tokens", "give A, C, G, T, N")
        if min((*self.base_ids, *self.prefix)) < 0:
            raise ConfigError("a token id is negative", "ids count from 0")

    @classmethod
    def for_vocab(cls, vocab_size: int) -> Codec:
        """The ids used with a vocabulary of ``vocab_size``: GLM's own letters, or 0..4 in small ones.

        Raises ConfigError for a vocabulary too small or unknown.
        """
        if vocab_size == GLM_VOCABULARY:
            return cls(_GLM_IDS)
        if vocab_size <= N_CODE:
            raise ConfigError(f"a vocabulary of {vocab_size} is too small", "A, C, G, T and N need 5 tokens")
        if vocab_size > _LARGEST_OWN:
            raise ConfigError(
                f"the ids of A, C, G, T, N in a vocabulary of {vocab_size} are not known",
                f"use {GLM_VOCABULARY} (GLM), or one of at most {_LARGEST_OWN}",
            )
        return cls((0, 1, 2, 3, 4))

    def encode(self, codes: np.ndarray) -> np.ndarray:
        """Token ids of uint8 ``codes``, after the prefix: int64 [len(prefix) + len(codes)]."""
        table = np.full(len(LETTERS), self.base_ids[N_CODE], dtype=np.int64)
        table[: N_CODE + 1] = self.base_ids
        return np.concatenate([np.array(self.prefix, dtype=np.int64), table[codes]])

    def targets(self, codes: np.ndarray) -> np.ndarray:
        """What each position of ``encode(codes)`` predicts: int64, same length.

        Position t predicts base t+1 where that is A, C, G or T, and nothing (``NO_TARGET``) elsewhere.
        """
        table = np.full(len(LETTERS), NO_TARGET, dtype=np.int64)
        table[:N_CODE] = self.base_ids[:N_CODE]
        targets = np.full(len(self.prefix) + len(codes), NO_TARGET, dtype=np.int64)
        following = codes if self.prefix else codes[1:]
        if following.size:
            targets[-1 - following.size : -1] = table[following]
        return targets


@dataclass(frozen=True)
class WindowTokens:
    """One window as a model reads it; all three in reading direction."""

    ids: np.ndarray
    """int64 token ids, prefix included."""
    targets: np.ndarray
    """int64, same length: what each position predicts, or ``NO_TARGET``."""
    codes: np.ndarray
    """uint8 base codes, without prefix."""


def read_window(store: GenomeStore, window: Window, codec: Codec) -> WindowTokens:
    """Tokens and targets of ``window``, reverse-complemented where its strand is ``-``."""
    codes = store.codes(window.contig, window.start, window.end)
    if window.strand == "-":
        codes = reverse_complement(codes)
    return WindowTokens(codec.encode(codes), codec.targets(codes), codes)


def read_softmask(store: GenomeStore, window: Window) -> np.ndarray:
    """Which bases of ``window`` were lower case: bool, in the same direction as ``read_window``."""
    mask = store.softmask(window.contig, window.start, window.end)
    return mask[::-1] if window.strand == "-" else mask
