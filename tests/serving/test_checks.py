"""Whatever is changed in a release, it no longer opens, and says what to do."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from slimtower.common.errors import UserError
from slimtower.common.files import sha256_file
from slimtower.lexical.bm25 import OLDEST, TOKENIZER
from slimtower.serving.manifest import FORMAT, SHARED, Manifest, read_manifest
from slimtower.serving.release import load_release
from steps.evaluate.systems import student_tower

pytestmark = [pytest.mark.medium, pytest.mark.faults("tampered releases")]

# Nothing in the folder can contradict these but the checksum; the student's vectors only the student itself.
CHECKSUM_ONLY = {"student", "probe_tolerance", "checksum"}
Place = tuple[str | int, ...]


@pytest.fixture(params=["static", "2l"])
def copy(released: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A release that may be changed; its files are no hard links."""
    return Path(shutil.copytree(released / "models/release" / request.param, tmp_path / "release"))


def leaves(value: Any, path: Place = ()) -> Iterator[Place]:
    """Where the numbers, texts and truth values of a JSON value are; of a list of numbers only the first."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for position, inner in enumerate(value[:1] if value and isinstance(value[0], float) else value):
            yield from leaves(inner, (*path, position))
    else:
        yield path


def changed(value: Any) -> Any:
    """Another value of the same type."""
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int | float) else f"other {value}"


def put(value: Any) -> Callable[[Any, Any], None]:
    """A change that sets a value."""
    return lambda container, key: container.__setitem__(key, value)


def alter(container: Any, key: Any) -> None:
    """A change to another value of the same type."""
    container[key] = changed(container[key])


def drop(container: Any, key: Any) -> None:
    """A change that takes a value away."""
    container.pop(key)


def edit(folder: Path, path: Place, change: Callable[[Any, Any], None], *, checked: bool = True) -> None:
    """Apply `change(container, key)` at a place of manifest.json; `checked` then renews its checksum."""
    file = folder / "manifest.json"
    manifest = container = json.loads(file.read_text())
    for key in path[:-1]:
        container = container[key]
    change(container, path[-1])
    file.write_text(json.dumps(manifest))
    if checked and manifest.get("format") == FORMAT:
        with suppress(UserError):  # a field is missing or unknown: it stays broken
            read_manifest(file).write(file)


def rewrite(folder: Path, name: str, change: Callable[[Any], None]) -> None:
    """Change a JSON file of the release, and its digest in the manifest with it: only what it says is left to tell."""
    path = folder / name
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))
    part, _, inner = name.partition("/")
    digest_path: Place = {
        "query_encoder": ("student_files", inner),
        "serving": ("serving_files", inner),
        "index": ("index_manifest",) if inner == "manifest.json" else ("index_files", inner),
        "lexical": ("lexical", "files", inner),
    }[part]
    edit(folder, digest_path, put(sha256_file(path)))


def refused(folder: Path) -> str:
    """Message of the refusal; fails the test when the release opens."""
    with pytest.raises(UserError) as caught:
        load_release(folder)
    assert any(remedy in str(caught.value) for remedy in ("dvc repro", "run the stage that writes it again"))
    return str(caught.value)


@pytest.mark.parametrize("field", sorted(set(Manifest.model_fields) - {"lexical", "dims"}))
def test_every_field_of_the_manifest_is_checked(copy: Path, field: str) -> None:
    original = (copy / "manifest.json").read_text()
    paths = list(leaves(json.loads(original)[field], (field,)))
    assert paths or json.loads(original)[field] in ([], {})
    load_release(copy)
    for path in paths:
        for checked in (False, True):
            if checked and (field in CHECKSUM_ONLY or "student_vector" in path):
                continue
            edit(copy, path, alter, checked=checked)
            message = refused(copy)
            if checked:  # not for the checksum, but for what it contradicts
                assert "was changed after" not in message, path
            (copy / "manifest.json").write_text(original)
    edit(copy, (field,), drop, checked=False)
    refused(copy)


def test_no_name_can_be_dropped_from_the_manifest_or_slipped_in(copy: Path) -> None:
    original = (copy / "manifest.json").read_text()
    for field, value in json.loads(original).items():
        if not isinstance(value, dict):
            continue
        for name in value:
            edit(copy, (field, name), drop)
            refused(copy)
            (copy / "manifest.json").write_text(original)
        edit(copy, (field, "more"), put(next(iter(value.values()))))
        refused(copy)
        (copy / "manifest.json").write_text(original)
    edit(copy, ("surprise",), put(1), checked=False)
    assert "surprise" in refused(copy)


def test_every_file_is_checked(copy: Path) -> None:
    answers_nothing = {copy / "report.json", copy / "README.md"}
    files = [path for path in sorted(copy.rglob("*")) if path.is_file() and path not in answers_nothing]
    names = {path.name for path in files}
    assert {"model.safetensors", "tokenizer.json", "serving.json", "flat.faiss", "ann.faiss"} <= names
    assert {"doc_ids.parquet", "titles.parquet", "semantic_ids.parquet"} <= names
    for path in files:
        content = path.read_bytes()
        path.unlink()
        refused(copy)
        path.write_bytes(content + b"{")
        refused(copy)
        path.write_bytes(content)
    load_release(copy)


def test_notes_may_change_and_a_link_to_equal_content_is_that_content(copy: Path, tmp_path: Path) -> None:
    for name in ("report.json", "README.md"):
        (copy / name).write_text("changed")
    served = copy / "query_encoder/modules.json"
    (tmp_path / "elsewhere").write_bytes(served.read_bytes())
    served.unlink()
    served.symlink_to(tmp_path / "elsewhere")
    assert load_release(copy).query("sum", k=1)


def test_nothing_is_parsed_before_all_digests_are_compared(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("load_query_encoder", "open_index"):
        monkeypatch.setattr(
            f"slimtower.serving.release.{name}", lambda *_, name=name: pytest.fail(f"{name} was called")
        )
    path = next((copy / "index").rglob("ann*.faiss"))
    content = path.read_bytes()
    path.write_bytes(content[:-1] + b"{")
    assert refused(copy)
    path.write_bytes(content)
    edit(copy, ("teacher",), put("other"), checked=False)
    assert refused(copy)


def test_a_file_that_no_one_named_is_refused(copy: Path, tmp_path: Path) -> None:
    for name in ("serving/more.onnx", "index/one/more.faiss", "query_encoder/0/README.md"):
        path = copy / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
        folder, _, inner = name.partition("/")
        assert f"{folder}: {inner} not named by the manifest" in refused(copy)
        path.unlink()
        load_release(copy)
        path.symlink_to(tmp_path)  # a link to a folder is no file, but what lies there could be read
        assert f"{inner} not named by the manifest" in refused(copy)
        path.unlink()


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("dim", 16, "dim is 16, the index has 32"),
        ("normalise", False, "normalise is False, the index has True"),
        ("pooling", "cls", "pooling is 'cls', query_encoder/ has 'mean'"),
        ("prompt", "query: ", "prompt is 'query: ', query_encoder/ has ''"),
    ],
)
def test_an_encoder_set_up_otherwise_than_student_and_index_is_refused(
    copy: Path, field: str, value: object, message: str
) -> None:
    rewrite(copy, "serving/serving.json", lambda serving: serving.update({field: value}))
    assert f"differ in {field}" in refused(copy)
    edit(copy, ("encoder_settings", field), put(value))
    assert message in refused(copy)


def test_a_student_set_up_otherwise_than_what_serves_is_refused(copy: Path) -> None:
    name = "query_encoder/config_sentence_transformers.json"
    rewrite(copy, name, lambda settings: settings["prompts"].update(query="query: "))
    assert "prompt is '', query_encoder/ has 'query: '" in refused(copy)
    rewrite(copy, "query_encoder/modules.json", lambda modules: modules.pop())
    assert "normalise is True, query_encoder/ has False" in refused(copy)


@pytest.mark.parametrize("field", SHARED)
def test_an_index_of_other_making_is_refused(copy: Path, field: str) -> None:
    def change(index: Any) -> None:
        *parents, last = next(leaves(index[field], (field,)))
        for key in parents:
            index = index[key]
        index[last] = changed(index[last])

    rewrite(copy, "index/manifest.json", change)
    assert f"differ in {field}" in refused(copy)


def test_probes_that_are_no_numbers_or_none_are_refused(copy: Path) -> None:
    original = (copy / "manifest.json").read_text()
    vector_path: Place = ("probes", 0, "exported_vector", 0)
    for path, value, checked, message in (
        (vector_path, float("nan"), False, "finite number"),
        (vector_path, 9.0, True, "off by"),
        (("probes",), [], True, "no probes"),
    ):
        edit(copy, path, put(value), checked=checked)
        assert message in refused(copy)
        (copy / "manifest.json").write_text(original)


def test_the_student_itself_is_checked_when_it_is_opened(copy: Path) -> None:
    assert student_tower(load_release(copy)).encode_query(["sum"]).shape == (1, 32)
    edit(copy, ("probes", 0, "student_vector", 0), put(9.0))
    release = load_release(copy)
    with pytest.raises(UserError, match="query_encoder: the embedding of the probe"):
        student_tower(release)


def test_a_manifest_that_names_something_outside_is_refused_before_anything_is_opened(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = Path(shutil.copytree(released / "models/release/static", tmp_path / "a/b/release"))
    original = (copy / "manifest.json").read_text()
    monkeypatch.setattr("slimtower.serving.checks.sha256_file", lambda path: pytest.fail(f"opened {path}"))
    for field in ("student_files", "serving_files", "index_files", "datasets"):
        for name in ("../../../x", "/x", "a/../../x", "", "."):
            manifest = json.loads(original)
            manifest[field][name] = next(iter(manifest[field].values()))
            (copy / "manifest.json").write_text(json.dumps(manifest))
            message = refused(copy)
            assert f"{field}.{name}: a " in message and "\n" not in message


def test_a_module_outside_the_student_is_refused_before_it_is_opened(released: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(released / "models/release/2l", tmp_path / "release"))
    rewrite(copy, "query_encoder/modules.json", lambda modules: modules[1].update(path="../../elsewhere"))
    assert "modules.json: path '../../elsewhere': a file is named by its path inside the folder" in refused(copy)


@pytest.fixture
def fused(hybrid: Path, tmp_path: Path) -> Path:
    """A release with BM25 indexes, which may be changed."""
    return Path(shutil.copytree(hybrid / "models/release/static", tmp_path / "release"))


def test_every_file_of_a_lexical_index_is_checked(fused: Path) -> None:
    load_release(fused)
    for path in sorted((fused / "lexical").rglob("*.*")):
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        assert str(path) in refused(fused)
        path.unlink()
        assert str(path) in refused(fused)
        path.write_bytes(content)
    (fused / "lexical/one/more.npy").write_bytes(b"x")
    assert "lexical: one/more.npy not named by the manifest" in refused(fused)


def test_a_release_of_an_earlier_tokenizer_opens_with_it(fused: Path) -> None:
    assert json.loads((fused / "manifest.json").read_text())["lexical"]["tokenizer"] == TOKENIZER
    edit(fused, ("lexical", "tokenizer"), put(OLDEST))
    release = load_release(fused)
    assert release.lexical("one")._tokenizer == OLDEST and release.query("sum", dataset="one")


def test_what_the_manifest_says_of_a_lexical_index_is_checked(fused: Path) -> None:
    original = (fused / "manifest.json").read_text()

    def refusal_after(path: Place, change: Callable[[Any, Any], None], *, checked: bool = True) -> str:
        (fused / "manifest.json").write_text(original)
        edit(fused, path, change, checked=checked)
        return refused(fused)

    for field_path in leaves(json.loads(original)["lexical"], ("lexical",)):
        assert refusal_after(field_path, alter, checked=False)
    assert "was changed after" in refusal_after(("lexical", "fusions", "one", "depth"), put(7), checked=False)
    for field_path, change, message in (
        (("lexical", "bm25s"), put("0"), "written by bm25s 0, this is"),
        (("lexical", "tokenizer"), put(99), "terms of tokenizer 99, this version knows 3 to 4"),
        (("lexical", "tokenizer"), drop, "terms of tokenizer 1, this version knows 3 to 4; build the release again"),
        (("lexical", "fusions", "one"), drop, "fusions are of ['two']"),
        (("lexical", "files", "one/params.index.json"), drop, "lexical: one/"),
        (("lexical", "fusions", "one", "kind"), put("guess"), "kind"),
        (("lexical", "files", "../x"), put("0"), "lexical.files.../x: a file is named by its path inside"),
        (("lexical",), drop, "not named by the manifest"),
    ):
        assert message in refusal_after(field_path, change)


def test_a_manifest_keeps_the_dimensions_that_a_student_was_trained_for(released: Path, tmp_path: Path) -> None:
    plain = read_manifest(released / "models/release/static/manifest.json")
    assert plain.dims == [] and "dims" not in plain.as_dict()
    plain.model_copy(update={"dims": [8, 16]}).write(tmp_path / "manifest.json")
    again = read_manifest(tmp_path / "manifest.json")
    assert again.dims == [8, 16] and again.checksum not in ("", plain.checksum)
