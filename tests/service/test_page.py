"""The search page in a real browser: typing, comparing, keys, hostile documents, a promotion, and clicks that train."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from browser import Browser, find_browser
from ingest_logs import from_recipe, ingest, params, reasons
from promote_project import PARAMS, copy_project, promote, write_evaluation
from promote_project import params as promote_params
from serve_process import get, serving, until
from stages import run_release

from steps.core.tables import read_table, write_table
from steps.promote import promotion

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
if not find_browser():
    pytestmark.append(pytest.mark.skip(reason="no chromium on the PATH (Debian: apt-get install chromium)"))

TOO_SMALL = """[...document.querySelectorAll('a, button, input, select, summary')]
  .filter(e => e.getClientRects().length).map(e => (e.closest('label') ?? e).getBoundingClientRect())
  .filter(box => box.height < 24 || box.width < 24).map(box => [box.width, box.height])"""
ALL_FOUND = "[...document.querySelectorAll('section')].every(s => s.querySelectorAll('.hit').length === 10)"
HOSTILE = '<img src=x onerror="window.stolen=1"><script>window.stolen=1</script>'


@pytest.fixture(scope="module")
def project(released: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose documents say hostile things, in the release and in the corpus."""
    folder = Path(shutil.copytree(released, tmp_path_factory.mktemp("page") / "project"))
    corpus = read_table(folder / "data/ingest", "corpus")
    for name in ("title", "content"):
        column = pa.array([f"{text} {HOSTILE}" for text in corpus[name].to_pylist()], corpus.schema.field(name).type)
        corpus = corpus.set_column(corpus.schema.get_field_index(name), corpus.schema.field(name), column)
    write_table(folder / "data/ingest", "corpus", corpus)
    return folder


def hits(browser: Browser, column: str) -> list[str]:
    return browser.evaluate(
        f"[...document.querySelectorAll('section[aria-labelledby=\"column-{column}\"] .title')].map(e => e.textContent)"
    )


def test_a_person_types_compares_opens_and_is_logged_if_willing(project: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = ["--release", str(project / "models/release"), "--log", str(log), "--log-flush", "1"]
    with serving(tmp_path, *options) as (url, process), Browser(tmp_path / "profile") as browser:
        browser.view(1280, 900, "light")
        browser.open(url)
        browser.until("document.querySelectorAll('.chip').length === 4")
        assert browser.evaluate("document.activeElement.id") == "query"
        assert browser.evaluate("document.getElementById('searched').textContent") == "32 texts of data set one."
        browser.type("how to sum the axis")
        browser.until("document.querySelectorAll('section').length === 2")  # the choice and its teacher
        browser.until(ALL_FOUND, 120)  # the teacher has to be loaded
        for system in ("2l", "teacher"):
            answer = get(f"{url}/search?q=how%20to%20sum%20the%20axis&system={system}")
            titles = [hit["title"] for hit in answer["results"][0]["hits"]]
            until(lambda: hits(browser, system) == titles)  # noqa: B023
        assert browser.evaluate("document.querySelectorAll('.mark').length") > 0
        assert browser.evaluate("document.querySelector('.chip').textContent").startswith("2 layers")
        number = browser.evaluate("document.querySelector('.number').textContent")
        assert re.fullmatch(r"\S+ ms ?text to hits, median of the last 20 calls, warm-up included", number)
        assert "ms of it encoding" in browser.evaluate("document.querySelector('.times').textContent")
        agreement = browser.evaluate("document.querySelector('.agreement').textContent")
        assert agreement == f"{len(set(hits(browser, '2l')) & set(hits(browser, 'teacher')))} of the teacher's 10 hits"
        assert browser.evaluate("document.querySelector('.snippet b').textContent.toLowerCase()") in "sums axis axes"
        for scheme in ("dark", "light"):
            for width in (390, 1280):
                browser.view(width, 900, scheme)
                assert browser.inaccessible() == []
                assert browser.evaluate(TOO_SMALL) == []
        browser.evaluate("document.querySelector('.chip input[value=teacher]').click()")
        browser.evaluate("document.querySelector('.chip input[value=static]').click()")

        browser.evaluate("document.querySelectorAll('.chip input')[3].click()")  # BM25 has titles from the corpus
        browser.until("document.querySelectorAll('section')[2]?.querySelectorAll('.hit').length === 8")
        assert HOSTILE in hits(browser, "bm25")[0]
        browser.press("ArrowDown")
        browser.evaluate("document.getElementById('consent').click(), document.getElementById('query').focus()")
        browser.press("ArrowDown")
        browser.press("ArrowRight")
        browser.press("Enter")
        browser.until("document.querySelector('.whole')?.textContent.includes('onerror')")
        assert browser.evaluate("document.activeElement.closest('section').getAttribute('aria-labelledby')") == (
            "column-static"
        )
        until(lambda: list(log.glob("*/events/*/*.jsonl")), process)
        assert browser.evaluate("window.stolen") is None
        assert browser.evaluate("document.querySelector('main img, main script')") is None
        (events,) = log.glob("*/events/*/*.jsonl")
        event = json.loads(events.read_text())
        search = next(row for row in logged(log, "queries") if row["query_id"] == event["query_id"])
        assert search["user_query"] == "how to sum the axis"
        assert search["query_attributes"]["system"] == "static"
        assert search["query_response_hit_ids"][0] == event["event_attributes"]["object"]["object_id"]

        requests = {row["request"]["url"].split("?")[0] for row in browser.events["Network.requestWillBeSent"]}
        assert all(request.startswith((url, "data:")) for request in requests)
        assert browser.events.get("Log.entryAdded", []) == []  # nothing that the policy had to stop
        assert browser.events.get("Runtime.exceptionThrown", []) == []


def test_on_a_phone_each_system_has_a_tab_and_without_one_the_page_asks_for_it(project: Path, tmp_path: Path) -> None:
    visible_sections = "[...document.querySelectorAll('section')].filter(s => s.getClientRects().length).map(s => s.id)"
    with (
        serving(tmp_path, "--release", str(project / "models/release")) as (url, _),
        Browser(tmp_path / "p") as browser,
    ):
        browser.view(390, 844, "light")
        browser.open(f"{url}/#how to sum the axis")
        browser.until("document.querySelectorAll('section').length === 2")
        browser.until(ALL_FOUND, 120)  # the teacher has to be loaded
        assert browser.evaluate("document.documentElement.scrollWidth") == 390
        assert browser.evaluate(visible_sections) == ["box-2l"]
        browser.evaluate("document.querySelectorAll('[role=tab]')[1].click()")
        assert browser.evaluate(visible_sections) == ["box-teacher"]
        assert browser.inaccessible() == []
        browser.evaluate("document.querySelector('[role=tab][aria-selected=true]').focus()")
        browser.press("ArrowLeft")
        assert browser.evaluate(visible_sections) == ["box-2l"]
        browser.evaluate("document.getElementById('query').focus()")
        browser.press("ArrowDown")
        browser.press("ArrowRight")  # to the other column's hit, whose tab opens
        assert browser.evaluate(visible_sections) == ["box-teacher"]
        assert browser.evaluate("document.activeElement.closest('section').id") == "box-teacher"

        browser.view(1280, 900, "light")
        browser.until(f"{visible_sections}.length === 2")
        assert browser.evaluate("document.querySelectorAll('[role=tab]').length") == 0
        browser.until("document.getElementById('said').textContent.includes('hits of')")
        browser.evaluate("document.querySelectorAll('.chip input:checked').forEach(box => box.click())")
        assert browser.evaluate("document.getElementById('hint').innerText").startswith("Tick a system.")
        browser.until("document.getElementById('said').textContent === ''")
        assert browser.events.get("Runtime.exceptionThrown", []) == []


def test_an_example_is_searched_a_path_is_split_and_code_is_set_as_code(released: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(released, tmp_path / "project"))
    corpus = read_table(folder / "data/ingest", "corpus")
    titles = pa.array([f"package.module.name{row}" for row in range(len(corpus))])
    write_table(
        folder / "data/ingest", "corpus", corpus.set_column(corpus.schema.get_field_index("title"), "title", titles)
    )
    text = "how to sum the axis"
    with serving(folder, "--release", "models/release") as (url, _), Browser(tmp_path / "profile") as browser:
        browser.open(url)
        browser.until("document.querySelectorAll('.chip').length === 4")
        browser.evaluate(f"state.examples = {{one: ['{text}']}}, showScope()")
        browser.evaluate("document.querySelectorAll('.chip input:checked').forEach(box => box.click())")
        browser.evaluate("document.querySelector('.chip input[value=bm25]').click()")  # its titles are the corpus'
        browser.evaluate("document.querySelector('.example').click()")
        browser.until("document.querySelectorAll('.hit').length > 0")
        assert browser.evaluate("document.getElementById('query').value") == text
        assert browser.evaluate("document.querySelector('.title').innerText").split()[1] == "package.module"
        assert browser.evaluate("document.querySelector('.title').innerText").startswith("name")
        browser.evaluate("document.querySelector('.hit').click()")
        browser.until("document.querySelector('.whole.code')?.textContent.includes('one/')")
        assert browser.events.get("Runtime.exceptionThrown", []) == []


CHANGES = [
    "document.getElementById('k').value = '5', document.getElementById('k').dispatchEvent(new Event('change'))",
    "document.querySelectorAll('.chip input')[1].click()",  # the second system, away and back
    "document.querySelectorAll('.chip input')[1].click()",
    "document.getElementById('dataset').dispatchEvent(new Event('change'))",
    "document.getElementById('query').dispatchEvent(new Event('input'))",  # typed on and back
]


def test_a_search_that_was_logged_may_change_and_no_click_is_lost(project: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    options = ["--release", str(project / "models/release"), "--log", str(log), "--log-flush", "1"]
    with (
        serving(tmp_path, *options, "--consent", "given") as (url, process),
        Browser(tmp_path / "profile") as browser,
    ):
        browser.open(url)
        browser.until("document.querySelectorAll('.chip').length === 4")
        browser.type("how to sum the axis")
        until(lambda: list(log.glob("*/queries/*/*.jsonl")), process)  # settled
        for number, change in enumerate(CHANGES, start=1):
            browser.evaluate(f"{{{change}}}")
            browser.evaluate("new Promise(done => setTimeout(done, 600))")
            browser.evaluate("document.querySelector('.hit[aria-expanded=false]').click()")
            until(lambda: len(logged(log, "events")) == number, process)  # noqa: B023
        searches = {row["query_id"]: row for row in logged(log, "queries")}
        clicked = [searches[event["query_id"]] for event in logged(log, "events")]
        assert {len(row["query_response_hit_ids"]) for row in clicked} == {5}  # what was shown, not what was at first
        browser.evaluate("document.getElementById('k').dispatchEvent(new Event('change'))")
        until(lambda: len(logged(log, "queries")) == len(searches) + 1, process)  # settled again


def logged(log: Path, kind: str) -> list[dict[str, Any]]:
    return [json.loads(line) for file in log.glob(f"*/{kind}/*/*.jsonl") for line in file.open()]


def test_what_comes_too_late_is_not_shown_and_a_swap_is_told(project: Path, tmp_path: Path) -> None:
    target = Path(shutil.copytree(project / "models/release/static", tmp_path / "models/release/now"))
    with serving(tmp_path, "--release", str(target)) as (url, _), Browser(tmp_path / "profile") as browser:
        for width, scheme in ((390, "dark"), (1280, "light")):
            browser.view(width, 800, scheme)
            browser.open(f"{url}/?{width}")
            browser.until("document.querySelectorAll('.chip').length === 1")
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
        # the answer to the first query arrives after that to the second
        browser.evaluate("""{
          const real = window.fetch;
          window.fetch = async (path, options) => {
            const late = options?.body?.includes('"string"');
            const answer = await real(path, {...options, signal: undefined});
            if (late) { await new Promise(done => setTimeout(done, 1000)); window.late = true; }
            return answer;
          };
        }""")
        browser.type("string")
        browser.evaluate("new Promise(done => setTimeout(done, 300))")
        browser.type(" window")
        browser.until("window.late")
        titles = [hit["title"] for hit in get(f"{url}/search?q=string%20window")["results"][0]["hits"]]
        browser.evaluate("new Promise(done => setTimeout(done, 300))")
        assert hits(browser, "now") == titles

        shutil.rmtree(project / "models/release/static")
        run_release(project, "2l")
        shutil.rmtree(target)
        shutil.copytree(project / "models/release/2l", target)
        until(lambda: get(f"{url}/health")["releases"][0]["student"] == "2l")
        browser.type(" of")
        browser.until("document.querySelector('h2 small').textContent.startsWith('2l')")


def test_the_champion_moves_while_a_person_searches_and_the_click_is_in_the_next_ingest(
    released: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop: two real promotions by the gate, a page that stays open, and the recipe's reading of the log."""
    log = tmp_path / "log"
    monkeypatch.chdir(copy_project(released, tmp_path / "project"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    monkeypatch.delenv("SLIMTOWER_LOCK", raising=False)
    monkeypatch.setattr(promotion, "smoke_test", lambda registry, version: None)  # two more processes
    write_evaluation({"static": 0.5, "2l": 0.6})
    promote()
    options = ["--model", f"{PARAMS['name']}@champion", "--corpus", "data/ingest", "--log", str(log)]
    with (
        serving(Path.cwd(), *options, "--log-flush", "1") as (url, process),
        Browser(tmp_path / "profile") as browser,
    ):
        browser.open(url)
        browser.until("document.querySelectorAll('.chip').length === 2")  # champion and BM25
        browser.evaluate("document.querySelectorAll('.chip input')[1].click()")
        browser.evaluate("document.getElementById('consent').click(), document.getElementById('query').focus()")
        browser.type("how to sum")
        browser.until("[...document.querySelectorAll('section')].every(s => s.querySelectorAll('.hit').length > 0)")
        browser.until("document.querySelector('h2 small').textContent.startsWith('static')")

        promote(params=promote_params(student="2l"))
        until(lambda: get(f"{url}/health")["releases"][0]["version"] == "2", process)
        browser.type(" the axis")
        browser.until("document.querySelector('h2 small').textContent.startsWith('2l')")
        (answer,) = get(f"{url}/search?q=how%20to%20sum%20the%20axis&log=false")["results"]
        until(lambda: hits(browser, "champion") == [hit["title"] for hit in answer["hits"]], process)
        browser.evaluate("document.querySelectorAll('.hit')[1].click()")
        until(lambda: logged(log, "events"), process)
        assert browser.events.get("Runtime.exceptionThrown", []) == []

    (event,) = logged(log, "events")
    search = next(row for row in logged(log, "queries") if row["query_id"] == event["query_id"])
    assert (search["user_query"], search["query_attributes"]["version"]) == ("how to sum the axis", "2")
    out = ingest(tmp_path, params(from_recipe(log / "one")))
    assert reasons(out) == []
    (clicked,) = [row for row in read_table(out, "impressions").to_pylist() if row["clicked"]]
    assert (clicked["doc_id"], clicked["rank"]) == (answer["hits"][1]["id"], 2)
    texts = {row["query_id"]: row["text"] for row in read_table(out, "queries").to_pylist()}
    assert texts[clicked["query_id"]] == "how to sum the axis"
