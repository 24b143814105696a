"""The study of pairs of clients behind the paper's first table."""
