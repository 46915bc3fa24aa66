"""Arithmetic as the language defines it, once for constant folding, the CPU reference and lowering."""
