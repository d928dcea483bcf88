"""Program that pickles objects of its own classes."""

import pickle


class Point:
    pass


print(type(pickle.loads(pickle.dumps(Point()))) is Point)
