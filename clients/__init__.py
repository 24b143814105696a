"""The client side: one mod for any ClientApp, and a reference PyTorch client."""
