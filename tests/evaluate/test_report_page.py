"""The report as people see it: in a browser, on a phone and on a screen, and what it says of the teacher."""

import re
from dataclasses import replace
from pathlib import Path

import evaluate_fakes
import numpy as np
import pytest
from browser import Browser, find_browser
from evaluate_fakes import evaluate, fake_systems, hybrid_systems, params, write_inputs

from steps.core.files import read_json, write_json
from steps.evaluate.shown import percent


def test_the_page_tells_no_gain_of_the_teacher_over_a_sample_of_the_documents(tmp_path: Path) -> None:
    documents = write_inputs(tmp_path)
    sampled = {"ndcg_base": 0.1234, "ndcg_teacher": 0.4321, "n": 10, "p_value": 0.001, "teacher_beats_base": True}
    write_json(tmp_path / "teach/report.json", {"base": "some-base", "epochs": 1.0, "comparison": sampled})
    folder = evaluate(fake_systems(tmp_path, documents, static=1, **{"2l": 4}), tmp_path, params())
    page = (folder / "report.html").read_text()
    assert "evaluate.earlier_towers" in page.split("<h2>The teacher</h2>")[1].split("<h2>")[0]
    assert not re.search(r"0\.1234|0\.4321|0\.123\b|0\.432\b", page)


def test_the_page_explains_the_sources_of_the_triplets_that_it_shows(tmp_path: Path) -> None:
    documents = write_inputs(tmp_path)
    text = {"id": "x", "text": "a question", "title": "a title", "content": ""}
    shown = {"source": "judged", "query": text, "positive": text, "negative": text, "why": "judged 1"}
    write_json(tmp_path / "mine/report.json", {"rows": {"click_one_hop": 0, "judged": 1}, "samples": [shown]})
    write_json(tmp_path / "ingest/report.json", {"simulated": False, "datasets": {"med": {}}})
    folder = evaluate(fake_systems(tmp_path, documents, static=1, **{"2l": 4}), tmp_path, params())
    page = (folder / "report.html").read_text()
    assert "<li><i>judged</i>: the positive is judged relevant" in page
    assert not re.search("simulated|clicked|hop</i>", page.split("<main>")[1])


def test_the_table_of_quality_has_each_students_interval_and_no_row_is_short(tmp_path: Path) -> None:
    folder = evaluate(fake_systems(tmp_path, write_inputs(tmp_path), static=1, **{"2l": 4}), tmp_path, params())
    metrics = read_json(folder / "metrics.json")
    section = (folder / "report.html").read_text().split("<h2>Quality</h2>")[1].split("<h3>Retention over")[0]
    titles = re.findall(r"<h3>([\w-]+) <span", section)
    tables = [table for table in re.findall(r"<table>.*?</table>", section, re.S) if "<th>won / lost</th>" in table]
    assert len(titles) == len(tables) > 0
    for dataset, table in zip(titles, tables, strict=True):
        columns = len(re.findall(r"<th>", table))
        rows = re.findall(r"<tr class.*?</tr>", table, re.S)
        assert rows and all(len(re.findall(r"<td", row)) == columns for row in rows)
        assert set(metrics["shares"][dataset]) == {"bm25", "static", "2l"}
        for model, share in (metrics["shares"][dataset] | metrics["retention_by_set"][dataset]).items():
            [row] = [row for row in rows if f"<td>{model}</td>" in row]
            assert f"{percent(share['ci95_low'])} – {percent(share['ci95_high'])}</td>" in row


def test_a_teacher_behind_an_api_has_no_size_and_no_time_of_this_machine(tmp_path: Path) -> None:
    systems = fake_systems(tmp_path, write_inputs(tmp_path), static=1)
    remote = replace(systems, teacher=replace(systems.teacher, content="remote", bytes=None))
    folder = evaluate(remote, tmp_path, params())
    page, told = ((folder / name).read_text() for name in ("report.html", "report.md"))
    assert set(read_json(folder / "metrics.json")["sizes"]) == {"static"}
    assert "<td>behind an API</td>" in page and page.count("its time is that of requests") == 2
    for text in (page, told):
        assert "the query side has 0.1\u00a0MB; the teacher is behind an API" in text
    assert "behind an API" not in (evaluate(systems, tmp_path, params()) / "report.html").read_text()


def test_where_nothing_is_judged_the_page_has_the_choice_and_its_reasons(tmp_path: Path) -> None:
    systems = fake_systems(tmp_path, write_inputs(tmp_path, judged=()), static=1)
    heads = re.findall(r"<h2>(.*?)</h2>", (evaluate(systems, tmp_path, params()) / "report.html").read_text())
    assert heads == ["The choice", "What is not judged", "Cost", "The teacher", "How it was made"]


@pytest.mark.medium
@pytest.mark.skipif(not find_browser(), reason="no chromium on the PATH (Debian: apt-get install chromium)")
@pytest.mark.parametrize("fused", [False, True], ids=["dense", "with BM25"])
def test_a_browser_shows_every_section_and_what_documents_say_as_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fused: bool
) -> None:
    hostile = "<script>window.stolen=1</script><img src=x onerror=window.stolen=1>"
    monkeypatch.setattr(evaluate_fakes, "TOPICS", [f"{topic} {hostile}" for topic in evaluate_fakes.TOPICS])
    for module in ("slicing", "diagnosis"):
        monkeypatch.setattr(f"steps.evaluate.{module}.LEAST", 5)  # as many as are changed
    if fused:
        systems = hybrid_systems(tmp_path, judged=("api",))
    else:
        systems = fake_systems(tmp_path, write_inputs(tmp_path, judged=("api",)), static=1)
    page = (evaluate(systems, tmp_path, params()) / "report.html").as_uri()
    sections = [
        "Quality against latency", "Quality", "What is not judged", "Slices of the queries", "Cases: static loses most",
        "Cases: static gains most", "Closeness to the teacher", "Cost", "The teacher", "How it was made",
    ]  # fmt: skip
    if fused:
        sections.remove("Cases: static loses most")  # with BM25 it loses nowhere
    with Browser(tmp_path / "profile") as browser:
        for width in (390, 1280):
            browser.view(width, 900, "light")
            browser.open(f"{page}?{width}")
            assert browser.evaluate("document.documentElement.scrollWidth") <= width, "tables scroll, not the page"
            heads = browser.evaluate("[...document.querySelectorAll('h2')].map(head => head.textContent)")
            assert heads == sections
            under = browser.evaluate("[...document.querySelectorAll('h3')].map(head => head.textContent)")
            parts = {
                "Retention over all data sets", "Changed queries", "Neighbours, lengths and spread", "Search effort",
                "The bound of the student's bias, on a scale that fits the judgements", "From training to service",
                "Index", "Retention and agreement by data set" + ", encoders alone" * fused,
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
        asked = {row["request"]["url"] for row in browser.events["Network.requestWillBeSent"]}
        assert asked == {f"{page}?390", f"{page}?1280"}
        closed = "[...document.querySelectorAll('details > :not(summary)')]"
        hidden = f"{closed}.filter(part => !part.checkVisibility()).length"
        assert browser.evaluate(hidden) > 0
        browser.call("Emulation.setEmulatedMedia", media="print")
        browser.until(f"matchMedia('print').matches && {hidden} === 0")
        overflows = (
            "[...new Set([...document.querySelectorAll('.scroll')].map(part => getComputedStyle(part).overflowX))]"
        )
        assert browser.evaluate(overflows) == ["visible"]
        for told in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            assert browser.events.get(told, []) == []
