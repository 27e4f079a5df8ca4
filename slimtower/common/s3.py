"""S3 as the environment names it, and what goes wrong there as errors that say whether to try again.

Endpoint, region and credentials come from the standard AWS_* variables (AWS_ENDPOINT_URL, AWS_DEFAULT_REGION,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_PROFILE, ...).
"""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from slimtower.common.errors import TransientError, UserError, line

CLOCK = {"RequestTimeTooSkewed", "RequestExpired"}
LOGIN = {"AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"}
BUSY = {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling"}
FIX_CLOCK = "set the clock of this machine, or of the server"
FIX_CERTIFICATE = (
    "let this machine know the authority that signed the server's certificate: AWS_CA_BUNDLE for S3,"
    " REQUESTS_CA_BUNDLE for MLflow, GIT_SSL_CAINFO for git"
)

_BUCKET = {"NoSuchBucket", "AuthorizationHeaderMalformed"}  # no bucket, or one of another region
_HEAD = r"\(40[013]\) when calling"  # an answer to HEAD has no code, and 400 for a token that has expired
_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED|certificate verif(?:y|ication) failed|SSL certificate problem"
_REFUSED = re.compile("|".join([*sorted(CLOCK | LOGIN | _BUCKET), _HEAD, _CERTIFICATE]))
_CLOCK = re.compile("|".join(sorted(CLOCK)))
T = TypeVar("T")
CHANGED = {"PreconditionFailed", "NoSuchKey", "404", "412"}
_CONNECT_SECONDS, _READ_SECONDS = 10, 30
_WAITS = (1.0, 4.0)  # seconds before an answer that broke off is asked for again


def says_refused(text: str) -> bool:
    """Tell whether the words of a client are of a login, a clock, a bucket or a certificate: all stay as they are."""
    return _REFUSED.search(text) is not None


def advice(text: str, otherwise: str) -> str:
    """What to do about such words: `otherwise`, unless they are of a clock or a certificate."""
    if says_untrusted(text):
        return FIX_CERTIFICATE
    return FIX_CLOCK if _CLOCK.search(text) else otherwise


def says_untrusted(text: str) -> bool:
    """Tell whether words are of a server's certificate that this machine does not trust."""
    return re.search(_CERTIFICATE, text) is not None


def s3_client(where: str) -> Any:
    """A client that connects on its first call; `where` begins what its errors say."""
    import boto3
    from botocore.config import Config

    with explained(where):
        try:
            return boto3.Session().client(
                "s3", config=Config(connect_timeout=_CONNECT_SECONDS, read_timeout=_READ_SECONDS)
            )
        except ValueError as error:
            raise UserError(f"{where}: {error}; fix AWS_ENDPOINT_URL") from None


def read_whole(fetch: Callable[[], T]) -> T:
    """What `fetch` returns; it is called again if an answer breaks off: botocore repeats requests, not answers."""
    from botocore.exceptions import IncompleteReadError, ResponseStreamingError

    for wait in _WAITS:
        try:
            return fetch()
        except (IncompleteReadError, ResponseStreamingError):
            time.sleep(wait)
    return fetch()


def unless_absent(fetch: Callable[[], T]) -> T | None:
    """What `fetch` returns; None if there is no such object."""
    from botocore.exceptions import ClientError

    try:
        return fetch()
    except ClientError as error:
        if error.response["Error"]["Code"] in {"NoSuchKey", "404"}:
            return None
        raise


@contextmanager
def explained(where: str) -> Iterator[None]:
    """Turn what botocore raises into a UserError or TransientError that begins with `where` and ends with the fix."""
    from botocore import exceptions as aws

    try:
        yield
    except aws.ClientError as error:
        raise _refusal(where, error.response) from None
    except (aws.NoCredentialsError, aws.PartialCredentialsError, aws.CredentialRetrievalError) as error:
        raise UserError(
            f"{where}: {line(error)}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE"
        ) from None
    except (aws.HTTPClientError, aws.ConnectionError, aws.IncompleteReadError) as error:
        raise _unreached(where, error) from None
    except aws.BotoCoreError as error:
        raise UserError(f"{where}: {line(error)}; fix the location or the AWS_* variables") from None


def _unreached(where: str, error: Exception) -> UserError:
    if "Invalid header" in str(error):
        return UserError(
            f"{where}: the credentials hold a line end or another character that no header may; fix AWS_ACCESS_KEY_ID"
            " or AWS_SESSION_TOKEN"
        )
    if says_untrusted(str(error)):
        return UserError(f"{where}: {line(error)}; {FIX_CERTIFICATE}")
    return TransientError(f"{where}: {line(error)}; check AWS_ENDPOINT_URL and the network, then run again")


def _refusal(where: str, response: dict[str, Any]) -> Exception:
    code = str(response.get("Error", {}).get("Code", "?"))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    message = f"{where}: {code}, {response.get('Error', {}).get('Message', 'no message')}"
    if code == "NoSuchBucket":
        return UserError(f"{message}; name a bucket that exists at this endpoint (AWS_ENDPOINT_URL)")
    if code in CLOCK:
        return UserError(f"{message}; {FIX_CLOCK}")
    if code in LOGIN or status in (401, 403):
        return UserError(f"{message}; check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and what they may read")
    if code in CHANGED:
        return TransientError(f"{message}; an object changed while it was read, run again")
    if code in BUSY or status >= 500:
        return TransientError(f"{message}; the server is busy, run again")
    return UserError(f"{message}; check AWS_ENDPOINT_URL, AWS_DEFAULT_REGION and the location")
