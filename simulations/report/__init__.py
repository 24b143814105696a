"""What a person sees: tables, pictures and pages."""
