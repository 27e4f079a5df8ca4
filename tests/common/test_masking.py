"""A planted secret shows nowhere: not in last lines, not in the exit file, not in tracebacks, not in MLflow."""

import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from pipeline.task.children import ask, stream
from slimtower.common.errors import UserError, exhausted, line
from slimtower.common.masking import masked_traceback, redacted, remember
from slimtower.common.s3 import explained, s3_client
from slimtower.registry.client import reaching
from steps.endpoint.params import Reads
from steps.frame.exit_file import VARIABLE, read_exit, record_exit
from steps.tracking.run_ids import scheduler_tags
from steps.tracking.runs import MlflowRun

pytestmark = [pytest.mark.medium, pytest.mark.faults("secrets")]


def test_a_secret_whose_variable_has_any_name_is_masked_once_it_was_read() -> None:
    assert redacted("sent s3lf-named-value") == "sent s3lf-named-value"
    remember(" s3lf-named-value\n")
    assert redacted("sent s3lf-named-value") == "sent ***"


@pytest.mark.parametrize(
    ("body", "secret"),
    [
        ({"api_key": "sk-1"}, "api_key"),
        ({"Authorization": "sk-1"}, "Authorization"),
        ({"key": "sk-1"}, "key"),
        ({"litellm_params": {"api_key": "sk-1"}}, "litellm_params.api_key"),
        ({"a": [{"b": 1}, {"api_key": "sk-1"}]}, "a.api_key"),
    ],
)
def test_what_goes_into_each_request_holds_no_secret(body: dict[str, Any], secret: str) -> None:
    harmless = {"input_type": "query", "truncate_prompt_tokens": "query"}
    assert Reads(body=harmless).body == harmless
    with pytest.raises(ValueError, match=f"{re.escape(secret)} would be written down here"):
        Reads(body=harmless | body)


@pytest.mark.parametrize(
    "text",
    ["x-amz-", "a://b:", "token", 'token":"', "\\", "bearer ", "api-key", "&key", "%3D", "two ", "two\\n", "-\\"],
)
def test_the_time_to_mask_grows_with_the_text_alone(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Part of what is masked was sent by strangers. A square would make it 64 times as long, not 8."""
    monkeypatch.setenv("SOME_TOKEN", "two words\nof a secret")
    monkeypatch.setenv("OTHER_TOKEN", "-begins-with-a-dash")

    def seconds(length: int) -> float:
        long_text, best = text * (length // len(text)), math.inf
        for _ in range(3):
            began = time.thread_time()  # of this thread alone, however busy the machine is
            redacted(long_text)
            best = min(best, time.thread_time() - began)
        return best

    seconds(100)
    assert seconds(64_000) < max(0.1, 24 * seconds(8_000))


FORMS = {
    "as it is": str,
    "in a URL": lambda secret: quote(secret, safe=""),
    "in a path": quote,
    "in a form": quote_plus,
    "in small letters": lambda secret: quote(secret, safe="").replace("%2F", "%2f").replace("%2B", "%2b"),
    "twice encoded": lambda secret: quote(quote(secret, safe=""), safe=""),
    "as Python shows it": repr,
    "as bytes": lambda secret: repr(secret.encode()),
    "as JSON": json.dumps,
    "as JSON in JSON": lambda secret: json.dumps(json.dumps(secret)),
    "after a strip": str.strip,
    "on one line": lambda secret: " ".join(secret.split()),
}
NAMES = [
    "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "HF_TOKEN",
    "PGPASSWORD", "SLIMTOWER_LOG_SALT",
]  # fmt: skip
KEYS = """
    token access_token signature Signature X-Amz-Signature X-Amz-Security-Token X-Amz-Credential sig key access_key
    AWSAccessKeyId password api_key apikey api-key client_secret
"""
SECRETS = st.text(st.characters(exclude_categories=["Cs", "Cn"]), min_size=9, max_size=40).filter(
    lambda text: len(text.split()) > 0 and len(text.strip()) >= 9 and "\0" not in text
)
PASSWORDS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=8, max_size=40)
CHEAP = settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(autouse=True)
def no_other_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And an exit file."""
    for name in [*NAMES, "MLFLOW_TRACKING_URI"]:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "exit"))
    own_words()  # without a secret


def outputs_of(message: str) -> Iterator[str]:
    """What a stage that fails for this message tells: last line, exit file, traceback and what is behind an error."""
    yield line(UserError(message))
    yield redacted(message)
    try:
        try:
            raise ValueError(message)
        except ValueError as error:
            raise RuntimeError(f"because of {message}") from error
    except RuntimeError as error:
        yield masked_traceback(error)
    for kind in (RuntimeError, SystemExit):
        with pytest.raises(kind), record_exit():
            raise kind(message)
        exit_file = read_exit(Path(os.environ[VARIABLE]))
        assert exit_file is not None
        yield exit_file[1]
    full = exhausted(MemoryError(message))
    yield line(full) if full else ""


@cache
def own_words() -> str:
    """What is told in any case."""
    return " ".join(outputs_of("no"))


def is_own_word(secret: str) -> bool:
    """Whether a secret stands in what is told in any case, as a part of `Traceback` does; such a one says nothing."""
    return secret.strip() in own_words()


@pytest.mark.parametrize("form", FORMS)
@CHEAP
@given(name=st.sampled_from(NAMES), secret=SECRETS)
def test_a_secret_of_the_environment_is_masked_in_every_spelling(
    form: str, name: str, secret: str, record_property: Callable[..., None]
) -> None:
    record_property("cases", 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(name, secret)
        spelled = FORMS[form](secret)
        assume(not is_own_word(secret))
        for text in outputs_of(f"before<{spelled}>after"):
            assert spelled.strip() not in text
            assert "***" in text and "before<" in text and ">after" in text
            assert secret.strip() not in text


@CHEAP
@given(password=PASSWORDS)
def test_the_password_of_a_url_is_masked_whatever_is_in_it(password: str, record_property: Callable[..., None]) -> None:
    record_property("cases", 1)
    assume(not is_own_word(password))
    for scheme, suffix in (("https", "@host/x.git"), ("s3", "@bucket/key"), ("postgresql+psycopg2", "@host:5432/db")):
        url = f"{scheme}://someone:{password}{suffix}"
        assume(password not in f"before {scheme}://someone:***{suffix} after")
        for text in outputs_of(f"before {url} after"):
            assert password not in text
        assert line(UserError(f"at '{url}': no")) == f"at '{scheme}://***{suffix}': no"


@CHEAP
@given(token=PASSWORDS.filter(lambda text: "&" not in text))
@pytest.mark.parametrize("key", KEYS.split())
def test_a_token_in_a_query_string_is_masked(key: str, token: str, record_property: Callable[..., None]) -> None:
    record_property("cases", 1)
    assume(not is_own_word(token))
    for query in (f"?{key}={token}", f"?a=1&{key}={token}&b=2"):
        message = f"GET http://127.0.0.1/x{query} failed"
        assume(token not in message.replace(f"={token}", ""))
        for text in outputs_of(message):
            assert token not in text
        assert line(UserError(message)).endswith(" failed")


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("{'password': 'two words', 'x': 1}", "{'password': ***, 'x': 1}"),
        ('{"aws_secret_access_key": "a\\"b", "x": 1}', '{"aws_secret_access_key": ***, "x": 1}'),
        ("Authorization: Basic bWU6c2VjcmV0", "Authorization: ***"),
        ("{'Authorization': b'Bearer abc.def'}", "{'Authorization': b***}"),
        ("sent bearer abcdefghijkl", "sent bearer ***"),
        ("x-amz-security-token:abcdef", "x-amz-security-token:***"),
        ("sent api-key: abcdef, x-api-key:abc.def", "sent api-key: ***, x-api-key:***"),
        ("X-Goog-Api-Key: abcdef", "X-Goog-Api-Key: ***"),
        ("OPENAI_API_KEY: not set", "OPENAI_API_KEY: not set"),
        ("s3://AKIA:abc/d+e@bucket/key", "s3://***@bucket/key"),
        ("https://token@host/x", "https://***@host/x"),
        ("https://me:a'b@host/x and ftp://you:c@d@e/f", "https://***@host/x and ftp://***@e/f"),
        ("x-amz-copy-source-server-side-encryption-customer-key=AAAA&b=1",
         "x-amz-copy-source-server-side-encryption-customer-key=***&b=1"),
        ("s3://bucket/locks/distill@2l.yaml: not found", ""),
        ("sqlite:////data/a@b.db", ""),
        ("https://host:8080/path?page=2&size=10", ""),
        ("models:/slimtower@champion", ""),
        ("the tokenizer's token: [UNK]; set AWS_SESSION_TOKEN, MLFLOW_TRACKING_PASSWORD or the API key", ""),
        ("me@host.example: max_tokens=512, tokens=7", ""),
    ],
)  # fmt: skip
def test_what_is_masked_and_what_stays(text: str, masked: str) -> None:
    assert redacted(text) == (masked or text)


def test_short_secrets_are_masked_as_words_and_the_shortest_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "abc")
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "true")
    assert redacted("tests of 'test', abc: true") == "tests of '***', abc: true"


def test_passwords_of_urls_in_the_environment_are_known_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:pa%20ss w/o'rd@host")
    for text in ("pa%20ss w/o'rd", "pa ss w/o'rd", quote("pa ss w/o'rd")):
        assert redacted(f"<{text}>") == "<***>"


@pytest.mark.parametrize(
    ("name", "value", "secret"),
    [
        ("DB_PASS", "planted", "planted"),
        ("API_TOKENS", "planted-0123456789", "planted-0123456789"),
        ("S3_CREDENTIALS", "planted-0123456789", "planted-0123456789"),
        ("ENCRYPTION_KEY", "planted-0123456789", "planted-0123456789"),
        ("HTTPS_PROXY", "me:planted@proxy:80", "planted"),
        ("AIRFLOW_CONN_X", '{"login": "me", "extra": {"password": "plan\\u0074ed"}}', "planted"),
        ("AIRFLOW_CONN_X", '{"host": "https://x", "aws_secret_access_key": "planted"}', "planted"),
        ("AIRFLOW_CONN_X", '{"extra": "{\\"client_secret\\": \\"planted\\"}"}', "planted"),
        ("GOOGLE_CREDENTIALS", '{"type": "x", "private_key": "planted"}', "planted"),
        ("X_KEY", "planted/" + "x" * 300, "planted/" + "x" * 300),
        ("X_KEY", "planted/" * 1000, "planted/" * 1000),
        ("PARTITION_KEY", "day", ""),
        ("MAX_TOKENS", "8192", ""),
        ("GOOGLE_APPLICATION_CREDENTIALS", __file__, ""),
        ("SLIMTOWER_IMAGE_KEY", "0123456789abcdef0123", ""),
        ("SETTINGS", "{'password'", ""),
    ],
)
def test_what_is_a_secret_in_the_environment(
    name: str, value: str, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    assert redacted(f"<{secret or value}>") == ("<***>" if secret else f"<{value}>")


def test_a_long_password_does_not_show_where_a_text_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import ClientError
    from mlflow.exceptions import MlflowException, RestException

    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://host")
    url = f"https://me:{'secret' * 100}@host"
    for error in (
        MlflowException(f"API request to {url} failed with exception {url}"),
        RestException({"error_code": "PERMISSION_DENIED", "message": f"no {url}"}),
        MlflowException(f"The following failures occurred while uploading: {url}"),
        ClientError({"Error": {"Code": "AccessDenied", "Message": url}}, "PutObject"),
    ):
        with pytest.raises(UserError) as caught, record_exit(), reaching():
            raise error
        assert "secretsecret" not in str(caught.value)
        assert "secretsecret" not in str(read_exit(Path(os.environ[VARIABLE])))


def test_no_text_is_cut_before_it_is_masked() -> None:
    """Of half a secret nothing knows that it is one: `line(error)[:200]`, never `str(error)[:200]`."""
    cut = re.compile(r"(?:str\((?:error|exc)\)|\.stderr\b).*\[(?:-?\w*:\s?-?\w*|-1)\]")
    root = Path(__file__).parents[2]
    files = [path for folder in ("slimtower", "steps", "pipeline") for path in (root / folder).rglob("*.py")]
    rows = [f"{path.name}: {row.strip()}" for path in files for row in path.read_text(encoding="utf-8").splitlines()]
    assert len(files) > 100 and [row for row in rows if cut.search(row) and "redacted(" not in row] == []


def test_what_mlflow_is_told_holds_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    api: Any = SimpleNamespace(log_param=lambda *call: sent.append(call), set_tag=lambda *call: sent.append(call))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "planted/secret")
    monkeypatch.setenv("SLIMTOWER_IMAGE_DIGEST", "https://me:planted@registry/image@sha256:1")
    run = MlflowRun(api, "run", "experiment")
    run.param("path", "s3://key:planted@bucket/log")
    run.param("long", f"{'x' * 5990} https://me:{'planted' * 9}@host")
    run.tag("note", "planted/secret and planted%2Fsecret")
    assert "planted" not in repr(sent) and "planted" not in repr(scheduler_tags())
    assert sent[0] == ("run", "path", "s3://***@bucket/log") and sent[2] == ("run", "note", "*** and ***")


CRASH = """
import threading
from slimtower.common.errors import guarded
def fail():
    try:
        raise ValueError("https://me:pla/nted'@host?token=planted")
    except ValueError as error:
        raise RuntimeError("the key is planted+secret") from error
def command():
    thread = threading.Thread(target=fail)
    thread.start()
    thread.join()
    fail()
guarded(command)
"""


def test_tracebacks_of_commands_and_their_threads_hold_no_secret() -> None:
    environment = os.environ | {"AWS_SESSION_TOKEN": " planted+secret\n"}
    done = subprocess.run([sys.executable, "-c", CRASH], capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "nted" not in done.stderr and done.stdout == ""
    assert done.stderr.count("The above exception was the direct cause") == 2
    assert done.stderr.count("ValueError: https://***@host?token=***") == 2
    assert done.stderr.count("RuntimeError: the key is ***") == 2


def test_the_last_words_of_a_child_are_masked_before_they_are_cut(tmp_path: Path) -> None:
    message = f"https://me:{'planted' * 1000}@host {'.' * 13000}"
    words = [sys.executable, "-c", "import sys; sys.stderr.write(sys.argv[1])", message]
    for ended in (ask(words, tmp_path, dict(os.environ)), stream(words, tmp_path, dict(os.environ))):
        assert "planted" not in ended.stderr and ended.stderr.startswith("https://***@host ...")


def test_a_credential_with_a_line_end_is_to_be_fixed_and_does_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "AWS_ACCESS_KEY_ID": "AKIA",
        "AWS_SECRET_ACCESS_KEY": "secret/key",
        "AWS_SESSION_TOKEN": "planted/session+token\n",
        "AWS_ENDPOINT_URL": "http://127.0.0.1:9",
        "AWS_MAX_ATTEMPTS": "1",
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as caught, explained("s3://shop"):
        s3_client("s3://shop").list_objects_v2(Bucket="shop")
    assert caught.value.exit_code == 3 and "fix AWS_ACCESS_KEY_ID or AWS_SESSION_TOKEN" in str(caught.value)
    assert "planted" not in str(caught.value)


def test_secrets_are_masked_while_a_thread_changes_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "abcdefghij")
    ended = threading.Event()

    def change() -> None:
        while not ended.is_set():
            os.environ["SLIMTOWER_TEST_SESSION"] = "x"
            del os.environ["SLIMTOWER_TEST_SESSION"]

    thread = threading.Thread(target=change)
    thread.start()
    try:
        assert {redacted("of abcdefghij") for _ in range(3000)} == {"of ***"}
    finally:
        ended.set()
        thread.join()
