"""dags/deployment.yaml and the file laid over it."""

from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from jinja2 import Environment
from pydantic import ValidationError
from slimtower_dags import variables
from slimtower_dags.deployment import Images, _complaint, read_deployment
from slimtower_dags.graph import SettingsError, all_variables, read_graph, read_variables

from pipeline import recipe as recipes
from pipeline.params import check_params
from slimtower.common.settings import read_mapping
from steps.ingest.kinds.ubi import UbiSource

DAGS = Path(__file__).resolve().parents[2] / "dags"
MONDAY = datetime(2026, 3, 9, 3, tzinfo=UTC)


def laid_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    overlay = tmp_path / "own.yaml"
    overlay.write_text(text)
    monkeypatch.setenv("SLIMTOWER_DEPLOYMENT", str(overlay))


def test_a_cell_inherits_from_its_step_and_a_step_from_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "defaults: {cpus: 3}\nstages: {distill@4l: {memory_gib: 64}, distill: {gpus: 1, pool: gpu}}\n"
    laid_over(tmp_path, monkeypatch, f"{text}variables: {{TEST_FROM: 2026-01-31, EPOCHS: 1.0, DRY: true}}\n")
    deployment = read_deployment(DAGS)
    cell, step, unlisted = (deployment.resources(*key) for key in (("distill", "4l"), ("distill", "1l"), ("index", "")))
    assert (cell.memory_gib, cell.gpus, cell.pool, cell.cpus) == (64, 1, "gpu", 3)
    assert (step.memory_gib, step.gpus) == (8, 1)
    assert (unlisted.gpus, unlisted.pool, unlisted.cpus) == (0, "default_pool", 3)
    assert unlisted.timeout_h == 24
    assert deployment.resources("teach").micro_batch == 8  # of the file below
    assert deployment.variables == {"TEST_FROM": "2026-01-31", "EPOCHS": "1.0", "DRY": "true"}, "as YAML has them"


def test_a_wrong_setting_is_named_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for text, message in (
        ("runer: docker", "did you mean runner?"),
        ("runner: dokcer", "runner is 'dokcer': input should be 'process', 'docker' or 'kubernetes'"),
        ("stages: {teach: {gpu: 1}}", "stages.teach: gpu is unknown"),
        ("retries: '3'", "retries is '3'"),
        ("promote: {approval: 1}", "promote.approval is 1"),
        ("parallel: true", "parallel is True"),
        ("variables: {DATA: }", 'variables.DATA: empty; give a text, "" for none'),
        ("environment: {SLIMTOWER_MICRO_BATCH: }", "environment.SLIMTOWER_MICRO_BATCH: empty"),
        ("variables: {DATA: [a]}", "variables.DATA: ['a']"),
        ("stages: {teach: 8}", "stages.teach is 8; give keys and values"),
        ("stages: [teach]", "stages is ['teach']; give keys and values"),
        ("defaults:", "defaults is None; give keys and values"),
        ("retries: -1", "retries is -1"),
        ("window_days: -5", "window_days is -5"),
        ("defaults: {timeout_h: 0}", "defaults.timeout_h is 0"),
        ("stages: {teach: {cpus: -2}}", "stages.teach.cpus is -2"),
        ("[", "not YAML"),
    ):
        laid_over(tmp_path, monkeypatch, text)
        with pytest.raises(SettingsError) as caught:
            read_deployment(DAGS)
        assert message in str(caught.value) and "own.yaml" in str(caught.value)


def test_a_step_a_cell_or_an_image_that_there_is_not_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = read_graph(DAGS.parent)
    for text, message in (
        ("stages: {teech: {gpus: 1}}", "stages.teech is of no step; did you mean stages.teach?"),
        (
            "stages: {distill@statik: {gpus: 1}}",
            "stages.distill@statik is no cell of distill; did you mean stages.distill@static?",
        ),
        ("images: {digests: {teech: 'sha256:ab'}}", "images.digests.teech is of no image; did you mean teach?"),
    ):
        laid_over(tmp_path, monkeypatch, text)
        with pytest.raises(SettingsError) as caught:
            read_deployment(DAGS).check_steps(graph)
        assert message in str(caught.value)


@pytest.mark.parametrize("path", sorted((DAGS / "deployments").glob("*.yaml")), ids=lambda path: path.stem)
def test_what_the_deployments_that_come_along_name_is_there(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIMTOWER_DEPLOYMENT", str(path))
    deployment = read_deployment(DAGS)
    deployment.check_steps(read_graph(DAGS.parent, deployment.recipe, deployment.variables))


def test_a_password_in_the_engines_address_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in (
        "postgresql://me:hush@host:5432/db", "postgresql://host/db?password=hush", "https://hush@host:6333",
        "https://host:6333/?api-key=hush", "milvus+https://root:hush@host:19530",
    ):  # fmt: skip
        laid_over(tmp_path, monkeypatch, f"promote: {{deploy_to: '{address}'}}")
        with pytest.raises(SettingsError, match=r"promote\.deploy_to holds a password.*PGPASSWORD") as caught:
            read_deployment(DAGS)
        assert "hush" not in str(caught.value)
    for address in ("postgresql://me@host:5432/db", "https://host:6333", "milvus+http://host:19530"):
        laid_over(tmp_path, monkeypatch, f"promote: {{deploy_to: '{address}'}}")
        assert read_deployment(DAGS).promote.deploy_to == address


def test_a_variable_that_the_recipe_does_not_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for recipe, key, message in (
        ("recipes/click_log.yaml", "TEST_FORM", "did you mean variables.TEST_FROM?"),
        ("recipes/endpoint_teacher.yaml", "TEST_FROM", "there are BASE_URL, DATA, MODEL, UNLABELLED"),
        ("recipes/click_log.yaml", "SINCE", "is not read by recipes/click_log.yaml"),  # the window's
        ("", "DATA", "is of no recipe"),
    ):
        laid_over(tmp_path, monkeypatch, f"recipe: '{recipe}'\nvariables: {{{key}: x}}\n")
        with pytest.raises(SettingsError) as caught:
            read_deployment(DAGS).check_variables(read_variables(DAGS.parent, recipe))
        assert f"variables.{key} is " in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize("recipe", sorted((DAGS.parent / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_begin_is_told_every_variable_that_a_recipe_reads(
    recipe: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = read_variables(DAGS.parent, f"recipes/{recipe.name}")
    values = ", ".join(f"{name}: of {name}" for name in names)
    laid_over(tmp_path, monkeypatch, f"recipe: recipes/{recipe.name}\nvariables: {{{values}}}\n")
    deployment = read_deployment(DAGS)
    deployment.check_variables(names)
    environment = variables.of_begin(deployment, [], all_variables(DAGS.parent, deployment.recipe))
    assert all(environment[name] == f"of {name}" for name in names if name != "DATA")
    filled = recipes.fill(recipe.read_text(encoding="utf-8"), environment | {"SINCE": "a", "UNTIL": "b"}, recipe)
    assert all(f"of {name}" in filled or name in ("DATA", "UNLABELLED", "RELEVANCE") for name in names)


def test_begin_takes_no_variable_of_any_recipe_from_a_workers_own_shell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`EPOCHS=3` of an earlier `make run`, with which Airflow was started."""
    laid_over(tmp_path, monkeypatch, "recipe: recipes/medquad.yaml\nvariables: {}\n")
    deployment, folder = read_deployment(DAGS), DAGS.parent / "recipes"
    environment = variables.of_begin(deployment, [], all_variables(DAGS.parent, deployment.recipe))
    for recipe in sorted(folder.glob("*.yaml")):  # a run may name another
        assert not any(
            environment[name] for name in read_variables(DAGS.parent, f"recipes/{recipe.name}") if name != "DATA"
        )
    recipe = folder / "medquad.yaml"
    worker = {"EPOCHS": "3", "SINCE": "", "UNTIL": ""}
    assert "epochs: 0.0" in recipes.fill(
        recipe.read_text(encoding="utf-8"), worker | environment | {"DATA": "d"}, recipe
    )
    (tmp_path / "own.yaml").write_text("teach: {seed: ${OWN_SEED:-1}}")
    assert all_variables(tmp_path, "own.yaml") == ["OWN_SEED"]


def test_a_pinned_image_is_named_by_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = "{prefix: r.example/x/, tag: v1, gpu_tag: v1-gpu, digests: {mine: 'sha256:ab'}}"
    laid_over(tmp_path, monkeypatch, f"images: {images}")
    deployment = read_deployment(DAGS)
    assert deployment.image("index", gpu=False) == "r.example/x/slimtower-index:v1"
    assert deployment.image("teach", gpu=True) == "r.example/x/slimtower-teach:v1-gpu"
    assert deployment.image("mine", gpu=False) == "r.example/x/slimtower-mine@sha256:ab"


def run_of(run_type: str, interval_end: datetime | None) -> SimpleNamespace:
    """A run of a Thursday by its type and the end of its data interval."""
    return SimpleNamespace(
        run_type=run_type, data_interval_end=interval_end, run_after=datetime(2026, 3, 12, 17, tzinfo=UTC)
    )


def test_the_window_ends_with_the_run_unless_it_is_given() -> None:
    weekly, by_asset = run_of("scheduled", MONDAY), run_of("asset_triggered", None)
    unset = {"since": "", "until": ""}
    assert (variables.since(unset, weekly, 90), variables.until(unset, weekly, 90)) == ("2025-12-09", "2026-03-09")
    assert (variables.since(unset, weekly, 0), variables.until(unset, weekly, 0)) == ("", "2026-03-09")
    assert (variables.since(unset, weekly, None), variables.until(unset, weekly, None)) == ("", "")
    assert variables.until(unset, by_asset, 7) == "2026-03-12"
    assert variables.until(unset, run_of("backfill", MONDAY), 7) == "2026-03-09"
    explicit = {"since": "2026-01-01", "until": "2026-02-01"}
    assert (variables.since(explicit, weekly, 90), variables.until(explicit, weekly, None)) == (
        "2026-01-01",
        "2026-02-01",
    )
    assert variables.since({"since": "", "until": "2026-02-01T12:00:00"}, weekly, 7) == "2026-01-25"
    for inferred in (None, MONDAY):  # by hand from the command line, and from Airflow's page
        manual = run_of("manual", inferred)
        window = (variables.since(unset, manual, 7), variables.until(unset, manual, 7))
        assert window == ("2026-03-05", "2026-03-12") and variables.before_until(unset, manual, 14) == "2026-02-26"
        assert variables.is_past({"until": "2026-02-01"}, manual) and not variables.is_past(unset, manual)
    assert variables.is_past(unset, run_of("backfill", MONDAY))


@pytest.mark.parametrize("example", ["gpu_cluster", "search_log"])
@pytest.mark.parametrize(("until_date", "expected"), [("", "2026-02-23"), ("2026-02-01", "2026-01-18")])
def test_an_examples_test_queries_are_those_of_its_windows_last_two_weeks(
    until_date: str, expected: str, example: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    environment = begin_environment(example, until_date, monkeypatch)
    assert environment["TEST_FROM"] == expected
    assert environment["SINCE"] <= environment["TEST_FROM"] <= environment["UNTIL"]


def begin_environment(example: str, until_date: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What `begin` is told by a run under an example, its templates rendered."""
    monkeypatch.setenv("SLIMTOWER_DEPLOYMENT", str(DAGS / f"deployments/{example}.yaml"))
    deployment = read_deployment(DAGS)
    run = run_of("scheduled", MONDAY)
    params = {"since": "", "until": until_date, "recipe": deployment.recipe, "data": deployment.variables["DATA"]}
    context = variables.MACROS | {"params": params, "dag_run": run}
    templates = variables.of_begin(deployment, [], [])
    return {name: Environment().from_string(text).render(context) for name, text in templates.items()}


def test_the_example_of_the_services_log_gives_its_recipe_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    environment = begin_environment("search_log", "", monkeypatch)
    recipe = DAGS.parent / environment["SLIMTOWER_RECIPE"]
    text, base = recipe.read_text(encoding="utf-8"), read_mapping(DAGS.parent / "params.yaml")
    (source,) = check_params(recipes.laid_over(base, text, environment, recipe), recipe.name).ingest.sources
    assert isinstance(source, UbiSource) and not source.simulated
    assert (source.name, source.queries) == ("api", "s3://your-bucket/searches/api/queries")
    assert environment["DATA"].endswith(f"/{environment['DATASET']}")


def test_a_missing_setting_shows_nothing_that_stands_around_it() -> None:
    with pytest.raises(ValidationError) as caught:
        Images.model_validate({"prefix": "a", "digests": {"KEY": "secret"}})
    assert _complaint(caught.value) == "tag is missing"
