"""Program that prints its signal dispositions, which must be those of a new interpreter."""

import signal

for number in sorted(signal.valid_signals()):
    try:
        handler = signal.getsignal(number)
    except ValueError:
        continue
    if handler not in (signal.SIG_DFL, None):
        print(int(number), getattr(handler, "__name__", handler))
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
print(signal.set_wakeup_fd(-1))
