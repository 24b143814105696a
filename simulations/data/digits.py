"""The digits that come with scikit-learn: 1797 images of 8x8 pixels."""

from pathlib import Path

import numpy as np

from .images import Dataset, ImageData, every_nth_of_each_class


def _load(folder: Path) -> ImageData:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = digits.images.astype(np.uint8)[:, None]
    labels = digits.target.astype(np.int64)
    # The examples come writer by writer: every fifth of a class has all writers in both parts.
    test = every_nth_of_each_class(labels, 5)
    parts = (images[~test], labels[~test], images[test], labels[test])
    return ImageData(*parts, num_classes=10, max_value=16, title="digits")


DIGITS = Dataset("digits", (1442, 355), _load)
