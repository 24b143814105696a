"""PNCS: the clients whose gradients are least alike by power-norm cosine similarity."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from statistics import fmean

import numpy as np

from pncs_flower import least_aligned_subset
from pncs_flower.randomness import derive_seed
from pncs_flower.similarity import Form, check_parameters, layered_cosine
from pncs_flower.sketches.kinds import parse_sketch
from pncs_flower.sketches.packed import row

from ..checks import check_flags, check_not_negative
from ..rule import Choice, Round, RuleState, Summary, replaced
from ..rule_strategy import RuleStrategy
from ..sketch_rule import SketchRule, check_candidates, longest_unasked

__all__ = ["PNCS", "PNCSRule"]

SMALL = "coordinates:5%@int8"
"""The default sketch: with 2 of 10 chosen, a round has a quarter of the bytes of all updates."""


@dataclass(frozen=True)
class PNCSRule(SketchRule):
    """Choose the subset of least mean similarity; see `PNCS`. It remembers nothing."""

    sketch: str = SMALL
    p: float = 4
    form: Form = "squared"
    layer_weights: Mapping[str, float] | tuple[tuple[str, float], ...] | None = None
    num_candidates: int | None = field(default=None, metadata={"name": "candidates"})
    per_layer: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_parameters(self.p, self.form)
        parse_sketch(self.sketch).check_order(self.p)
        if self.layer_weights is not None:
            replaced(self, layer_weights=_weights(self.layer_weights, self.layers))
        check_flags(per_layer=self.per_layer)
        if self.per_layer and self.layer_weights is not None:
            raise ValueError(
                "layer_weights are given and per_layer is True, but weights are for the average "
                "over layers that per_layer does not take: leave one of them out"
            )
        if self.num_candidates is not None:
            check_candidates(self.num_candidates, self.num_selected, ", or leave it out to ask all")

    def candidates(self, state: RuleState, now: Round) -> tuple[str, ...]:
        """Ask all that are available, or some: those not asked for the longest time."""
        return longest_unasked(now.available, self.num_candidates, now)

    def similarities(self, summaries: Mapping[str, Summary]) -> dict[str, np.ndarray]:
        """Return the similarity of every two clients in each layer, shapes (K, K)."""
        sketch = parse_sketch(self.sketch)
        layers = next(iter(summaries.values()))
        return {
            layer: sketch.pairwise_cosine(
                [row(summary, layer) for summary in summaries.values()], self.p, self.form
            )
            for layer in layers
        }

    def similarity(self, summaries: Mapping[str, Summary]) -> np.ndarray:
        """Return the similarity of every two clients, shape (K, K), in the order given."""
        weights = None if self.layer_weights is None else dict(self.layer_weights)
        return layered_cosine(self.similarities(summaries), weights)

    def select(self, state: RuleState, now: Round, summaries: Mapping[str, Summary]) -> Choice:
        """Choose the subset that is least alike, or that of each layer."""
        clients, seed = list(summaries), derive_seed(now.seed, "subset search", now.number)
        alike = self.similarities(summaries) if self.per_layer else {"": self.similarity(summaries)}
        subsets = {
            layer: least_aligned_subset(similarity, now.num_selected, seed=seed)
            for layer, similarity in alike.items()
        }
        chosen = {
            layer: tuple(clients[index] for index in subset.indices)
            for layer, subset in subsets.items()
        }
        return Choice(
            tuple(dict.fromkeys(chain.from_iterable(chosen.values()))),
            mean_similarity=fmean(subset.mean_similarity for subset in subsets.values()),
            optimal=all(subset.optimal for subset in subsets.values()),
            by_layer=chosen if self.per_layer else {},
            similarity=None if self.per_layer else (clients, alike[""]),
        )


def _weights(given: object, layers: Sequence[str] | None) -> tuple[tuple[str, float], ...]:
    """Return checked weights of layers, of a form that cannot be changed."""
    if not isinstance(given, Mapping | tuple):
        raise TypeError(f"layer_weights is {given!r}, but must give each layer's weight by name")
    weights = dict(given)
    check_not_negative(**{f"layer_weights[{layer!r}]": each for layer, each in weights.items()})
    if not 0 < sum(weights.values()) < math.inf:
        raise ValueError(f"layer_weights is {weights}, but must not be all 0, or infinite in sum")
    if layers is None or set(layers) != set(weights):
        raise ValueError(
            f"layer_weights names the layers {', '.join(weights)}, but layers are "
            f"{'not given' if layers is None else ', '.join(layers)}: name the same in both"
        )
    return tuple(weights.items())


class PNCS(RuleStrategy):
    """Select clients by power-norm cosine similarity (PNCS, arXiv:2506.15923).

    Each round, the clients that do not cool down in the Age-of-Update queue send a sketch of their
    update or gradient (``summary``); the subset with the least mean similarity over its pairs
    (section IV-C) sends its full update. (With a combination that fits sketches, those that cool
    down send one too.)

    Parameters
    ----------
    queue_length : int or None (default: None)
        Length of the Age-of-Update queue, in clients (L in the paper, where it is 4);
        ``rest_rounds`` says it in rounds. None: the longest that leaves more clients free than are
        chosen, in whole rounds: 3 with 2 of 10, 8 with 10 of 100. Longer was mostly better where it
        was tried, but with more than this there is nothing to choose.
    layers : sequence of str, optional (default: None)
        Layers to compare, such as ``["classifier.6"]``; all if None. The similarity is computed for
        each layer and averaged.
    p : float (default: 4)
        Order of the norm, at least 1.
    form : {"squared", "normalized", "printed", "power"} (default: "squared")
        How the paper's formula is read; see `pncs_flower.cosine`.
    sketch : str or Sketch (default: "coordinates:5%@int8")
        What a client sends of each layer: some of its values, ``"coordinates:R"``, or
        ``"coordinates:PERCENT%"``, as many as take that part of the bytes of an update, but 100 at
        least; all of them, ``"layers"``, as in the paper; or, for p = 4, ``"power-moments:R"``, for
        p = 2, ``"count:R"``; each perhaps in fewer bytes, ``"@float16"`` or ``"@int8"``.
    summary : {"update", "gradient"} (default: "update")
        Compare the clients' local updates, which they keep and send if chosen, or their gradients
        at the current weights, which the app must be able to give
        (`pncs_flower.clients.SummaryMod`).
    layer_weights : mapping of str to float, optional (default: None)
        Weight of each of ``layers`` in the average, at least 0; equal if None. Only their
        proportions matter.
    candidates : int, optional (default: None)
        Ask so many of the available clients each round, at least ``num_selected``, and choose among
        them: those not asked for the longest time first. All are asked if None.
    per_layer : bool (default: False)
        Choose ``num_selected`` clients for each of ``layers``, whose mean that layer becomes; a
        round then trains all of these. Layers that are not compared are averaged over all of them,
        not over all clients as in the earlier code of one of the authors. For reproducing the
        paper; the base strategy must be one that averages. As more than ``num_selected`` rest after
        a round, a rest of your own (``rest_rounds``) may leave more to choose from.
    """

    rule_type = PNCSRule
    queue_length = None
