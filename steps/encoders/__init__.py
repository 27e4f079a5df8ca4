"""What loads models and runs them."""
