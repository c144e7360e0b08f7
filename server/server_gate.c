#include "server_gate.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "mem.h"
#include "thread.h"

struct ps_server_gate {
    ps_gate *gate; // the thread's, once it runs
    int n_workers;
    const ps_secret *_Atomic secrets; // NULL until it is opened
    atomic_bool stop;
    int wake_fd;
    zmq_pollitem_t *items;
    pthread_t thread;
    bool running;
};

static bool knows(void *owner, const void *secret, size_t bytes)
{
    const ps_server_gate *g = owner;
    const ps_secret *secrets = atomic_load(&g->secrets);
    bool known = false;
    for (int r = 0; r < g->n_workers; r++)
        known |= ps_secret_is(&secrets[r], secret, bytes);
    return known;
}

static void *run(void *arg)
{
    ps_server_gate *g = arg;
    int n = ps_gate_n_items(g->gate);
    g->items[n] = (zmq_pollitem_t){.fd = g->wake_fd, .events = ZMQ_POLLIN};
    while (!atomic_load(&g->stop)) {
        ps_gate_items(g->gate, g->items);
        if (zmq_poll(g->items, n + 1, ps_gate_poll_ms(g->gate)) < 0 &&
            zmq_errno() != EINTR)
            break;
        uint64_t count;
        if (g->items[n].revents && read(g->wake_fd, &count, sizeof count) < 0) continue;
        if (atomic_load(&g->secrets)) ps_gate_open(g->gate);
        ps_gate_turn(g->gate);
    }
    return NULL;
}

ps_err ps_server_gate_create(void *zmq_context, int n_workers, ps_server_gate **out)
{
    PS_TRY(ps_mem_zalloc(out, 1, sizeof **out, "a gate"));
    ps_server_gate *g = *out;
    g->n_workers = n_workers;
    g->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    const ps_gate_options o = {.zmq_context = zmq_context,
                               .n_members = 2 * n_workers, // each may connect again
                               .patience_ms = PS_GATE_PATIENCE_MS,
                               .knows = knows,
                               .owner = g};
    ps_err err = g->wake_fd < 0 ? ps_err_errno(PS_ERR_IO, "eventfd")
                                : ps_gate_create(&o, &g->gate);
    if (err != PS_OK) ps_server_gate_destroy(out);
    return err;
}

ps_gate *ps_server_gate_of(ps_server_gate *g)
{
    return g->gate;
}

ps_err ps_server_gate_start(ps_server_gate *g)
{
    size_t n = (size_t)ps_gate_n_items(g->gate) + 1;
    PS_TRY(ps_mem_zalloc(&g->items, n, sizeof *g->items, "a gate"));
    PS_TRY(ps_thread_start(&g->thread, "gate", run, g));
    g->running = true;
    return PS_OK;
}

static void wake(const ps_server_gate *g)
{
    const uint64_t one = 1;
    ssize_t n = write(g->wake_fd, &one, sizeof one); // fails only when already readable
    (void)n;
}

void ps_server_gate_open(ps_server_gate *g, const ps_secret *secrets)
{
    atomic_store(&g->secrets, secrets);
    wake(g);
}

void ps_server_gate_destroy(ps_server_gate **gate)
{
    ps_server_gate *g = *gate;
    if (!g) return;
    if (g->running) {
        atomic_store(&g->stop, true);
        wake(g);
        pthread_join(g->thread, NULL);
    }
    ps_gate_destroy(&g->gate);
    if (g->wake_fd >= 0) close(g->wake_fd);
    free(g->items);
    free(g);
    *gate = NULL;
}
