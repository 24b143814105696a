"""Sweeps: rules x settings x seeds, each cell a run."""
