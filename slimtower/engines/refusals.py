"""Which of an engine's failures stay: a wrong login, missing rights, what it cannot do."""

import re

from slimtower.common.errors import PASSING_STATUS, line

# psycopg's classes of what is refused; of a login that fails libpq has the server's words alone
_POSTGRES = {"ProgrammingError", "NotSupportedError", "DataError", "InvalidAuthorizationSpecification"}
_LOGIN = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|FATAL: .*(?:does not exist|permission denied)"
)
_GRPC = {"UNAUTHENTICATED", "PERMISSION_DENIED", "INVALID_ARGUMENT", "UNIMPLEMENTED"}
_MILVUS = {1, 7, 8, 11, 14, 16, 17}  # hundreds: collection, index, database, parameter, privilege, alias, field


def is_refusal(error: BaseException) -> bool:
    """Whether the engine would answer so again: a wrong login, missing rights, or what it cannot do."""
    status, code = getattr(error, "status_code", None), getattr(error, "code", None)
    if {kind.__name__ for kind in type(error).__mro__} & _POSTGRES or _LOGIN.search(line(error)):
        return True
    if isinstance(status, int) and 400 <= status < 500 and status not in PASSING_STATUS:
        return True
    if isinstance(code, int) and not getattr(error, "retriable", False) and code // 100 in _MILVUS:
        return True
    if callable(code) and getattr(code(), "name", "") in _GRPC:
        return True
    behind = error.__context__ if error.__cause__ in (None, error) else error.__cause__  # pymilvus raises e from e
    return behind is not None and is_refusal(behind)
