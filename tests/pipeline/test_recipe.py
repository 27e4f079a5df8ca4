"""Recipes: overlays merge, variables are filled or named, and words mean what they say."""

import copy
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pipeline.params import Params, check_params
from pipeline.recipe import (
    check_names,
    fill,
    given_variables,
    laid_over,
    overlay,
    run,
)
from slimtower.common.errors import UserError
from slimtower.common.settings import read_mapping


def test_mappings_merge_while_lists_and_a_students_start_replace() -> None:
    base = {"a": {"x": 1, "y": [1, 2]}, "b": 3, "2l": {"start": {"layers": [0, -1]}, "epochs": 1.0}}
    before = copy.deepcopy(base)
    change = {"a": {"y": [9]}, "c": 4, "2l": {"start": {"base": "another"}}}
    merged = {"a": {"x": 1, "y": [9]}, "b": 3, "2l": {"start": {"base": "another"}, "epochs": 1.0}, "c": 4}
    assert overlay(base, change) == merged and base == before


@pytest.mark.parametrize(
    ("text", "variables", "filled"),
    [
        ("# ${DATA} is a folder\npath: ${DATA}", {"DATA": "x/../y"}, "# ${DATA} is a folder\npath: {here}/y"),
        ("unlabelled_queries: '${UNLABELLED:-}'", {}, "unlabelled_queries: ''"),
        ("base: ${LATE}", {"LATE": "runs/x/tower"}, "base: {here}/runs/x/tower"),  # a folder that is there
        ("base: ${LATE}", {"LATE": "owner/model"}, "base: owner/model"),
        ("path: ${DATA}", {"DATA": "s3://logs/search"}, "path: s3://logs/search"),
    ],
)
def test_variables_are_filled_paths_absolute_and_comments_left_alone(
    text: str, variables: dict[str, str], filled: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/x/tower").mkdir(parents=True)
    assert fill(text, variables, Path("r.yaml")) == filled.replace("{here}", str(tmp_path))


def test_a_variable_that_is_missing_or_would_end_a_text_is_refused() -> None:
    with pytest.raises(UserError, match=r"needs DATA; run `make run RECIPE=r\.yaml DATA="):
        fill("path: ${DATA}", {"DATA": ""}, Path("r.yaml"))
    for value in ('/d"}]\npromote: {x: 1}', "a\\b", 'a"b', "a\u2028b"):
        with pytest.raises(UserError, match="have no place in a value"):
            fill('path: "${DATA}"', {"DATA": value}, Path("r.yaml"))


def test_a_misspelt_variable_is_refused_and_one_of_another_recipe_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = 'path: "${DATA}"\nunlabelled_queries: "${UNLABELLED:-}"\n'
    recipe = tmp_path / "own.yaml"
    recipe.write_text(text)
    (tmp_path / "other.yaml").write_text("epochs: ${EPOCHS:-0.0}\n")
    check_names({"DATA": "x", "UNLABELLED": "", "LAYERS": ""}, text, recipe)
    assert not capsys.readouterr().err
    check_names({"DATA": "x", "EPOCHS": "1"}, text, recipe)
    assert "reads no EPOCHS, which changes nothing" in capsys.readouterr().err
    with pytest.raises(UserError, match="reads no UNLABELED, but UNLABELLED"):
        check_names({"DATA": "x", "UNLABELED": "y"}, text, recipe)


def test_a_command_that_was_killed_ends_as_in_a_shell(tmp_path: Path) -> None:
    killed = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"]
    assert run(killed, tmp_path, dict(os.environ)) == 137


def make(*words: str) -> list[str]:
    """What make prints."""
    done = subprocess.run(["make", "--no-print-directory", *words], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_what_was_typed_after_make_means_what_it_says(tmp_path: Path) -> None:
    typed = {
        "Q": f"what costs $5 in $HOME? $(shell touch {tmp_path}/ran) #1 \"now\" 'then'",
        "TO": "postgresql://me:pa$word@host/db",
        "DATA": "/data/a$b c",
        "OLD": "$$",
        "UNLABELED": "a$(b)",  # no name of ours
    }
    variables = " ".join(f'"$${name}"' for name in typed)
    rule = f"show: ; @printf '%s\\n' {variables} '$(TYPED)'"
    printed = make(f"--eval={rule}", "show", *(f"{name}={value}" for name, value in typed.items()))
    assert printed[:5] == list(typed.values()) and "UNLABELED" in printed[5].split()
    assert not (tmp_path / "ran").exists()
    handed_on = "".join(make("-n", "run", "RECIPE=recipes/beir.yaml", "DATA=a b", "UNLABELED=x"))
    assert 'UNLABELED="$UNLABELED"' in handed_on and 'RECIPE="$RECIPE"' not in handed_on


def test_make_clean_spares_what_it_does_not_own(tmp_path: Path) -> None:
    shutil.copy("Makefile", tmp_path)
    for name in ("data/a docs", "data/ingest", "data/rank/cross", "docs", "models", ".dvc/cache/files", ".dvc/tmp"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "data/rank/README.md").touch()
    for _ in range(2):  # again where nothing is left of it
        subprocess.run(["make", "clean"], cwd=tmp_path, check=True)
        files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")}
        assert files == {".dvc", "Makefile", "data", "data/rank", "data/rank/README.md", "docs"}


def laid(name: str, **variables: str) -> Params:
    """params.yaml with a recipe over it."""
    path = Path(f"recipes/{name}.yaml")
    text = path.read_text(encoding="utf-8")
    return check_params(laid_over(read_mapping(Path("params.yaml")), text, {"DATA": "data"} | variables, path), name)


def test_every_recipe_is_valid_begins_with_its_command_and_pins_models_to_a_commit() -> None:
    named = re.compile(r"(?m)^ *base: (?:\$\{\w+:-)?([\w.-]+/[\w.-]+)(@[0-9a-f]{40})?\}?$")
    models = named.findall(Path("params.yaml").read_text("utf-8"))
    for recipe in sorted(Path("recipes").glob("*.yaml")):
        text = recipe.read_text(encoding="utf-8")
        assert text.startswith(f"# make run RECIPE={recipe}")
        models += named.findall(text)
        laid(recipe.stem)
    assert len(models) > 2 and [name for name, commit in models if not commit] == []


@pytest.mark.parametrize("name", ["beir", "click_log", "llm_teacher", "medquad", "scifact", "scifact_medquad", "ubi"])
def test_data_of_ones_own_meet_no_cap_and_keep_their_index_until_a_teacher_is_trained_by_command(name: str) -> None:
    params = laid(name)
    ranker = params.rank.described("cross")
    assert ranker.max_triplets == ranker.max_queries == params.candidates.max_queries == params.mine.max_positives == 0
    if name in ("llm_teacher", "scifact_medquad"):
        return
    assert ranker.max_length == 256, "longer pairs than the demo's"
    for typed, epochs in (("", 0.0), ("1.5", 1.5)):
        params = laid(name, EPOCHS=typed)
        teacher = params.teach.described("dense").model_dump()
        assert (teacher["epochs"], teacher["max_triplets"]) == (epochs, 0) and params.evaluate.earlier_towers


def test_a_variable_of_the_environment_is_read_unless_another_value_was_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATA", "from the environment")
    monkeypatch.setenv("MODEL", "of no recipe here")
    text = 'path: "${DATA}"\nepochs: ${EPOCHS:-0.0}\n'
    assert given_variables(text, {}) == {"DATA": "from the environment", "EPOCHS": ""}
    assert given_variables(text, {"DATA": "typed", "EPOCHS": "1"}) == {"DATA": "typed", "EPOCHS": "1"}
