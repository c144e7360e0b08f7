#include "lookup.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "event.h"
#include "interrupt.h"
#include "mem.h"
#include "thread.h"

/* Shared by the thread that looks up and the thread that waits. The last one to leave
 * frees it. */
typedef struct lookup {
    atomic_int users;
    ps_event done;
    char *host;
    int code, reason; // of getaddrinfo; written before done is set
    struct addrinfo *found;
} lookup;

static void lookup_leave(lookup *l)
{
    if (atomic_fetch_sub(&l->users, 1) > 1) return;
    if (l->found) freeaddrinfo(l->found);
    ps_event_fini(&l->done);
    free(l->host);
    free(l);
}

static int lookup_ask(const char *host, int flags, struct addrinfo **found)
{
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = flags};
    return getaddrinfo(host, NULL, &hints, found);
}

static void *lookup_look_up(void *arg)
{
    lookup *l = arg;
    l->code = lookup_ask(l->host, 0, &l->found);
    l->reason = errno;
    ps_event_set(&l->done);
    lookup_leave(l);
    return NULL;
}

static ps_err lookup_start(const char *host, lookup **out)
{
    lookup *l;
    PS_TRY(PS_NEW(&l, 1, "a look-up"));
    atomic_init(&l->users, 1);
    ps_err err = ps_event_init(&l->done);
    if (err == PS_OK) err = ps_mem_strdup(&l->host, host);
    ps_thread thread;
    if (err == PS_OK) {
        atomic_store(&l->users, 2);
        err = ps_thread_start(&thread, "look-up", lookup_look_up, l);
        if (err != PS_OK) atomic_store(&l->users, 1);
    }
    if (err == PS_OK)
        (void)pthread_detach(thread.id);
    else
        lookup_leave(l);
    *out = err == PS_OK ? l : NULL;
    return err;
}

static ps_err lookup_await(const lookup *l, ps_deadline deadline)
{
    struct pollfd items[] = {{.fd = ps_event_fd(&l->done), .events = POLLIN},
                             {.fd = ps_interrupt_fd(), .events = POLLIN}};
    while (poll(items, 2, ps_deadline_left_ms(deadline)) < 0)
        if (errno != EINTR) return ps_err_errno(PS_ERR_IO, "poll");
    if (items[0].revents) {
        ps_event_clear(&l->done); // what was found is seen from here on
        return PS_OK;
    }
    PS_TRY(ps_interrupt_check());
    return ps_err_set(PS_ERR_TIMEOUT, "%s: no name server has answered", l->host);
}

ps_err ps_lookup(const char *host, ps_deadline deadline, struct addrinfo **out)
{
    *out = NULL;
    if (lookup_ask(host, AI_NUMERICHOST, out) == 0) return PS_OK; // no name server needed
    lookup *l;
    PS_TRY(lookup_start(host, &l));
    ps_err err = lookup_await(l, deadline);
    if (err == PS_OK && l->code != 0)
        err = ps_err_set(PS_ERR_NET, "%s: the name does not resolve: %s", host,
                         l->code == EAI_SYSTEM ? strerror(l->reason)
                                               : gai_strerror(l->code));
    if (err == PS_OK) {
        *out = l->found;
        l->found = NULL;
    }
    lookup_leave(l);
    return err;
}
