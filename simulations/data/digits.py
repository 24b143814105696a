"""The digits that come with scikit-learn: 1797 images of 8x8 pixels."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .examples import Data, Dataset, every_nth_of_each_class


def _load(folder: Path) -> Data:
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    # The file that sklearn.datasets.load_digits reads; to import that takes more than a second.
    path = Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz"
    rows = np.loadtxt(path, np.uint8, delimiter=",")  # 64 pixels and the label
    images = rows[:, :-1].reshape(-1, 1, 8, 8)
    labels = rows[:, -1].astype(np.int64)
    # The examples come writer by writer: every fifth of a class has all writers in both parts.
    test = every_nth_of_each_class(labels, 5)
    parts = (images[~test], labels[~test], images[test], labels[test])
    return Data(*parts, num_classes=10, max_value=16, title="digits")


DIGITS = Dataset("digits", (1442, 355), _load)
