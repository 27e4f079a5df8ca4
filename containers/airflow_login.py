"""python airflow_login.py: write the one login of Airflow's simple auth manager, `admin` with AIRFLOW_ADMIN_PASSWORD.

The manager reads its passwords from a file (AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE) on a volume.
"""

import json
import os
from pathlib import Path

path = Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"])
new = path.with_suffix(".new")
new.touch(mode=0o600)
new.write_text(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}) + "\n")
new.replace(path)
