"""One round: who is there, who is asked, who is chosen, and what they deliver."""
