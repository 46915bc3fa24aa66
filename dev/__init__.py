"""Development code that is not part of the installed package: it runs from the repository's root."""
