"""The machine that a run is on: processes, memory, Ray, logs."""
