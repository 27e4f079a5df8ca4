"""A record says which code it measured; one of other code, or of code that nobody committed, is told apart."""

from pathlib import Path

import pytest

from bench import machine, stale
from bench.recorded_code import RecordEntry, code_digests, entry_of, essence, origins, record_name
from bench.tables.expected import EXPECTED, read_expected
from slimtower.common.errors import UserError
from slimtower.common.files import read_json, write_json

SOURCE = '''"""What a module is."""

# a comment
def score(x: float) -> str:
    """É, # not a comment
    of two lines.
    """
    text = "# kept é"  # gone é
    return f"{x}" + text


class Tower:
    """Documented."""

    scale: float = 1.0
    """A knob."""


async def read() -> None:
    "of one line"; print("""kept""")
'''


def test_only_comments_docstrings_and_blank_lines_do_not_count() -> None:
    assert essence(SOURCE).splitlines() == [
        "def score(x: float) -> str:",
        '    text = "# kept é"',
        '    return f"{x}" + text',
        "class Tower:",
        "    scale: float = 1.0",
        "async def read() -> None:",
        '    ; print("""kept""")',
    ]
    changes = [
        ("{x}", "{x:.2f}"),
        ("# kept", "# left"),
        ("float", "int"),
        ("score", "rank"),
        ('"""kept"""', '"kept"'),
        ("# kept é", "#kept é"),
    ]
    for old, new in changes:
        assert essence(SOURCE) != essence(SOURCE.replace(old, new, 1)), old
    loop = "for x in y:\n    a(x)\n    b(x)\n"
    assert essence(loop) != essence(loop.replace("    b", "b"))


def test_packages_modules_and_files_have_digests(tmp_path: Path) -> None:
    (tmp_path / "steps/inner").mkdir(parents=True)
    (tmp_path / "steps/inner/part.py").write_text("x = 1\n")
    (tmp_path / "steps/single.py").write_text("y = 1\n")
    (tmp_path / "params.yaml").write_text("a: 1  # one\nb: [2]\n")
    (tmp_path / "steps/run.lock").write_text("torch==1\n")
    names = ["steps", "steps.inner", "steps.single", "params.yaml", "steps/run.lock", "steps.gone"]
    before = code_digests(names, tmp_path)
    assert before["steps.gone"] == "" and len(set(before.values())) == len(names)
    (tmp_path / "steps/inner/part.py").write_text('"""Documented."""\nx = 1  # more\n')
    (tmp_path / "params.yaml").write_text("{b: [2], a: 1}\n")
    assert code_digests(names, tmp_path) == before
    (tmp_path / "steps/inner/part.py").write_text("x = 2\n")
    (tmp_path / "params.yaml").write_text("{b: [2], a: 2}\n")
    (tmp_path / "steps/run.lock").write_text("torch==2\n")
    after = code_digests(names, tmp_path)
    assert {name for name in names if after[name] != before[name]} == {
        "steps",
        "steps.inner",
        "params.yaml",
        "steps/run.lock",
    }


def test_a_changed_or_uncommitted_record_is_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("steps").mkdir()
    Path("steps/one.py").write_text("x = 1\n")
    entries = {"tables/*": RecordEntry(code=["steps.one"], command="measure {name}")}
    now = code_digests(["steps.one"])
    origin = {"git_commit": "c0ffee0000", "code_digests": now}
    table = origin | {"seconds": 120.0, "seeds": [1, 2], "rows": {"a": {"training_seconds": 50.0}}}
    rows = [origin | {"seeds": [1, 2], "stage_seconds": 60.0}, origin | {"stage_seconds": {"embed": 30, "distill": 30}}]
    for name, record in {
        "fresh": {"rows": rows},
        "changed": {"rows": [rows[0], rows[1] | {"code_digests": {"steps.one": "other"}}]},
        "dirty": origin | {"git_commit": "c0ffee0000, abc+dirty", "seconds": 30.0},
        "old": {"value": 1},
        "table": table | {"code_digests": {}},
    }.items():
        write_json(Path(f"bench/results/tables/{name}.json"), record)
    found = {each.name.rpartition("/")[2]: each for each in stale.stale_records(entries)}
    assert set(found) == {"changed", "dirty", "old", "table"} and found["table"].minutes == 2
    assert found["changed"].changed == ["steps.one"] and found["changed"].minutes == pytest.approx(3)
    assert found["changed"].command == "measure changed" and not found["changed"].uncommitted
    assert found["dirty"].uncommitted and not found["dirty"].changed and found["dirty"].minutes == 0.5
    assert found["old"].changed == ["steps.one"] and found["old"].minutes is None
    assert "| tables/dirty | `abc`, `c0ffee00` | uncommitted code | 0 |" in stale.page_table(list(found.values()))
    with pytest.raises(UserError, match="no entry for bench/results/elsewhere"):
        entry_of("elsewhere", entries)


def test_every_record_says_what_it_measures_and_the_page_which_are_stale() -> None:
    records = read_expected(EXPECTED).records
    names = {name for entry in records.values() for name in entry.code}
    assert all(code_digests(names).values())  # all of it is there
    for path in stale.RESULTS.rglob("*.json"):
        entry_of(record_name(path), records)
    assert stale.page_table(stale.stale_records(records)) in stale.PAGE.read_text(encoding="utf-8"), (
        "run `python -m bench.stale`: the page does not say which records measured code that has changed"
    )


def test_figures_of_uncommitted_code_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, ran = tmp_path / "gate.json", []
    monkeypatch.setenv("SLIMTOWER_GIT_COMMIT", "abc")
    machine.write_record(path, {"seconds": 1.0})
    record = read_json(path)
    assert record["git_commit"] == "abc" and set(record["code_digests"]) == {"steps.evaluate", "steps.promote"}
    assert list(origins(record)) == [{"git_commit": "abc", "code_digests": record["code_digests"]}]
    with pytest.raises(UserError, match="uncommitted"):
        machine.write_record(path, {"rows": [{"git_commit": "abc+dirty"}]})
    monkeypatch.setenv("SLIMTOWER_GIT_COMMIT", "abc+dirty")
    monkeypatch.setattr(machine, "_WRITTEN", ())  # else a tree in which records alone differ is as good as a clean one
    with pytest.raises(UserError, match="commit that"):
        machine.write_record(path, {"seconds": 2.0})
    with pytest.raises(SystemExit) as ended:
        machine.recording(lambda: ran.append(1))
    assert ended.value.code == 3 and not ran and read_json(path) == record
