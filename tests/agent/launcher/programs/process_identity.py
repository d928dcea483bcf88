"""Program that checks that the rank is its main process."""

import multiprocessing
import threading

now = multiprocessing.current_process()
print(now.name, now.daemon, multiprocessing.parent_process(), multiprocessing.active_children())
print(threading.current_thread().name, threading.active_count())
print(threading.current_thread() is threading.main_thread())
