"""Which releases the command serves."""

from pathlib import Path

import pytest
import yaml

from slimtower.common.errors import UserError
from slimtower.service.app import OPEN_S
from slimtower.service.command import _check_free, _parser, _serve, _settings
from slimtower.service.service import make_source


def test_releases_are_those_of_this_folder_a_recipe_or_a_registry(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/beir").mkdir(parents=True)
    for words, release, model in (
        ([], "models/release", ""),
        (["--release=elsewhere/4l"], "elsewhere/4l", ""),
        (["--recipe=recipes/beir.yaml"], "runs/beir/models/release", ""),
        (["--model=m@champion"], "", "m@champion"),
    ):
        settings = _settings(_parser().parse_args(words))
        assert (settings.release, settings.model) == (release, model)
    for words, message in (
        (["--poll=0"], "poll_s"), (["--model=m"], "such as slimtower@champion"),
        (["--model=m@champion", "--release=x"], "not both"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=message):
            make_source(_settings(_parser().parse_args(words)))
    with pytest.raises(UserError, match="0-65535"):
        _check_free("127.0.0.1", 99999)


@pytest.mark.parametrize(
    ("words", "hosts"),
    [
        ([], ["localhost", "127.0.0.1", "::1"]),
        (["--host=0.0.0.0"], []),
        (["--hosts=Search.example, localhost,"], ["search.example", "localhost"]),
        (["--host=0.0.0.0", "--hosts=search.example"], ["search.example"]),
    ],
)
def test_a_service_for_this_machine_alone_answers_to_its_names_alone(words: list[str], hosts: list[str]) -> None:
    assert _settings(_parser().parse_args(["--model=m@champion", *words])).hosts == hosts


def test_connections_are_those_that_cut_who_keeps_them_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    server_options: dict[str, object] = {}
    monkeypatch.setattr("uvicorn.run", lambda app, **options: server_options.update(options))
    monkeypatch.setattr("logging.config.dictConfig", lambda config: None)
    arguments = _parser().parse_args(["--model=m@champion"])
    _serve(_settings(arguments), arguments)
    assert (server_options["http"], server_options["ws"]) == ("slimtower.service.limits:Connection", "none")
    assert server_options["limit_concurrency"] == 800


def test_kubernetes_waits_for_the_port_longer_than_it_may_take_to_open() -> None:
    manifest = Path(__file__).parents[2] / "containers/kubernetes/serve.yaml"
    deployment = next(yaml.safe_load_all(manifest.read_text(encoding="utf-8")))
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    probe = container["startupProbe"]
    assert probe["httpGet"]["path"] == container["livenessProbe"]["httpGet"]["path"] == "/health/live"
    assert container["readinessProbe"]["httpGet"]["path"] == "/health"
    assert probe["periodSeconds"] * probe["failureThreshold"] > 4 * OPEN_S
