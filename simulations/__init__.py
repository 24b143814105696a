"""A Flower app that trains with diverse client selection: `flwr run simulations`."""
