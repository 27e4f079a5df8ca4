"""Classes that are found by where their file lies: losses, kinds of teachers, scorers. Adding one is adding a file."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable
from typing import Any


def concrete(package: str, path: Iterable[str], base: type) -> list[Any]:
    """Concrete subclasses of `base` in the modules of a package, by name; `path` is the package's `__path__`."""
    found = set()
    for module in pkgutil.iter_modules(path):
        members = vars(importlib.import_module(f"{package}.{module.name}")).values()
        found |= {each for each in members if isinstance(each, type) and issubclass(each, base)}
    return sorted((each for each in found if not inspect.isabstract(each)), key=lambda each: each.__name__)
