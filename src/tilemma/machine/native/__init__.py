"""Inner loops of the machine in C: ``library`` compiles and loads them, ``encode`` gives them the program."""
