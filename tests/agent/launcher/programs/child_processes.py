"""Program that starts child processes of multiprocessing and prints their names."""

import multiprocessing


def work(queue):
    queue.put(multiprocessing.current_process().name)


if __name__ == "__main__":
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    child = context.Process(target=work, args=(queue,))
    child.start()
    print(queue.get())
    child.join()
    print(child.exitcode, child.name)
