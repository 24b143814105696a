"""Runs that go on where they stopped: what is saved, how, and by whom it is held."""
