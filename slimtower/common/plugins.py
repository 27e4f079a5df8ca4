"""Classes that a folder adds by holding their module."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from typing import Any


def concrete_subclasses(package: str, path: Iterable[str], base: type) -> list[Any]:
    """Concrete subclasses of `base` in the modules of a package, by name; `path` is the package's `__path__`."""
    classes = set()
    for module in pkgutil.iter_modules(path):
        members = vars(importlib.import_module(f"{package}.{module.name}")).values()
        classes |= {member for member in members if isinstance(member, type) and issubclass(member, base)}
    concrete = (member for member in classes if not inspect.isabstract(member))
    return sorted(concrete, key=lambda member: member.__name__)
