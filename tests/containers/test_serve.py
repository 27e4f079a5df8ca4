"""The service in compose.yaml and on Kubernetes: options that it has, and no login but its own."""

import re
from pathlib import Path
from typing import Any

import yaml

from slimtower.service.command import _parser

FOLDER = Path(__file__).parents[2] / "containers"
COMPOSE = (FOLDER / "compose.yaml").read_text(encoding="utf-8")


def in_compose() -> dict[str, Any]:
    return yaml.safe_load(COMPOSE)["services"]["serve"]


def test_settings_of_env_become_options_of_the_service() -> None:
    example = (FOLDER / ".env.example").read_text(encoding="utf-8")
    assert set(re.findall(r"\bSERVE_\w+", COMPOSE)) <= set(re.findall(r"(?m)^(\w+)=", example))
    given = [re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", word) for word in in_compose()["command"]]
    container = next(yaml.safe_load_all((FOLDER / "kubernetes/serve.yaml").read_text(encoding="utf-8")))
    container = container["spec"]["template"]["spec"]["containers"][0]
    values = {row["name"]: row["value"] for row in container["env"]}
    on_kubernetes = [re.sub(r"\$\((\w+)\)", lambda found: values[found[1]], word) for word in container["args"]]
    alone = _parser().parse_args(["--host=0.0.0.0", "--model=slimtower@champion", "--workers=2"])
    for words in (given, on_kubernetes):
        assert _parser().parse_args([*words, "--hosts="]) == alone  # what nobody sets is as everywhere
        assert {"--trusted-proxies", "--consent", "--rate"} <= {word.partition("=")[0] for word in words}


def test_the_service_has_no_login_of_the_pipeline() -> None:
    secret = {
        name: value for name, value in in_compose()["environment"].items() if re.search("PASSWORD|USERNAME|KEY", name)
    }
    assert len(secret) == 4 and all(value.startswith("${SERVE_") for value in secret.values())
