"""What a stage says of itself in MLflow."""
