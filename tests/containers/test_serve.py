"""compose.yaml and the service on Kubernetes: the order of services, their options, and no login but their own."""

import re
from pathlib import Path

import yaml

from slimtower.service.command import _parser

FOLDER = Path(__file__).parents[2] / "containers"
COMPOSE = (FOLDER / "compose.yaml").read_text(encoding="utf-8")
SERVICES = yaml.safe_load(COMPOSE)["services"]


def test_no_service_depends_on_one_that_ends() -> None:
    """podman-compose waits until what is depended on runs: of one that has ended already, for ever."""
    ending = {name for name, service in SERVICES.items() if service.get("restart") != "unless-stopped"}
    assert {"account", "airflow-init"} <= ending
    awaited = {dependency for service in SERVICES.values() for dependency in service.get("depends_on", ())}
    assert awaited == {"postgres", "mlflow"} and not awaited & ending


def test_settings_of_env_become_options_of_the_service() -> None:
    example = (FOLDER / ".env.example").read_text(encoding="utf-8")
    assert set(re.findall(r"\bSERVE_\w+", COMPOSE)) <= set(re.findall(r"(?m)^(\w+)=", example))
    on_compose = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in SERVICES["serve"]["command"]]
    container = next(yaml.safe_load_all((FOLDER / "kubernetes/serve.yaml").read_text(encoding="utf-8")))
    container = container["spec"]["template"]["spec"]["containers"][0]
    values = {row["name"]: row["value"] for row in container["env"]}
    on_kubernetes = [re.sub(r"\$\((\w+)\)", lambda match: values[match[1]], word) for word in container["args"]]
    alone = _parser().parse_args(["--host=0.0.0.0", "--model=slimtower@champion", "--workers=2"])
    for words in (on_compose, on_kubernetes):
        assert _parser().parse_args([*words, "--hosts="]) == alone  # what nobody sets is as everywhere
        assert {"--trusted-proxies", "--consent", "--rate"} <= {word.partition("=")[0] for word in words}


def test_the_service_has_no_login_of_the_pipeline() -> None:
    environment = SERVICES["serve"]["environment"]
    secret = {name: value for name, value in environment.items() if re.search("PASSWORD|USERNAME|KEY", name)}
    assert len(secret) == 4 and all(value.startswith("${SERVE_") for value in secret.values())
