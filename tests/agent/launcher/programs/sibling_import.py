"""Program that imports a module from its own folder."""

import sibling_of_programs

print(sibling_of_programs.VALUE)
