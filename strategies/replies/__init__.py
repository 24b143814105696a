"""What clients send, read without trusting it, and what is handed to the base strategy."""
