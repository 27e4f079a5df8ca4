"""What `pip install` gives: releases to answer queries with (`slimtower.serving`), and the command `slimtower`."""
