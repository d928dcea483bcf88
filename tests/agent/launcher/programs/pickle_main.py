"""Classes of the program can be pickled."""

import pickle


class Point:
    pass


print(type(pickle.loads(pickle.dumps(Point()))) is Point)
