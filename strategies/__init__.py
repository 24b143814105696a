"""The server side: a two-phase round around any Flower strategy, and one file per selection rule."""
