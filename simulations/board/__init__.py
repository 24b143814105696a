"""Boards: one list of rules held side by side in several settings, each a sweep of its own."""
