"""Mutants of the package's own source, each run against the tests that cover its line."""
