"""A client whose sketch is not that of its update is left out for the rest of the run."""

import pytest
from apps import numpy_app
from culprits import run, with_summary
from flwr.app import Array
from flwr.serverapp.strategy import FedAvg

from pncs_flower.clients import SummaryMod
from pncs_flower.clients.privacy import SketchNoise
from pncs_flower.simulations.run.in_process import InProcessGrid
from pncs_flower.strategies import PNCS, GradientMemory, TooFewClientsError


@pytest.mark.parametrize("sketch", ["layers", "count:8", "count:8@float16", "count:8@int8"])
def test_liar_is_left_out_at_its_first_full_update_and_honest_clients_never(sketch):
    lie = with_summary(lambda s: s.update(head=Array(-s["head"].numpy())))
    strategy = GradientMemory(
        FedAvg(fraction_evaluate=0.0), num_selected=2, sketch=sketch, verify_sketches=True
    )
    run("summarize", lie, strategy, rounds=12)
    caught = [r.round for r in strategy.history if "not that of its update" in str(r.rejected)]
    assert len(caught) == 1
    first_chosen = next(r.round for r in strategy.history if "1" in r.chosen)
    assert caught == [first_chosen]
    assert all("1" not in r.clients for r in strategy.history[caught[0] :])
    rejected = {client for record in strategy.history for client in record.rejected}
    assert rejected == {"1"}


def test_noise_on_summaries_makes_an_honest_client_look_like_a_liar():
    app = numpy_app.make_app(SummaryMod(noise=SketchNoise(1.0, 1.0, secret=2)))
    strategy = PNCS(
        FedAvg(fraction_evaluate=0.0), queue_length=0, verify_sketches=True, sketch="layers"
    )
    strategy.start(InProcessGrid(app, 4), numpy_app.initial_arrays(), num_rounds=1)
    record = strategy.history[0]
    assert all("not that of its update" in record.rejected[client] for client in record.chosen)


def test_a_liar_stays_out_after_a_restart(tmp_path):
    lie = with_summary(lambda s: s.update(head=Array(-s["head"].numpy())))

    def strategy():
        return PNCS(
            FedAvg(fraction_evaluate=0.0),
            queue_length=0,
            num_selected=4,
            verify_sketches=True,
            checkpoint=tmp_path,
            min_clients=None,
        )

    run("summarize", lie, strategy(), rounds=1)
    resumed = strategy()
    with pytest.raises(TooFewClientsError, match="3 clients take part"):
        run("summarize", lie, resumed, rounds=2)
