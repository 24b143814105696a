"""What a client sends of a layer in place of all its values, and how it travels."""
