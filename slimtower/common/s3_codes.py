"""The codes with which S3 refuses, and those that pass; the only list of them."""

import re

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
