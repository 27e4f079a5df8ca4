"""Tests of dags/: what needs Airflow is in with_airflow/, for an environment of its own (test_with_airflow.py)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "dags"))
collect_ignore = ["with_airflow"]
