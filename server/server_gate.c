#include "server_gate.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "event.h"
#include "mem.h"
#include "thread.h"

struct ps_server_gate {
    ps_gate *gate; // the thread's, once it runs
    int n_secrets;
    const ps_secret *_Atomic secrets; // NULL until it is opened
    atomic_bool stop;
    ps_event wake;
    zmq_pollitem_t *items;
    ps_thread thread;
};

static const ps_secret *server_gate_secret_of(void *owner, int i)
{
    const ps_server_gate *g = owner;
    const ps_secret *secrets = atomic_load(&g->secrets);
    return secrets && i < g->n_secrets ? &secrets[i] : NULL;
}

static void *server_gate_run(void *arg)
{
    ps_server_gate *g = arg;
    int n = ps_gate_n_items(g->gate);
    g->items[n] = (zmq_pollitem_t){.fd = ps_event_fd(&g->wake), .events = ZMQ_POLLIN};
    while (!atomic_load(&g->stop)) {
        ps_gate_items(g->gate, g->items);
        if (zmq_poll(g->items, n + 1, ps_gate_poll_ms(g->gate)) < 0 &&
            zmq_errno() != EINTR)
            break;
        if (g->items[n].revents) ps_event_clear(&g->wake);
        if (atomic_load(&g->secrets)) ps_gate_open(g->gate);
        ps_gate_turn(g->gate);
    }
    return NULL;
}

ps_err ps_server_gate_create(void *zmq_context, const ps_curve *curve, int n_members,
                             ps_server_gate **out)
{
    PS_TRY(PS_NEW(out, 1, "a gate"));
    ps_server_gate *g = *out;
    const ps_gate_options o = {.zmq_context = zmq_context,
                               .n_members = 2 * n_members, // each may connect again
                               .patience_ms = PS_GATE_PATIENCE_MS,
                               .curve = curve,
                               .secret_of = server_gate_secret_of,
                               .owner = g};
    ps_err err = ps_event_init(&g->wake);
    if (err == PS_OK) err = ps_gate_create(&o, &g->gate);
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
    PS_TRY(PS_NEW(&g->items, n, "a gate"));
    return ps_thread_start(&g->thread, "gate", server_gate_run, g);
}

void ps_server_gate_open(ps_server_gate *g, const ps_secret *secrets, int n)
{
    g->n_secrets = n; // the thread reads it only once it has the secrets
    atomic_store(&g->secrets, secrets);
    ps_event_set(&g->wake);
}

void ps_server_gate_destroy(ps_server_gate **gate)
{
    ps_server_gate *g = *gate;
    if (!g) return;
    atomic_store(&g->stop, true);
    if (g->thread.runs) ps_event_set(&g->wake);
    ps_thread_join(&g->thread);
    ps_gate_destroy(&g->gate);
    ps_event_fini(&g->wake);
    free(g->items);
    free(g);
    *gate = NULL;
}
