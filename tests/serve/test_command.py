"""Which releases the command serves."""

from pathlib import Path

import pytest

from steps.core.errors import UserError
from steps.serve.__main__ import _parser, _settings


@pytest.mark.parametrize(
    ("words", "release", "model"),
    [
        ([], "models/release", ""),
        (["--release=elsewhere/4l"], "elsewhere/4l", ""),
        (["--recipe=recipes/beir.yaml"], "runs/beir/models/release", ""),
        (["--model=m@champion"], "", "m@champion"),
    ],
)
def test_releases_are_those_of_this_folder_a_recipe_or_a_registry(
    words: list[str], release: str, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("runs/beir").mkdir(parents=True)
    settings = _settings(_parser().parse_args(words))
    assert (settings.release, settings.model) == (release, model)


def test_a_recipe_that_was_not_run_or_names_too_much_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"runs/beir: .* run `make run RECIPE=recipes/beir\.yaml` first"):
        _settings(_parser().parse_args(["--recipe=recipes/beir.yaml"]))
    with pytest.raises(UserError, match="leave --release and --model out"):
        _settings(_parser().parse_args(["--recipe=recipes/beir.yaml", "--model=m@champion"]))
