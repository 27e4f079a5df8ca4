"""The deployment's compose file, as engines of both kinds read it."""

from pathlib import Path

import yaml


def test_no_service_depends_on_one_that_ends() -> None:
    """podman-compose waits until what is depended on runs: of one that has ended already, for ever."""
    services = yaml.safe_load(Path("containers/compose.yaml").read_text(encoding="utf-8"))["services"]
    lasting = {name for name, service in services.items() if service.get("restart") == "unless-stopped"}
    ending = services.keys() - lasting
    assert {"account", "airflow-init"} <= ending
    awaited = {other for service in services.values() for other in service.get("depends_on", ())}
    assert awaited == {"postgres", "mlflow"} and not awaited & ending
