"""Open a release and ask it; needs neither torch nor the teacher.

`load_release(folder)` gives a `Release`, which refuses to open when its parts do not belong together.
"""

from steps.core.errors import UserError
from steps.serving.release import Hit, Release, load_release

__all__ = ["Hit", "Release", "UserError", "load_release"]
