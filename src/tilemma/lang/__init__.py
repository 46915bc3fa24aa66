"""The Python front end: a function under `@tm.kernel` is read, checked and traced into tile IR."""
