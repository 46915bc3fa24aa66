"""`python -m tilemma`: the command `tilemma`."""

from tilemma.cli import main

main()
