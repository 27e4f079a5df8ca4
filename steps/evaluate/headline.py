"""Names of the figures that stand for a whole run in MLflow's list of runs."""

HEADLINE = ("nDCG_at_10", "teacher_nDCG_at_10", "retention", "p50_ms", "times_as_fast")
