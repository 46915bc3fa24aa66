"""JAX takes three quarters of the GPU's memory at its first call, and a second process that imports it most of the
rest: the other processes of a parallel run had none left."""

from __future__ import annotations

import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
