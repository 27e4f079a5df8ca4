"""Open a release and ask it; needs neither torch nor the teacher.

`load_release(folder)` gives a `Release`, which refuses to open when its parts do not belong together.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slimtower.common.errors import UserError
    from slimtower.serving.release import Hit, Release, load_release

__all__ = ["Hit", "Release", "UserError", "load_release"]


def __getattr__(name: str) -> Any:
    """Import the index's and the encoder's libraries when they are first needed."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from slimtower.serving import release

    return getattr(release, name)
