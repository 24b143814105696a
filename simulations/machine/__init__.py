"""The machine that a run is on: processes, what there is of it, Ray, logs."""
