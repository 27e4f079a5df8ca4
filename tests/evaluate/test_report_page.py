"""The report as people see it: in a browser, on a phone and on a screen, and what it says of the teacher."""

import html
import re
from dataclasses import replace
from pathlib import Path

import evaluate_fakes
import numpy as np
import pytest
from browser import Browser, find_browser
from evaluate_fakes import evaluate, fake_systems, folders_of, hybrid_systems, params, write_inputs

from slimtower.common.files import read_json, write_json
from steps.evaluate.formatting import percent
from steps.evaluate.report import facts, mined_examples, read_background


@pytest.mark.medium
def test_the_page_tells_no_gain_of_the_teacher_over_a_sample_of_the_documents(tmp_path: Path) -> None:
    documents = write_inputs(tmp_path)
    sampled = {"ndcg_base": 0.1234, "ndcg_teacher": 0.4321, "n": 10, "p_value": 0.001, "teacher_beats_base": True}
    write_json(tmp_path / "teach/report.json", {"base": "some-base", "epochs": 1.0, "comparison": sampled})
    folder = evaluate(fake_systems(tmp_path, documents, static=1, **{"2l": 4}), tmp_path, params())
    page = (folder / "report.html").read_text()
    assert "evaluate.earlier_towers" in page.split("<h3>The teacher</h3>")[1].split("<h3>")[0]
    assert not re.search(r"0\.1234|0\.4321|0\.123\b|0\.432\b", page)


@pytest.mark.medium
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
            own = section.split(f"<h4>{dataset} ")[1].split(f">{model}</td>")[2].split("</tr>")[0]
            assert f"{percent(share['ci95_low'])} – {percent(share['ci95_high'])}</td>" in own


@pytest.mark.parametrize(
    ("report", "sentence"),
    [
        ({"cut_documents": 0.6175, "document_tokens": 96}, "62\u00a0% of the documents are longer than the 96 tokens"),
        ({"cut_documents": 0.6175}, "62\u00a0% of the documents are longer than what the teacher reads"),
        ({"cut_documents": 0.004, "document_tokens": 96}, ""),
        ({"cut_documents": None, "document_tokens": None}, ""),
        ({}, ""),
    ],
)
def test_the_page_says_if_the_teacher_does_not_read_documents_to_their_end(
    tmp_path: Path, report: dict[str, object], sentence: str
) -> None:
    for name in ("ingest", "mine", "generate", "teach"):
        write_json(tmp_path / name / "report.json", {"base": "b"})
    write_json(tmp_path / "embed/report.json", report)
    cut = read_background(folders_of(tmp_path), []).cut
    assert cut.startswith(sentence) and bool(cut) == bool(sentence)


def test_of_each_source_of_triplets_one_is_shown() -> None:
    text = {"id": "x", "text": "a question", "title": "a title", "content": ""}
    samples = [
        {"source": source, "query": text, "positive": text, "negative": text, "why": f"{source} {number}"}
        for source in ("judged", "click_one_hop", "given")
        for number in range(3)
    ]
    found = [row["why"] for row in mined_examples({"samples": samples})]
    assert found == ["judged 0", "click_one_hop 0", "given 0"]


@pytest.mark.medium
def test_a_teacher_behind_an_api_has_no_size_and_no_time_of_this_machine(tmp_path: Path) -> None:
    systems = fake_systems(tmp_path, write_inputs(tmp_path), static=1)
    remote = replace(systems, teacher=replace(systems.teacher, content="remote", bytes=None))
    folder = evaluate(remote, tmp_path, params())
    page, told = ((folder / name).read_text() for name in ("report.html", "report.md"))
    assert set(read_json(folder / "metrics.json")["sizes"]) == {"static"}
    assert "<td>behind an API</td>" in page and page.count("its time is that of requests") == 2
    for text in (page, told):
        assert "The query side has 0.1\u00a0MB. The teacher is behind an API" in text
    assert "behind an API" not in (evaluate(systems, tmp_path, params()) / "report.html").read_text()


def test_a_page_without_judgements_has_closeness_and_no_table_of_quality(tmp_path: Path) -> None:
    systems = fake_systems(tmp_path, write_inputs(tmp_path, judged=()), static=1)
    heads = re.findall(r"<h2>(.*?)</h2>", (evaluate(systems, tmp_path, params()) / "report.html").read_text())
    assert heads == ["What is not judged", "For researchers"]


@pytest.mark.medium
def test_without_dev_queries_none_is_said_to_have_chosen_and_bm25_is_timed_to_its_hits(tmp_path: Path) -> None:
    systems = fake_systems(tmp_path, write_inputs(tmp_path, dev=False), static=1)
    page = (evaluate(systems, tmp_path, params(fused=True)) / "report.html").read_text()
    assert "In api, med no dev query chose a fusion: it is the release's, or else the standard one." in page
    assert "best on dev" not in page and "<i>Dev</i>" not in page
    assert "Rows with BM25: from text to hits; the others: from text to embedding." in page
    [row] = re.findall(r"<tr[^>]*><td>static with BM25.*?</tr>", page, re.S)
    assert "×" not in row, "no time of the teacher's to hits was measured"


def test_facts_leave_out_what_is_zero() -> None:
    assert facts({"kept": 2, "left_out": {"short": 0, "long": 1}, "share": 0.0, "simulated": False}) == [
        ("kept", "2"),
        ("left out · long", "1"),
        ("simulated", "no"),
    ]


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
        asked = {row["request"]["url"] for row in browser.events["Network.requestWillBeSent"]}
        assert asked == {f"{page}?390", f"{page}?1280"}
        closed = "[...document.querySelectorAll('details > :not(summary)')]"
        hidden = f"{closed}.filter(part => !part.checkVisibility()).length"
        browser.open(f"{page}?print")
        assert browser.evaluate(hidden) > 0
        browser.call("Emulation.setEmulatedMedia", media="print")
        browser.until(f"matchMedia('print').matches && {hidden} === 0")
        for told in ("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown"):
            assert browser.events.get(told, []) == []
