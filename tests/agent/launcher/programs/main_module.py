"""Program that checks that the module __main__ is the program."""

import sys

FLAG = 1
main = sys.modules["__main__"]
print(
    main.FLAG,
    main.__name__,
    main.__spec__,
    main.__package__,
    sorted(n for n in vars(main) if n[0] == "_"),
)
