"""Program that sets the start method of multiprocessing, which is possible once."""

import multiprocessing

print(multiprocessing.get_start_method(allow_none=True))
multiprocessing.set_start_method("spawn")
print(multiprocessing.get_start_method())
try:
    multiprocessing.set_start_method("fork")
except RuntimeError as error:
    print(error)
