"""Tile IR and lane IR."""
