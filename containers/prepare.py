"""python prepare.py STEP...: what the servers of compose.yaml need before they start, or right after.

database    create the database DATABASE where it is missing (PGHOST, PGUSER, PGPASSWORD)
buckets     create the buckets of ARTIFACT_ROOT and SLIMTOWER_REMOTE where they are missing (AWS_*)
account     create MLFLOW_TRACKING_USERNAME, the account of tasks, or set its password (MLFLOW_TRACKING_URI); so for
            SERVE_MLFLOW_USERNAME, the account of the service, where it has a password

Each step waits for its server and may be repeated: changed passwords of .env are taken over by starting again.
"""

import base64
import json
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

WAIT_S = 600
SECRET = re.compile(r"(PASSWORD|SECRET|TOKEN|KEY|KEY_ID)$")  # how variables that hold one end
ACCOUNTS = "api/2.0/mlflow/users"


def database() -> None:
    """Create what is missing; an existing database is left as it is."""
    import psycopg2

    connection = patiently(lambda: psycopg2.connect(dbname="postgres", connect_timeout=5), psycopg2.OperationalError)
    connection.autocommit = True  # `create database` refuses transactions
    with connection.cursor() as cursor:
        name = os.environ["DATABASE"]
        cursor.execute("select 1 from pg_database where datname = %s", (name,))
        if not cursor.fetchone():
            cursor.execute(f'create database "{name}"')
            print(f"prepare: database {name} created")


def buckets() -> None:
    """Create what is missing; the secret of an existing bucket must fit."""
    import boto3
    from botocore.exceptions import ClientError, EndpointConnectionError

    client: Any = boto3.client("s3")
    for name in sorted({place.split("/")[2] for place in places() if place.startswith("s3://")}):
        try:
            patiently(partial(client.head_bucket, Bucket=name), EndpointConnectionError)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                stop(f"bucket {name}: {error}; check AWS_* and the name")
            client.create_bucket(Bucket=name, **_region(client.meta.region_name))
            print(f"prepare: bucket {name} created")


def places() -> list[str]:
    return [os.environ["ARTIFACT_ROOT"], os.environ["SLIMTOWER_REMOTE"]]


def _region(name: str) -> dict[str, Any]:
    return {} if name == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": name}}


def account() -> None:
    """Create the accounts or set their passwords.

    That of tasks owns the experiments and models that it makes; that of the service may read, as all may (auth.ini).
    """
    patiently(lambda: urllib.request.urlopen(f"{server()}/health", timeout=5), OSError)
    _account(os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"])
    if password := os.environ.get("SERVE_MLFLOW_PASSWORD"):
        _account(os.environ["SERVE_MLFLOW_USERNAME"], password)


def _account(user: str, password: str) -> None:
    login = {"username": user, "password": password}
    try:
        as_admin("POST", f"{ACCOUNTS}/create", login)
        print(f"prepare: MLflow account {user} created")
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        if "RESOURCE_ALREADY_EXISTS" not in said:
            _refused(f"make {user}", error, said)
        try:
            as_admin("PATCH", f"{ACCOUNTS}/update-password", login)
        except urllib.error.HTTPError as second:
            _refused(f"change the password of {user}", second, second.read().decode(errors="replace"))


def _refused(what: str, error: urllib.error.HTTPError, said: str) -> NoReturn:
    stop(f"MLflow refused to {what}: {error}: {masked(said)[:300]}; check MLFLOW_AUTH_ADMIN_PASSWORD")


def server() -> str:
    return os.environ["MLFLOW_TRACKING_URI"].rstrip("/")


def as_admin(method: str, path: str, body: dict[str, str]) -> None:
    """One request with the admin's login, again while the server is busy; urllib.error.HTTPError where it refuses."""
    login = base64.b64encode(f"admin:{os.environ['MLFLOW_AUTH_ADMIN_PASSWORD']}".encode()).decode()
    headers = {"Authorization": f"Basic {login}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"{server()}/{path}", json.dumps(body).encode(), headers, method=method)
    patiently(lambda: _send(request), Busy)


class Busy(Exception):
    """No answer, or an error of the server's own: another try may succeed."""


def _send(request: urllib.request.Request) -> None:
    try:
        urllib.request.urlopen(request, timeout=60).close()
    except urllib.error.HTTPError as error:
        if error.code < 500:
            raise
        raise Busy(str(error)) from error
    except OSError as error:
        raise Busy(str(error)) from error


def patiently(call: Callable[[], Any], *waits_on: type[Exception]) -> Any:
    """The result of `call`, tried again every second for WAIT_S while the server is not there."""
    last = time.monotonic() + WAIT_S
    while True:
        try:
            return call()
        except waits_on as error:
            if time.monotonic() > last:
                stop(f"not reached within {WAIT_S} s: {error}")
            time.sleep(1)


def stop(why: str) -> NoReturn:
    """End with one line, in which no secret stands."""
    sys.exit(f"prepare: {masked(why)}")


def masked(text: str) -> str:
    """The text with `***` for each secret of the environment of 4 characters and more, however it is spelled."""
    secrets = {value for name, value in os.environ.items() if SECRET.search(name) and len(value) > 3}
    found = {spelled for secret in secrets for spelled in _spellings(secret)}
    return re.sub("|".join(map(re.escape, sorted(found, key=len, reverse=True))), "***", text) if found else text


def _spellings(secret: str) -> list[str]:
    """As it is, in JSON, in JSON within JSON, as Python shows it, in URLs, and in the header of the admin's login."""
    in_urls = urllib.parse.quote(secret, safe=""), urllib.parse.quote(secret), urllib.parse.quote_plus(secret)
    header = base64.b64encode(f"admin:{secret}".encode()).decode()
    in_json = json.dumps(secret)[1:-1]
    return [secret, in_json, json.dumps(in_json)[1:-1], repr(secret)[1:-1], *in_urls, header]


STEPS = {"database": database, "buckets": buckets, "account": account}

if __name__ == "__main__":
    for step in sys.argv[1:]:
        STEPS[step]()
