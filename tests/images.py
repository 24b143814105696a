"""A folder of random images, one for each of ten classes in either part."""

from pathlib import Path

import numpy as np
from PIL import Image


def write_images(folder: Path, of_each: int = 1) -> None:
    """Write images of 32x32 pixels as ``train/<label>/<number>.png``, and so for ``test``."""
    random = np.random.default_rng(0)
    for part in ("train", "test"):
        for label in range(10):
            (folder / part / str(label)).mkdir(parents=True)
            for number in range(of_each):
                pixels = random.integers(0, 256, (32, 32, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / part / str(label) / f"{number}.png")
