"""Between base codes and the token ids of a model, and the one way to read a window.

A token is one base, or a word of ``letters`` bases side by side (words never overlap). Words are in the
order of their bases, A < C < G < T, the first base first: word AC of two letters has the place 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from genoctx.errors import ConfigError
from genoctx.genome.alphabet import N_CODE, reverse_complement
from genoctx.genome.store import GenomeStore
from genoctx.genome.window_table import Window

NO_TARGET = -100
"""Target of a position that predicts nothing: nothing follows, or a word with an N or another ambiguity
letter does."""

GLM_VOCABULARY = 154_880
GLM_LETTERS = {"A": 32, "C": 34, "G": 38, "T": 51, "N": 45}
"""Ids of single letters in GLM's byte-level tokenizer."""
GLM_PREFIX = {"[gMASK]": 154_822, "<sop>": 154_824}
"""What GLM reads before any text, in this order."""

LONGEST_WORD = 8
_LARGEST_OWN = 1024  # a vocabulary of single bases beyond this is somebody's text vocabulary


@dataclass(frozen=True)
class Codec:
    """Which token stands for which bases."""

    words: tuple[int, ...]
    """Token ids of the 4 ** ``letters`` words, in the words' order."""
    unknown: int
    """Token id of a word with any letter but A, C, G, T."""
    letters: int = 1
    """Bases per token."""
    prefix: tuple[int, ...] = ()
    """Token ids put before each window. The last of them predicts the window's first word."""

    def __post_init__(self) -> None:
        if not 1 <= self.letters <= LONGEST_WORD or len(self.words) != 4**self.letters:
            raise ConfigError(
                f"{len(self.words)} ids for words of {self.letters} bases",
                f"a word has 1 to {LONGEST_WORD} bases, and there are 4 to that power",
            )
        if len({*self.words, self.unknown}) != len(self.words) + 1:
            raise ConfigError("two words share a token id", "give every word, and the unknown one, its own")
        if min((*self.words, self.unknown, *self.prefix)) < 0:
            raise ConfigError("a token id is negative", "ids count from 0")

    @classmethod
    def for_vocab(cls, vocab_size: int, letters: int = 1) -> Codec:
        """The ids used with a vocabulary of ``vocab_size``: GLM's own letters, or 0, 1, 2, ... in others.

        Raises ConfigError for a vocabulary too small or unknown.
        """
        if not 1 <= letters <= LONGEST_WORD:
            raise ConfigError(
                f"model.token_bases {letters} is impossible", f"a token is 1 to {LONGEST_WORD} bases"
            )
        if vocab_size == GLM_VOCABULARY:
            if letters > 1:
                raise ConfigError(
                    f"GLM's vocabulary has no tokens for words of {letters} bases",
                    "set model.token_bases = 1",
                )
            ids = tuple(GLM_LETTERS.values())
            return cls(ids[:N_CODE], ids[N_CODE], prefix=tuple(GLM_PREFIX.values()))
        words = 4**letters
        if vocab_size <= words:
            raise ConfigError(
                f"a vocabulary of {vocab_size} is too small",
                f"words of {letters} bases need {words + 1} tokens: one each, and one for N",
            )
        if vocab_size > max(_LARGEST_OWN, 2 * words):
            raise ConfigError(
                f"the ids of A, C, G, T, N in a vocabulary of {vocab_size} are not known",
                f"use {GLM_VOCABULARY} (GLM), or one of at most {max(_LARGEST_OWN, 2 * words)}",
            )
        return cls(tuple(range(words)), words, letters)

    def encode(self, codes: np.ndarray) -> np.ndarray:
        """Token ids of uint8 ``codes``, after the prefix: int64 [len(prefix) + len(codes) // letters].

        Bases that do not fill a word at the end are left out.
        """
        ids = self._table[self._places(codes)]
        return np.concatenate([np.array(self.prefix, dtype=np.int64), ids])

    def targets(self, codes: np.ndarray) -> np.ndarray:
        """What each position of ``encode(codes)`` predicts: int64, same length.

        A position predicts the word that follows where its letters are all A, C, G or T, and nothing
        (``NO_TARGET``) elsewhere.
        """
        places = self._places(codes)
        words = np.where(places < len(self.words), self._table[places], NO_TARGET)
        return self._ahead(words, np.int64(NO_TARGET))

    def shares(self, lower: np.ndarray, softmask: float) -> np.ndarray:
        """What each position's target counts in training: float32, same length as ``encode``.

        A base of lower case counts ``softmask``, any other 1; a word counts the mean of its bases.
        """
        words = lower[: len(lower) // self.letters * self.letters].reshape(-1, self.letters)
        share = 1 - (1 - softmask) * words.mean(axis=1, dtype=np.float64)
        return self._ahead(share.astype(np.float32), np.float32(0))

    @cached_property
    def _table(self) -> np.ndarray:
        return np.array([*self.words, self.unknown], dtype=np.int64)

    def _places(self, codes: np.ndarray) -> np.ndarray:
        """Place of each word in ``words``; ``len(words)`` where a letter is none of the four."""
        split = codes[: len(codes) // self.letters * self.letters].reshape(-1, self.letters)
        places = np.zeros(len(split), dtype=np.int64)
        for letter in split.T:
            places = 4 * places + letter
        places[(split >= N_CODE).any(axis=1)] = len(self.words)
        return places

    def _ahead(self, words: np.ndarray, nothing: np.generic) -> np.ndarray:
        """Values of words, moved to the positions that predict them."""
        following = words if self.prefix else words[1:]
        moved = np.full(len(self.prefix) + len(words), nothing, dtype=words.dtype)
        if following.size:
            moved[-1 - following.size : -1] = following
        return moved


def scored_bases(codes: np.ndarray, letters: int = 1, prefixed: bool = False) -> np.ndarray:
    """Which bases of a window a model with words of ``letters`` predicts: bool, one per code.

    Those of words of A, C, G and T alone, but the first word, which only a prefix could predict.
    """
    known = np.zeros(len(codes), dtype=bool)
    whole = len(codes) // letters * letters
    words = (codes[:whole] < N_CODE).reshape(-1, letters).all(axis=1)
    known[:whole] = np.repeat(words, letters)
    if not prefixed:
        known[:letters] = False
    return known


@dataclass(frozen=True)
class WindowTokens:
    """One window as a model reads it; arrays of one length, in reading direction."""

    ids: np.ndarray
    """int64 token ids, prefix included."""
    targets: np.ndarray
    """int64: what each position predicts, or ``NO_TARGET``."""
    shares: np.ndarray | None
    """float32: what each target counts in training; None: once each."""


def read_window(store: GenomeStore, window: Window, codec: Codec, softmask: float = 1.0) -> WindowTokens:
    """Tokens and targets of ``window``, reverse-complemented where its strand is ``-``.

    ``softmask`` is what a base of lower case counts; targets that count nothing are none.
    """
    codes = store.codes(window.contig, window.start, window.end)
    if window.strand == "-":
        codes = reverse_complement(codes)
    ids, targets = codec.encode(codes), codec.targets(codes)
    if softmask == 1:
        return WindowTokens(ids, targets, None)
    lower = store.softmask(window.contig, window.start, window.end)
    shares = codec.shares(lower[::-1] if window.strand == "-" else lower, softmask)
    targets[shares == 0] = NO_TARGET
    return WindowTokens(ids, targets, shares)
