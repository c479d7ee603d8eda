"""``python -m wordloom`` is the command, for where it is not on the path."""

from wordloom.cli import main

main()
