"""Each pin has a file for every Python and machine that setup promises, in the index that pip asks."""

from pathlib import Path

import pytest
import requests

from requirements.hashes import MACHINES, files_of, lacking, pins_of, tags_of

LOCKS = [Path(__file__).parents[2] / f"requirements/{name}.lock" for name in ("run", "extras", "test")]
AWAY = (requests.ConnectionError, requests.Timeout, requests.exceptions.RetryError, requests.JSONDecodeError)


@pytest.mark.medium
def test_every_pin_has_a_file_for_each_python_and_machine() -> None:
    pins = pins_of(LOCKS)
    assert len(pins) > 200
    try:
        files = files_of(name for name, *_ in pins)
    except AWAY as error:
        pytest.skip(f"the package index gives no answer: {error}")
    tags_by_pin = {pin: [tags_of(file["filename"], pin[1]) for file in files[pin[0]]] for pin in pins}
    missing = {
        (*pin, machine): pythons
        for pin in pins
        for machine in MACHINES
        if (pythons := lacking(pin[0], [tags for tags in tags_by_pin[pin] if tags is not None], machine, pin[2]))
    }
    assert missing == {}


WHEELS = {
    "pure-1.0-py3-none-any.whl": "",
    "abi-1.0-cp39-abi3-manylinux_2_17_x86_64.whl": "",
    "one-1.0-cp313-cp313-manylinux_2_28_x86_64.manylinux_2_34_x86_64.whl": "3.11 3.12 3.14",
    "free-1.0-cp314-cp314t-manylinux_2_28_x86_64.whl": "3.11 3.12 3.13 3.14",
    "new-1.0-cp313-abi3-manylinux2014_x86_64.whl": "3.11 3.12",
    "glibc-1.0-py3-none-manylinux_2_34_x86_64.whl": "3.11 3.12 3.13 3.14",
    "arm-1.0-py3-none-manylinux_2_17_aarch64.whl": "3.11 3.12 3.13 3.14",
    "old-0.9-py3-none-any.whl": "3.11 3.12 3.13 3.14",
    "source-1.0.tar.gz": "3.11 3.12 3.13 3.14",
    "pyspark-1.0.tar.gz": "",
}


@pytest.mark.parametrize(("filename", "missing"), WHEELS.items())
def test_a_file_counts_for_the_pythons_that_take_it(filename: str, missing: str) -> None:
    tags = [tags for tags in [tags_of(filename, "1.0")] if tags is not None]
    assert lacking(filename.split("-")[0], tags, "x86_64") == missing.split()


def test_a_marker_names_the_pythons_that_need_a_pin(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock"
    lock.write_text('a-b==1.0 ; python_version == "3.13" --hash=sha256:00\nc===2.0\n\n# d==1\n')
    assert pins_of([lock]) == [("a-b", "1.0", 'python_version == "3.13"'), ("c", "2.0", None)]
    assert lacking("a-b", [], "x86_64", 'python_version == "3.13"') == ["3.13"]
