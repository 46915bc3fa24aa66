"""8-bit floats below sm_89."""
