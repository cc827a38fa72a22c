"""What one step computes: one declaration, and what is made from it."""
