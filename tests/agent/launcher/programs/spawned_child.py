"""Program whose spawned child imports the program's classes from __main__."""

import multiprocessing


class Box:
    def __init__(self, value):
        self.value = value


def work(queue, box):
    queue.put(box.value)


if __name__ == "__main__":
    context = multiprocessing.get_context("spawn")
    queue = context.SimpleQueue()
    child = context.Process(target=work, args=(queue, Box(5)))
    child.start()
    print(queue.get())
    child.join()
    print(child.exitcode)
