"""What several test files of the strategies need."""

import gc

import pytest


@pytest.fixture(scope="module")
def quick_collection():
    """Leave what is there out of the garbage collections of Bulyan and QFedAvg, one per array."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
