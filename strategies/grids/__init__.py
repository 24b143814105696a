"""Flower's grids: views of some nodes, polling without idle time, releases of Flower."""
