"""The report as people see it: in a browser, on a phone and on a screen, and what it says of the teacher."""

import html
import re
from dataclasses import replace
from pathlib import Path

import evaluate_fakes
import numpy as np
import pytest
from browser import Browser, find_browser
from evaluate_fakes import evaluate, fake_systems, hybrid_systems, params, write_inputs

from slimtower.common.files import read_json
from steps.evaluate.formatting import percent


@pytest.mark.medium
def test_no_row_is_short_and_a_phone_names_the_column_of_each_cell(tmp_path: Path) -> None:
    folder = evaluate(fake_systems(tmp_path, write_inputs(tmp_path), static=1, **{"2l": 4}), tmp_path, params())
    metrics, page = read_json(folder / "metrics.json"), (folder / "report.html").read_text()
    tables = re.findall(r"<table.*?</table>", page, re.S)
    assert len(tables) > 10
    for table in tables:
        heads = [html.unescape(head) for head in re.findall(r"<th>(.*?)</th>", table, re.S)]
        rows = re.findall(r"<tr.*?</tr>", table.split("<tbody>")[1], re.S)
        assert rows and all(row.count("</td>") == len(heads) for row in rows), heads
        if "stack" in table.partition(">")[0]:
            for row in rows:
                labels = [html.unescape(label) for label in re.findall(r'data-label="([^"]*)"', row)]
                assert len(labels) == len(heads) and all(
                    label in head or "<" in head for label, head in zip(labels, heads, strict=True)
                )
    section = page.split("<h3>Quality</h3>")[1].split("<h3>")[0]
    for dataset, shares in metrics["shares"].items():
        assert set(shares) == {"bm25", "static", "2l"}
        for model, share in (shares | metrics["retention_by_set"][dataset]).items():
            row = section.split(f"<h4>{dataset} ")[1].split(f">{model}</td>")[2].split("</tr>")[0]
            assert f"{percent(share['ci95_low'])} – {percent(share['ci95_high'])}</td>" in row


@pytest.mark.medium
def test_a_teacher_behind_an_api_has_no_size_and_no_time_of_this_machine(tmp_path: Path) -> None:
    systems = fake_systems(tmp_path, write_inputs(tmp_path), static=1)
    remote = replace(systems, teacher=replace(systems.teacher, content="remote", bytes=None))
    folder = evaluate(remote, tmp_path, params())
    assert set(read_json(folder / "metrics.json")["sizes"]) == {"static"}
    assert all("behind an API" in (folder / name).read_text() for name in ("report.html", "report.md"))
    assert "behind an API" not in (evaluate(systems, tmp_path, params()) / "report.html").read_text()


ANALYSES = ["geometry", "proposition", "space", "semantic_ids", "effort"]
WIDER = (
    "[...document.querySelectorAll('body *')].filter(part => part.getBoundingClientRect().width"
    " && part.getBoundingClientRect().right > document.documentElement.clientWidth + 1)"
    ".map(part => part.outerHTML.slice(0, 99))"
)
BROKEN = (  # figures in several lines
    "[...document.querySelectorAll('table:not(.stack) td:not(:first-child)')].map(cell => cell.firstChild)"
    ".filter(text => { const range = document.createRange(); range.selectNode(text);"
    " return range.getClientRects().length > 1 }).map(text => text.textContent)"
)


@pytest.mark.medium
@pytest.mark.skipif(not find_browser(), reason="no chromium on the PATH (Debian: apt-get install chromium)")
@pytest.mark.parametrize("fused", [False, True], ids=["dense", "with BM25"])
def test_a_browser_shows_every_section_and_what_documents_say_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    hostile = "<script>window.stolen=1</script><img src=x onerror=window.stolen=1>"
    monkeypatch.setattr(evaluate_fakes, "TOPICS", [f"{topic} {hostile}" for topic in evaluate_fakes.TOPICS])
    for module in ("slicing", "figures.perturbed"):
        monkeypatch.setattr(f"steps.evaluate.{module}.MIN_QUERIES", 5)  # as many as are changed
    if fused:
        systems = hybrid_systems(tmp_path, judged=("api",))
    else:
        systems = fake_systems(tmp_path, write_inputs(tmp_path, judged=("api",)), static=1)
    page = (evaluate(systems, tmp_path, params(analyses=ANALYSES)) / "report.html").as_uri()
    sections = ["Results", "Quality against speed", "What is not judged", "Where static loses", "For researchers"]
    if fused:
        sections[3] = "Where static with BM25 loses"
    with Browser(tmp_path / "profile") as browser:
        for width in (390, 1280):
            browser.view(width, 900, "light")
            browser.open(f"{page}?{width}")
            assert browser.evaluate(WIDER) == [] == browser.evaluate(BROKEN)
            height = browser.evaluate("document.documentElement.scrollHeight")
            heads = browser.evaluate("[...document.querySelectorAll('h2')].map(head => head.textContent)")
            assert heads == sections
            browser.evaluate("document.querySelectorAll('details').forEach(part => { part.open = true })")
            assert browser.evaluate("document.documentElement.scrollHeight") > 2.5 * height, (
                "most of the page is folded"
            )
            assert browser.evaluate(WIDER) == []
            under = browser.evaluate("[...document.querySelectorAll('h3')].map(head => head.textContent)")
            parts = {
                "The choice", "Quality", "Development queries", "Slices of the queries", "Changed queries",
                "Distance to the teacher", "Neighbours, lengths and spread",
                "An upper bound on the student's extra error",
                "Speed", "From training to service", "Index", "Search effort", "The teacher", "Training data",
                "Agreement with the teacher's hits",
            }  # fmt: skip
            assert parts <= {*under} and ("Fused with BM25" in under) == fused
            assert hostile in browser.evaluate("document.querySelector('.case li').textContent")
            letters = browser.evaluate(
                "[...document.querySelectorAll('svg text')].map(text => text.getBoundingClientRect())"
                ".map(box => Math.min(box.width, box.height)).filter(size => size > 0)"
            )
            assert letters and min(letters) >= 5 and np.median(letters) >= 11, "read without a magnifier"
            assert browser.evaluate("[window.stolen, document.querySelectorAll('script, img').length]") == [None, 0]
            for scheme in ("dark", "light"):
                browser.view(width, 900, scheme)
                assert browser.inaccessible() == []
        requested = {row["request"]["url"] for row in browser.events["Network.requestWillBeSent"]}
        assert requested == {f"{page}?390", f"{page}?1280"}
        closed = "[...document.querySelectorAll('details > :not(summary)')]"
        hidden = f"{closed}.filter(part => !part.checkVisibility()).length"
        browser.open(f"{page}?print")
        assert browser.evaluate(hidden) > 0
        browser.call("Emulation.setEmulatedMedia", media="print")
        browser.until(f"matchMedia('print').matches && {hidden} === 0")
        for event in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            assert browser.events.get(event, []) == []
