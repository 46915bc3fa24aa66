"""Mutants of PTX programs, which the PTX machine must convict."""
