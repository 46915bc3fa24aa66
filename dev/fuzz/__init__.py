"""Random kernels, and mutated programs of both languages, that the compiler must compile or refuse."""
