"""The codes with which S3 refuses, and those that pass; the only list of them."""

import re

CLOCK = {"RequestTimeTooSkewed", "RequestExpired"}
LOGIN = {"AccessDenied", "ExpiredToken", "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch"}
BUSY = {"InternalError", "OperationAborted", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling"}
FIX_CLOCK = "set the clock of this machine, or of the server"

_PLACE = {"NoSuchBucket", "AuthorizationHeaderMalformed"}  # no bucket, or one of another region
_HEAD = r"\(40[013]\) when calling"  # an answer to HEAD has no code, and 400 for a token that has expired
_REFUSED = re.compile("|".join([*sorted(CLOCK | LOGIN | _PLACE), _HEAD]))
_CLOCK = re.compile("|".join(sorted(CLOCK)))


def says_refused(text: str) -> bool:
    """Tell whether the words of S3's clients are of a login, a clock or a bucket: trying again helps nothing."""
    return _REFUSED.search(text) is not None


def advice(text: str, otherwise: str) -> str:
    """What to do about such words: `otherwise`, unless they are of a clock."""
    return FIX_CLOCK if _CLOCK.search(text) else otherwise
