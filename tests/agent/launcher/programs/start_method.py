"""The start method of multiprocessing may be set once."""

import multiprocessing

print(multiprocessing.get_start_method(allow_none=True))
multiprocessing.set_start_method("spawn")
print(multiprocessing.get_start_method())
try:
    multiprocessing.set_start_method("fork")
except RuntimeError as error:
    print(error)
