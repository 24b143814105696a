"""Apps of the shape of Flower's own examples, on small data made here.

Each module is one example. `RUN_CONFIG` has its settings, `make_client_app` makes the clients' app
with the mods given, and `main` is its server's: it hands the strategy that it makes to `select`,
which is the one line to change on the server. Where that is not all, `main_with_selection` shows
what to write.
"""

from collections.abc import Callable

from flwr.serverapp.strategy import Strategy

Config = dict[str, bool | int | float | str]
Select = Callable[[Strategy], Strategy]

NEEDS = {
    "quickstart_numpy": (),
    "quickstart_sklearn": ("sklearn",),
    "quickstart_pytorch": ("torch",),
    "quickstart_jax": ("jax",),
    "quickstart_xgboost": (),
    "advanced_pytorch": ("torch",),
    "custom_mods": ("torch",),
    "opacus_dp": ("torch", "opacus"),
    "resnet": ("torch",),
    "fedprox": (),
    "named_action": (),
}
"""The examples, and the packages that each needs beyond Flower and NumPy."""
