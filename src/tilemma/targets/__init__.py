"""What lane IR and tile IR are turned into: PTX text, and results on the CPU."""
