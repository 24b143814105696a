"""The machine that a run is on: what it has, processes and signals, what Flower and Ray need."""
