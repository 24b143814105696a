"""One run: its strategy, its engine, its settings and its folder."""
