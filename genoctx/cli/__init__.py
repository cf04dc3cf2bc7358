"""The command line: the only part of genoctx that talks to a terminal."""
