"""Property tests draw the same examples in every run; HYPOTHESIS_PROFILE=explore draws new ones."""

from __future__ import annotations

import os

from hypothesis import settings

# A change must not fail for an example that the change has nothing to do with: new examples belong to the
# nightly run.  Deadlines measure the machine, not the code.
settings.register_profile("fixed", derandomize=True, deadline=None)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fixed"))
