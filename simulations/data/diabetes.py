"""How diabetes goes on in 442 people, by ten measurements: numbers, from scikit-learn."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np

from .examples import Data, Dataset


def _load(folder: Path) -> Data:
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise ModuleNotFoundError("No module named 'sklearn'", name="sklearn")
    # The files that sklearn.datasets.load_diabetes reads; to import that takes more than a second.
    files = Path(found.origin).parent / "datasets" / "data"
    table = np.column_stack(
        [
            np.loadtxt(files / "diabetes_data_raw.csv.gz"),  # ten measurements
            np.loadtxt(files / "diabetes_target.csv.gz"),  # the disease after a year
        ]
    )
    test = np.arange(len(table)) % 5 == 4
    # Each column, the labels too, by mean and deviation of the training examples.
    table = (table - table[~test].mean(axis=0)) / table[~test].std(axis=0)
    inputs, labels = table[:, :-1].astype(np.float32), table[:, -1].astype(np.float32)
    parts = (inputs[~test], labels[~test], inputs[test], labels[test])
    return Data(*parts, num_classes=0, title="diabetes", kind="numbers")


DIABETES = Dataset("diabetes", (354, 88), _load)
