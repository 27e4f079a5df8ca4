"""A teacher behind an API gives the vectors of the model there, and no text is paid for twice, whatever goes wrong."""

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from embedding_server import KEY, EmbeddingServer, serving, tower_reader
from endpoint_fakes import endpoint_params, teach
from killed_program import run_until
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from slimtower.common.errors import TransientError, UserError
from slimtower.common.fingerprints import fingerprint
from steps.embed.token_vectors import token_texts
from steps.encoders.bases import resolve_base
from steps.encoders.towers import encode, endpoint_jobs, endpoint_of, load_tower
from steps.encoders.vector_cache import embed_once
from steps.endpoint import client as endpoint_client
from steps.endpoint.client import Pace, TokenLedger, batches
from steps.endpoint.module import PROBES, Endpoint, Model, announce, asking_anew
from steps.endpoint.params import Connection
from steps.evaluate.latency import measure

pytestmark = [pytest.mark.medium, pytest.mark.faults("faulty API")]

TEXTS = [f"the {word} of text {number}" for number in range(20) for word in ("sum", "mean")]


@pytest.fixture(autouse=True)
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANTED_KEY", KEY)
    monkeypatch.setattr(endpoint_client, "_FIRST_WAIT", 0.01)


@pytest.fixture
def server(tiny_tower: Path) -> Iterator[EmbeddingServer]:
    with serving(tower_reader(load_tower(tiny_tower))) as state:
        yield state


@pytest.fixture(scope="module")
def expected(tiny_tower: Path) -> np.ndarray:
    tower = load_tower(tiny_tower)
    return np.stack([tower.encode(text) for text in TEXTS])


def embedded(tower: Path, target: Path) -> tuple[np.ndarray, int]:
    knobs: dict[str, Any] = {"dtype": "float32", "precision": "auto", "batch_size": 4, "shard_texts": 25}
    lengths, name = target.with_name("lengths.npy"), fingerprint(tower).id
    count = embed_once(load_tower(tower), name, "query", TEXTS, target, **knobs, caption="test", lengths=lengths)
    return np.load(target), count


def test_its_vectors_are_those_of_the_model_there_and_each_is_paid_for_once(
    server: EmbeddingServer, tmp_path: Path, expected: np.ndarray, capsys: pytest.CaptureFixture[str]
) -> None:
    tower = teach(tmp_path / "teach", server)
    assert server.paid == dict.fromkeys(PROBES, 1)  # it has no roles
    server.delay = 0.05  # so that requests overlap
    vectors, count = embedded(tower, tmp_path / "vectors.npy")
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    np.testing.assert_allclose(np.load(tmp_path / "lengths.npy"), 1.0, atol=1e-5)
    assert count == len(TEXTS) and all(server.paid[text] == 1 for text in TEXTS)
    assert 2 <= server.most_at_once <= 3
    assert f"test: {len(TEXTS)} texts to ask tiny for, about" in (message := capsys.readouterr().err)
    assert " at 0.02; spent before: " in message
    assert all(len(body["input"]) <= 8 for body in server.bodies)
    vectors, count = embedded(tower, tmp_path / "again.npy")
    assert count == 0 and all(server.paid[text] == 1 for text in TEXTS)
    with asking_anew():
        np.testing.assert_allclose(encode(load_tower(tower), TEXTS[:2], "query"), expected[:2], atol=1e-6)
    assert server.paid[TEXTS[0]] == 2
    for path in tower.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()


INPUT_TYPES = {role: {"prompt": "", "body": {"input_type": role}, "max_length": 64} for role in ("query", "document")}


@pytest.mark.parametrize(("roles", "times"), [({}, 1), (INPUT_TYPES, 2)])
def test_a_text_of_both_roles_is_paid_for_once_where_the_server_has_none(
    server: EmbeddingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], roles: dict, times: int
) -> None:
    tower = load_tower(teach(tmp_path / "teach", server, **roles))
    jobs = [job for role in ("query", "document") for job in endpoint_jobs(tower, role, TEXTS)]
    assert announce(jobs, "both") == times * len(TEXTS)
    queries, documents = (encode(tower, TEXTS, role) for role in ("query", "document"))
    assert all(server.paid[text] == times for text in TEXTS)
    assert all(server.paid[text] == 2 * times for text in PROBES)  # when it was made, and by this process
    np.testing.assert_allclose(queries, documents if times == 1 else -documents, atol=1e-6)
    encode(load_tower(tmp_path / "teach/tower"), TEXTS, "document")
    assert all(server.paid[text] == times for text in TEXTS)


USELESS = ["half", "broken", "slow"]  # answers that are paid for, and of no use
FAULTS = ["busy", "error", *USELESS, "shuffled"]


def test_nothing_is_lost_or_paid_twice_where_the_server_fails_now_and_then(
    server: EmbeddingServer, tmp_path: Path, expected: np.ndarray
) -> None:
    tower = teach(tmp_path / "teach", server, {"timeout_s": 0.7, "tries": 8})
    requests = len(server.bodies)
    server.faults = ["", *FAULTS]  # the first is for the probes
    vectors, _ = embedded(tower, tmp_path / "vectors.npy")
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    batches = {tuple(body["input"]) for body in server.bodies[requests:]}
    # each failure costs one more request, each useless answer the texts of its own; a slow one comes too late
    assert len(server.bodies) - requests == len(batches) + len(FAULTS) - 1
    time.sleep(0.5)
    again = sum(server.paid[text] - 1 for text in TEXTS)
    assert all(server.paid[text] for text in TEXTS) and 0 < again <= len(USELESS) * max(map(len, batches))


@pytest.mark.slow
def test_retry_after_holds_back_all_requests(server: EmbeddingServer, tmp_path: Path) -> None:
    tower = teach(tmp_path / "teach", server)
    server.faults, server.retry_after = ["", "busy"], "3"
    before = len(server.times)
    embedded(tower, tmp_path / "vectors.npy")
    times = server.times[before + 1 :]  # without the probes
    assert not [moment for moment in times if times[0] + 1 < moment < times[0] + 2.8]  # those under way come before
    assert max(times) > times[0] + 2.8


@pytest.mark.slow
def test_timed_queries_do_not_count_what_limits_hold_back(server: EmbeddingServer, tmp_path: Path) -> None:
    endpoint = endpoint_of(load_tower(teach(tmp_path / "teach", server, {"requests_per_minute": 240})), "query")
    assert endpoint is not None
    server.delay, server.retry_after = 0.05, "1.0"
    server.faults = [*[""] * 4, "busy"]  # after the probes and three untimed ones
    began, before = time.monotonic(), len(server.bodies)
    speed = measure({"api": endpoint.embed}, TEXTS[:3], TEXTS[:4], batch_size=4)["api"]
    assert time.monotonic() - began > (len(server.bodies) - before - 1) * 0.25  # pacing holds
    assert 50 <= speed.p50_ms < 200 and speed.p99_ms < 400 and speed.qps > 4 / 0.2


def test_a_server_that_asks_to_wait_for_nothing_is_left_alone_for_a_while(
    server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(endpoint_client, "_FIRST_WAIT", 0.4)
    server.faults, server.retry_after = ["busy"], "0"
    teach(tmp_path / "teach", server)
    assert server.times[1] - server.times[0] >= 0.2


def test_a_stopped_run_does_not_wait_as_long_as_the_server_asked_for(server: EmbeddingServer, tmp_path: Path) -> None:
    endpoint = endpoint_of(load_tower(teach(tmp_path / "teach", server)), "query")
    assert endpoint is not None
    client = endpoint._client
    client.connection = client.connection.model_copy(update={"batch_texts": 1})
    server.faults, server.retry_after, server.delay = ["", "busy"], "60", 0.2
    began = time.monotonic()
    answers = client.answers(batches([(b"1", TEXTS[0]), (b"2", TEXTS[1])], len, client.connection))
    next(answers)
    answers.close()  # as an interrupt does
    assert time.monotonic() - began < 30
    client.pace._paused = client.pace._free = 0.0
    server.faults = []
    [(_, vectors)] = client.answers(batches([(b"1", TEXTS[0])], len, client.connection))
    assert len(vectors) == 1


def test_a_full_disk_does_not_let_it_ask_and_pay_again(
    server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(endpoint_client.TokenLedger, "add", full)
    with pytest.raises(OSError, match="No space left"):
        teach(tmp_path / "teach", server)
    assert len(server.bodies) == 1


@pytest.mark.parametrize(
    "url", ["https://me:hush@host/v1", "https://host/v1?api-key=hush", "http://host:PORT/v1", "http://[::1/v1"]
)
def test_an_address_with_a_key_or_that_no_client_could_ask_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match=r"base_url"):
        endpoint_params(url)


KILLED = """
import sys
from pathlib import Path
sys.path[:0] = ["tests", "tests/endpoint"]
from test_module import embedded
embedded(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@pytest.mark.slow
def test_a_killed_run_pays_for_the_rest_alone(
    server: EmbeddingServer, tmp_path: Path, expected: np.ndarray, record_property: Callable[..., None]
) -> None:
    tower = teach(tmp_path / "teach", server, {"batch_texts": 2, "concurrency": 2})
    server.delay = 0.1
    run_until(lambda: sum(server.paid[text] for text in TEXTS) >= 8, KILLED, tower, tmp_path / "no.npy")
    record_property("kills", 1)
    time.sleep(0.3)
    server.delay = 0.0
    vectors, count = embedded(tower, tmp_path / "vectors.npy")
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert 0 < count <= len(TEXTS) - 4
    paid_again = [text for text in TEXTS if server.paid[text] > 1]
    assert len(paid_again) <= 4, "what was under way: two requests of two"
    assert max(server.paid[text] for text in TEXTS) <= 2


def test_the_budget_stops_before_it_is_passed_and_keeps_what_is_paid(server: EmbeddingServer, tmp_path: Path) -> None:
    tower = teach(tmp_path / "teach", server)
    endpoint = endpoint_of(load_tower(tower), "query")
    assert endpoint is not None
    spent = endpoint.spent.tokens
    assert spent == sum(len(text.split()) for text in PROBES)
    tight = teach(tmp_path / "tight", server, {"max_tokens_total": spent + 250, "concurrency": 1})
    with pytest.raises(UserError, match=r"40 texts to ask tiny for.*max_tokens_total is"):
        embedded(tight, tmp_path / "vectors.npy")
    assert not any(server.paid[text] for text in TEXTS)
    reader = endpoint_of(load_tower(tight), "query")
    assert reader is not None
    with pytest.raises(UserError, match="max_tokens_total"):
        reader.embed(TEXTS)
    words = sum(len(text.split()) * count for text, count in server.paid.items())
    assert words <= spent + 250
    ledger = endpoint.spent.path.read_text()
    shutil.rmtree(endpoint._folder)  # as the advice has it where another model is behind the name
    assert TokenLedger(endpoint.spent.path).tokens > spent
    same_name = Model(model=endpoint.model.model, dimensions=3, body={}, max_length=9)
    sibling = Endpoint(same_name, endpoint.connection, endpoint.tokenizer, endpoint.probes)
    assert sibling.spent.path == endpoint.spent.path
    assert fingerprint(tight).id == fingerprint(tower).id  # limits change no vector
    embedded(tower, tmp_path / "vectors.npy")
    assert all(server.paid[text] == 1 for text in TEXTS) and ledger


def test_an_unusable_answer_is_paid_for_once_and_counted(server: EmbeddingServer, tmp_path: Path) -> None:
    tower = teach(tmp_path / "teach", server)
    spent = TokenLedger(next(Path(os.environ["SLIMTOWER_CACHE"]).rglob("spent-*.txt")))
    limits = {"batch_texts": 40, "concurrency": 1, "tries": 8}
    tight = teach(tmp_path / "tight", server, limits | {"max_tokens_total": 700})
    server.faults = ["", "nan"]
    with pytest.raises(UserError, match=r"answered with a vector with NaN.*asking again would cost the same"):
        embedded(tight, tmp_path / "vectors.npy")
    spent.refresh()
    assert sum(server.asked[text] for text in TEXTS[:1]) == 1 and spent.tokens <= 700 and spent.reserved == 0
    server.faults = []
    embedded(tower, tmp_path / "vectors.npy")


@pytest.mark.parametrize("fault", USELESS)
def test_what_the_server_may_have_billed_counts_though_nothing_came_of_it(
    server: EmbeddingServer, tmp_path: Path, fault: str
) -> None:
    limits = {"batch_texts": 40, "concurrency": 1, "timeout_s": 0.7, "tries": 8}
    tower = teach(tmp_path / "teach", server, limits)
    spent = TokenLedger(next(Path(os.environ["SLIMTOWER_CACHE"]).rglob("spent-*.txt")))
    before = spent.tokens
    server.faults = ["", fault]  # the first is for the probes
    embedded(tower, tmp_path / "vectors.npy")
    time.sleep(0.5)
    spent.refresh()
    billed = sum(len(text.split()) * server.paid[text] for text in TEXTS)
    assert min(server.paid[text] for text in TEXTS) == 1 < max(server.paid.values())
    assert spent.tokens - before >= billed and spent.reserved == 0


def test_a_server_that_is_not_there_costs_nothing(server: EmbeddingServer, tmp_path: Path) -> None:
    tower = teach(tmp_path / "teach", server, {"tries": 2})
    endpoint = endpoint_of(load_tower(tower), "query")
    assert endpoint is not None
    before = endpoint.spent.tokens
    away = endpoint.connection.model_copy(update={"base_url": "http://127.0.0.1:9/v1"})
    with pytest.raises(TransientError, match="no usable answer in 2 tries"):
        Endpoint(endpoint.model, away, endpoint.tokenizer, endpoint.probes).embed(TEXTS)
    endpoint.spent.refresh()
    assert (endpoint.spent.tokens, endpoint.spent.reserved) == (before, 0)


def test_all_runs_on_one_cache_count_together_also_what_is_under_way(tmp_path: Path) -> None:
    path = tmp_path / "endpoint/spent.txt"
    first, second = TokenLedger(path), TokenLedger(path)
    reserved = first.hold(60, 100, "tiny")
    with pytest.raises(UserError, match=r"tiny: 0 tokens are spent, 60 are under way .*about 50 come next"):
        second.hold(50, 100, "tiny")
    first.add(30, 60, reserved)
    assert second.hold(50, 100, "tiny") == 50
    assert (second.tokens, second.estimated, second.reserved) == (30, 60, 50)
    with pytest.raises(UserError, match="30 tokens are spent, 50 are under way"):
        first.hold(50, 100, "tiny")
    with path.open("a") as handle:
        handle.write("7 1")  # what a killed run left of a line
    second.add(0, 0, 50)
    again = TokenLedger(path)
    assert (again.tokens, again.estimated, again.reserved) == (30, 60, 0)


def test_a_model_that_changed_behind_its_name_is_noticed(
    server: EmbeddingServer, tmp_path: Path, tiny_tower: Path
) -> None:
    tower = teach(tmp_path / "teach", server)
    embed_texts = server.read
    server.read = lambda texts, body: embed_texts([text + " more" for text in texts], body)
    with pytest.raises(UserError, match="another model is behind the name now"):
        embedded(tower, tmp_path / "vectors.npy")
    with pytest.raises(UserError, match="another model is behind the name now"):
        teach(tmp_path / "again", server)
    assert not any(server.paid[text] for text in TEXTS)
    server.read = lambda texts, body: embed_texts(texts, body) + 1e-4  # rounding of another processor
    assert fingerprint(teach(tmp_path / "again", server)).id == fingerprint(tower).id
    server.faults = ["dimension"]
    with pytest.raises(UserError, match=r"another model is behind the name now.*run `dvc repro -f teach`"):
        embedded(tower, tmp_path / "vectors.npy")
    server.faults = ["", "", "", "dimension"]
    with pytest.raises(UserError, match="31 dimensions, not 32"):
        embedded(tower, tmp_path / "vectors.npy")
    texts_before, requests_before = set(server.asked), len(server.bodies)
    embedded(tower, tmp_path / "vectors.npy")
    bodies = server.bodies[requests_before + 1 :]  # behind the probes
    again = [text for body in bodies for text in body["input"] if text in texts_before]
    assert len(again) <= 16 < len(texts_before & set(TEXTS)), "only what was under way is asked for again"


def test_batches_end_at_the_texts_and_at_the_tokens_that_a_request_may_have(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = [3, 3, 3, 9, 1, 1, 1, 1, 4]
    limits = Connection.model_construct(batch_texts=3, tokens_per_minute=0)
    monkeypatch.setattr(endpoint_client, "BATCH_TOKENS", 7)
    request_batches = [*batches(((bytes([at]), "x" * size) for at, size in enumerate(sizes)), len, limits)]
    slower = limits.model_copy(update={"tokens_per_minute": 4})
    assert [batch.tokens for batch in batches(((b"", "x" * size) for size in (3, 1, 3)), len, slower)] == [4, 3]
    assert [[len(text) for text in batch.texts] for batch in request_batches] == [[3, 3], [3], [9], [1, 1, 1], [1, 4]]
    assert [batch.tokens for batch in request_batches] == [6, 3, 9, 3, 5]
    assert [key for batch in request_batches for key in batch.keys] == [bytes([at]) for at in range(len(sizes))]


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("2.5", 2.5), ("-1", 0.0), (None, None), ("soon", None), ("Wed, 21 Oct 2015 07:28:00 GMT", 0.0)],
)
def test_retry_after_is_a_number_or_a_date(value: str | None, seconds: float | None) -> None:
    assert endpoint_client._retry_after(value) == seconds
    later = format_datetime(datetime.now(UTC) + timedelta(seconds=40), usegmt=True)
    assert 30 < (endpoint_client._retry_after(later) or 0) <= 40


def test_roles_prompts_dimensions_and_lengths_are_sent(server: EmbeddingServer, tmp_path: Path) -> None:
    roles = INPUT_TYPES | {"query": INPUT_TYPES["query"] | {"prompt": "ask: ", "max_length": 6}}
    tower = load_tower(teach(tmp_path / "teach", server, dimensions=16, **roles))
    assert tower.get_embedding_dimension() == 16
    queries, documents = (encode(tower, ["one two three four five six"], role) for role in ("query", "document"))
    assert server.bodies[-1]["input_type"] == "document" and server.bodies[-1]["dimensions"] == 16
    [body] = (body for body in server.bodies if body["input"] == ["ask: one two three four"])  # 6 tokens with the ":"
    assert body["input_type"] == "query"
    plain = server.read(["one two three four five six"], {})[:, :16]
    np.testing.assert_allclose(documents, -plain / np.linalg.norm(plain), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(queries, axis=1), 1.0, atol=1e-6)


@pytest.mark.parametrize(
    ("key", "change", "fault", "error", "message"),
    [
        (KEY, {"key_variable": "NO_SUCH_KEY"}, "", UserError, "NO_SUCH_KEY is not set"),
        (KEY, {"key_variable": ""}, "", UserError, "401, .*Bearer none"),
        (KEY, {}, "refused", UserError, "400, .*too long.*check base_url, model"),
        (KEY, {"tries": 2}, "error", TransientError, r"in 2 tries \(last: 500"),
        ("sk-another-9876", {}, "", UserError, r"Bearer \*\*\*"),  # the server repeats it
        ("sk\N{EN DASH}pasted", {}, "", UserError, "PLANTED_KEY holds characters"),  # no header can hold it
    ],
)
def test_what_cannot_be_had_is_said_without_the_key(
    server: EmbeddingServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    key: str, change: dict, fault: str, error: type[UserError], message: str,
) -> None:  # fmt: skip
    monkeypatch.setenv("PLANTED_KEY", key)
    server.faults = [fault] * 8
    with pytest.raises(error, match=message) as raised:
        teach(tmp_path / "teach", server, change)
    assert type(raised.value) is error and key[2:] not in str(raised.value)
    assert KEY not in repr(endpoint_params(server.url))


def test_requests_that_were_held_back_begin_one_after_the_other() -> None:
    pace, starts = Pace(120, 0), list[float]()

    def begin() -> None:
        pace.wait(1)
        starts.append(time.monotonic())

    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(begin) for _ in range(4)]
        pace.pause(0.6)
        for future in waiting:
            future.result()
    later = sorted(starts)[1:]  # the first may have begun before
    assert later[-1] - later[0] > 0.5, "two turns of half a second, and no burst"


def test_tokens_are_asked_for_as_they_are_read() -> None:
    tower = load_tower(resolve_base("all-MiniLM-L6-v2"))
    texts = token_texts(tower)
    assert texts[tower.tokenizer.convert_tokens_to_ids("##des")] == "des"
    assert texts[tower.tokenizer.convert_tokens_to_ids("des")] == "des"
    assert "" not in texts and not any(text.startswith("##") and len(text) > 2 for text in texts)


def test_no_minute_has_more_requests_or_tokens_than_allowed() -> None:
    for pace, tokens in ((Pace(1200, 0), 1), (Pace(0, 6000), 5)):
        began = time.monotonic()
        for _ in range(5):
            pace.wait(tokens)
        assert time.monotonic() - began >= 4 * 0.05 - 0.001  # 20 requests, and 100 tokens, a second


def test_a_sign_of_several_tokens_is_cut_by_tokens() -> None:
    letters = pre_tokenizers.ByteLevel.alphabet()
    by_byte = Tokenizer(models.BPE(vocab={letter: at for at, letter in enumerate(sorted(letters))}, merges=[]))
    by_byte.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    connection = Connection(base_url="http://localhost:1/v1", key_variable="", max_tokens_total=0)
    model = Model(model="any", dimensions=0, body={}, max_length=9)
    endpoint = Endpoint(
        model, connection, PreTrainedTokenizerFast(tokenizer_object=by_byte), np.zeros((1, 2), np.float32)
    )
    assert (endpoint.cut("漢字漢字"), endpoint.cut("漢字"), endpoint.cut("abcdefghijk")) == (
        "漢字漢",
        "漢字",
        "abcdefghi",
    )
