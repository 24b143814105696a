"""Networks: small ones from scratch, and frozen ones of which the last layers are trained."""
