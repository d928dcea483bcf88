"""A module beside the program can be imported."""

import sibling_of_programs

print(sibling_of_programs.VALUE)
