"""The subset of the least aligned clients, and how it is found."""
