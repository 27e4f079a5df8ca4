"""MLflow's server: how it is reached, and what its failures mean."""
