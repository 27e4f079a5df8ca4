"""Vector engines, one class each. A module here adds its engine by being here: see docs/extending.md."""

from slimtower.common.plugins import concrete_subclasses
from slimtower.engines.engine import Engine


def kinds() -> list[type[Engine]]:
    classes: list[type[Engine]] = concrete_subclasses(__name__, __path__, Engine)
    return classes
