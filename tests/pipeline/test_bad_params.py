"""Wrong settings, hundreds of them: params.yaml and recipes are right, or one clear line says what is wrong."""

from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from pipeline.params import check_params
from pipeline.recipe import laid_over, worktree
from slimtower.common.errors import UserError, line
from slimtower.common.settings import parse_mapping, read_mapping
from steps.core.params import load_students
from steps.promote.dvc_lock import lock_stages

pytestmark = pytest.mark.faults("bad input")

WHOLE = check_params(read_mapping(Path("params.yaml")), "params.yaml").model_dump(mode="json")  # every knob
BAD: list[Any] = [
    None, True, -1, 0, 10**30, 1.5, float("nan"), float("inf"), "", " ", "x", "../x", "/x", "\0", "x" * 5000, "\u200b",
    [], [None], ["x"], [[]], {}, {"x": 1}, {1: 2}, {"": {"": ""}},
]  # fmt: skip
TEXTS = [
    b"", b"\xff", b"\xff\xfea\0", b"a", b"[]", b"- 1", b"a: [", b"a: b: c", b"\ta: 1", b"%", b"&a [*a]", b"a: *b",
    b"!!python/object:os.x {}", b"a: 2025-02-31", b"a: " + b"9" * 5000, b"[" * 400, b"a: {" * 400, b"? [1]\n: 2",
    b"? {a: 1}\n: 2", b"\0", b"a: 1\n---\nb: 2", b"ingest: &x {sources: *x}", b"ingest: {seed: 2025-02-31T99:00:00Z}",
    b"1: 2", b"null: 1", b"ingest: {1: {2: 3}}", b"{}",
]  # fmt: skip
FREE = {"student", "teacher", "ranker", "floors", "min_relevance", "slices"}  # mappings whose keys are names
LAUGHS = "\n".join(["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40))])


def key_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and place of a list below a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield (*path, key)
        yield from key_paths(below, (*path, key))


def replaced(value: Any, path: tuple[Any, ...], bad: Any) -> Any:
    """A copy with something else at a path."""
    if not path:
        return bad
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = replaced(copy[path[0]], path[1:], bad)
    return copy


def refused(params: Any) -> bool:
    """Whether params are refused, which only an error of ours may do."""
    try:
        check_params(params, "params.yaml")
    except UserError as error:
        assert "params.yaml" in line(error) and len(line(error)) < 5000
        return True
    return False


@pytest.mark.medium
def test_a_wrong_value_anywhere_is_one_line(record_property: Callable[..., None]) -> None:
    values, outcomes = cycle(BAD), []
    for path in key_paths(WHOLE):
        outcomes += [refused(replaced(WHOLE, path, next(values))) for _ in range(2)]
    assert len(outcomes) > 500 and sum(outcomes) > len(outcomes) / 2
    record_property("cases", len(outcomes))
    assert all(refused(replaced(WHOLE, ("distill", "repeats", "spans"), float(value))) for value in ("inf", "nan"))


@pytest.mark.medium
def test_an_unknown_key_anywhere_is_named() -> None:
    mappings = [path for path in key_paths(WHOLE) if isinstance(_at(path), dict) and path[-1] not in FREE]
    assert len(mappings) > 20
    unrefused = [path for path in mappings if not refused(replaced(WHOLE, path, {**_at(path), "no_such_key": 1}))]
    assert unrefused == []


def _at(path: tuple[Any, ...]) -> Any:
    value: Any = WHOLE
    for key in path:
        value = value[key]
    return value


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_a_file_that_holds_no_params_is_one_line(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "params.yaml"
    path.write_bytes(text)
    with pytest.raises(UserError):
        check_params(read_mapping(path), str(path))
    with pytest.raises(UserError):
        load_students(path)
    with pytest.raises(UserError):
        check_params(laid_over(WHOLE, text.decode("latin-1") + "\nno_such_section: 1", {}, path), str(path))


def test_a_folder_and_aliases_without_end_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="must be a file"):
        read_mapping(tmp_path)
    with pytest.raises(UserError) as caught:
        check_params(parse_mapping(f"{LAUGHS}\ningest: *a39", "params.yaml"), "params.yaml")
    assert len(line(caught.value)) < 5000


@pytest.mark.parametrize("text", [b"", b"<<<<<<< HEAD\nstages:\n", b"\xff", b"[]", b"stages: {a: 2025-02-31}"])
def test_a_lock_that_is_none_is_one_line(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "dvc.lock").write_bytes(text)
    with pytest.raises(UserError, match=r"dvc\.lock"):
        lock_stages(tmp_path / "dvc.lock")


def test_a_recipes_name_leads_to_no_other_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of `...yaml` the name is `..`, and its worktree would be the project itself."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").write_text("kept")
    for name in ("..", ".", "a b"):
        with pytest.raises(UserError, match="recipe"):
            worktree(tmp_path, Path(f"{name}.yaml"))
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("slimtower-cache")] == ["kept"]


@pytest.mark.parametrize(
    "text", ["distill: {students: [4l]}\ndistill: {seed: 9}", "distill:\n  seed: 9\n  students: [4l]\n  seed: 8"]
)
def test_a_key_that_stands_twice_is_refused(text: str) -> None:
    """YAML would drop the first one without a word."""
    with pytest.raises(UserError, match=r"r\.yaml: not YAML: line \d: the key '\w+' stands twice"):
        parse_mapping(text, "r.yaml")
    merged = "base: &b {x: 0}\ndeep: {er: &a {<<: *b, x: 1}}\nc: {<<: *a, y: 2}"
    assert parse_mapping(merged, "r.yaml")["c"] == {"x": 1, "y": 2}
    assert parse_mapping("a: &a {b: 1, c: 2}\nd: {<<: *a, b: 3}", "r.yaml")["d"] == {"b": 3, "c": 2}


def test_broken_yaml_is_told_by_its_line_and_not_shown() -> None:
    with pytest.raises(UserError, match=r"not YAML: line \d") as caught:
        parse_mapping('ingest: {}\npassword: "hunter2secret\nb: 1', "params.yaml")
    assert "hunter2" not in line(caught.value)
