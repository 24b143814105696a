"""Ten made-up languages: short texts, drawn from one seed, for a machine that has no text.

A language has its syllables, these make its words, and few of the words are frequent. What there is
to learn is which language a text is of; letters they share.
"""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pncs_flower.randomness import generator

from .examples import Data, Dataset

_LANGUAGES = 10
_LENGTH = 20  # characters of a text
_TRAIN, _TEST = 200, 50  # texts of each language
_SYLLABLES, _WORDS = 12, 40  # of each language
_CONSONANTS, _VOWELS = "bcdfghjklmnpqrstvwxz", "aeiouy"


def _load(folder: Path) -> Data:
    rng = generator(0, "made-up languages")
    parts = [_texts(_words(rng), rng) for _ in range(_LANGUAGES)]
    labels = np.arange(_LANGUAGES)
    return Data(
        np.concatenate([part[:_TRAIN] for part in parts]),
        labels.repeat(_TRAIN),
        np.concatenate([part[_TRAIN:] for part in parts]),
        labels.repeat(_TEST),
        num_classes=_LANGUAGES,
        title="made-up languages",
        kind="text",
    )


def _words(rng: np.random.Generator) -> list[str]:
    """Return the words of a language, the most frequent first."""
    begins, ends = (rng.choice([*letters], _SYLLABLES) for letters in (_CONSONANTS, _VOWELS))
    syllables = [f"{begin}{end}" for begin, end in zip(begins, ends, strict=True)]
    lengths = rng.integers(1, 4, _WORDS)
    return ["".join(rng.choice(syllables, length)) for length in lengths]


def _texts(words: list[str], rng: np.random.Generator) -> NDArray[np.uint8]:
    """Return texts of a language, shape (texts, length), the codes of their characters."""
    shares = 1 / np.arange(1, len(words) + 1)  # Zipf's law
    drawn = rng.choice(words, (_TRAIN + _TEST, _LENGTH // 2), p=shares / shares.sum())
    texts = [" ".join(row)[:_LENGTH].encode() for row in drawn]
    return np.array([[*text] for text in texts], np.uint8)


LANGUAGES = Dataset("made-up-languages", (_LANGUAGES * _TRAIN, _LANGUAGES * _TEST), _load)
