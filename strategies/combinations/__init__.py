"""How what the chosen deliver becomes the change of the model."""
