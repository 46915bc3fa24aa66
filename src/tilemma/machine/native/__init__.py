"""Inner loops of the machine in C: ``library`` compiles and loads them, ``encode`` gives them instructions,
``blocks`` memory and its shadows."""
