"""Another version of a library that results are computed by, as if it were installed."""

import pytest

from steps.core import versions

LIBRARIES = ("torch", "transformers", "sentence_transformers")


def install_another(library: str, patch: pytest.MonkeyPatch) -> None:
    """Let the library's metadata name another version."""
    installed = versions.version
    patch.setattr(versions, "version", lambda name: "99.0.0" if name == library else installed(name))
