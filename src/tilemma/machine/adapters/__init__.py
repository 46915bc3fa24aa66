"""Kernels of other compilers on the PTX machine; each adapter imports its library on first use."""
