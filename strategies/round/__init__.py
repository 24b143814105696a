"""One round: meet the clients, ask them, choose, train, evaluate; `open_round` goes through all."""
