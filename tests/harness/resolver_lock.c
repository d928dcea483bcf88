/* Makes a hang certain that glibc makes rare: a fork while another thread resolves a name.

glibc locks its resolver during a call, and a fork copies the lock as taken: nothing releases it in
the child. Here, a call from any thread except the main one takes the lock for all later forks. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

static pid_t owner; /* The process in which a thread has taken the lock, or 0. */

static void lock(void) {
    while (owner && owner != getpid())
        pause();
    if (gettid() != getpid())
        owner = getpid();
}

int getnameinfo(const struct sockaddr *address, socklen_t length, char *host, socklen_t host_size,
                char *service, socklen_t service_size, int flags) {
    int (*real)(const struct sockaddr *, socklen_t, char *, socklen_t, char *, socklen_t, int) =
        dlsym(RTLD_NEXT, "getnameinfo");
    lock();
    return real(address, length, host, host_size, service, service_size, flags);
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints,
                struct addrinfo **found) {
    int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **) =
        dlsym(RTLD_NEXT, "getaddrinfo");
    lock();
    return real(host, service, hints, found);
}
