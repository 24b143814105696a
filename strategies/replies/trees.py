"""Tree ensembles in XGBoost's JSON, which Flower's bagging joins without looking at them."""

import json

from flwr.serverapp import strategy as flower
from flwr.serverapp.strategy import Strategy

from ..base_strategy import unwrap

__all__ = ["check_trees", "joins_trees"]


def joins_trees(base: Strategy) -> bool:
    """Tell whether a base strategy joins tree ensembles as Flower's bagging does."""
    bagging = getattr(flower, "FedXgbBagging", ())  # younger than the oldest release of Flower
    return any(isinstance(strategy, bagging) for strategy in unwrap(base))


def check_trees(data: bytes) -> None:
    """Check the trees that a client has sent."""
    try:
        ensemble = json.loads(data)
        model = ensemble["learner"]["gradient_booster"]["model"]
        sizes = model["gbtree_model_param"]
        num_trees, parallel = int(sizes["num_trees"]), int(sizes["num_parallel_tree"])
        starts, trees, info = model["iteration_indptr"], model["trees"], model["tree_info"]
        sound = (
            all(isinstance(part, list) for part in (starts, trees, info))
            and 1 <= parallel <= num_trees == len(trees)
            and all(isinstance(tree, dict) for tree in trees)
            and len(starts) > 0
            and all(isinstance(start, int) for start in starts)
        )
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        raise ValueError(f"no tree ensemble in XGBoost's JSON: {type(error).__name__}") from None
    if not sound:
        raise ValueError("no tree ensemble in XGBoost's JSON: its numbers of trees do not agree")
