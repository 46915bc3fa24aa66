"""The `.co` front end: text to tile IR."""
