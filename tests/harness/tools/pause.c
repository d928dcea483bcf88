/* The first process of a pod: keeps its namespaces, reaps its orphans, ends on a signal. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void end(int number)
{
	(void)number;
	_exit(0);
}

static void reap(int number)
{
	(void)number;
	while (waitpid(-1, NULL, WNOHANG) > 0)
		continue;
}

int main(void)
{
	struct sigaction on_end = {.sa_handler = end};
	struct sigaction on_child = {.sa_handler = reap, .sa_flags = SA_NOCLDSTOP};

	if (sigaction(SIGINT, &on_end, NULL) || sigaction(SIGTERM, &on_end, NULL) ||
	    sigaction(SIGCHLD, &on_child, NULL))
		return EXIT_FAILURE;
	for (;;)
		pause();
}
