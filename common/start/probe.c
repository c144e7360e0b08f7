#include "probe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gate.h"
#include "net.h"
#include "parse_text.h"
#include "procstat.h"
#include "zsock.h"

enum {
    ROUNDS = 31,
    BLOCK = 256 << 10,
    BYTES = 16 << 20,
    SERVE_MS = 60000,
    CONNECT_MS = 5000,
    MEASURE_MS = 20000,
    RATE_MS = 3000, // a slow link is measured by the bytes that pass in this time
    WAITING = 16    // messages of a peer that are not read yet
};

/* ---- the answering end ---- */

typedef struct serving {
    void *zmq_context, *router;
    ps_gate *gate;
} serving;

static const ps_secret *no_member(void *owner, int i)
{
    return NULL;
}

static ps_err open_serving(serving *s, const ps_curve *curve, int port)
{
    const ps_gate_options gate = {.zmq_context = s->zmq_context,
                                  .patience_ms = PS_GATE_PATIENCE_MS,
                                  .curve = curve,
                                  .secret_of = no_member};
    const ps_zsock_options o = {.type = ZMQ_ROUTER,
                                .max_message_bytes = BLOCK + 4096,
                                .waiting_messages = WAITING,
                                .curve = curve};
    char where[PS_ENDPOINT_MAX], endpoint[PS_ENDPOINT_MAX];
    const bool everywhere = curve->on || curve->insecure;
    PS_TRY(ps_gate_create(&gate, &s->gate));
    PS_TRY(ps_zsock_open(s->zmq_context, &o, &s->router));
    PS_TRY(ps_gate_watch(s->gate, s->router, PS_GATE_MEMBERS));
    ps_gate_open(s->gate);
    ps_net_endpoint(everywhere ? "*" : "127.0.0.1", port, where, sizeof where);
    return ps_zsock_bind(s->router, curve, where, endpoint);
}

static void close_serving(serving *s)
{
    ps_gate_unwatch(s->router);
    ps_zsock_close(&s->router);
    ps_gate_destroy(&s->gate);
    if (s->zmq_context) zmq_ctx_term(s->zmq_context);
}

/* Answers each message with its first byte. */
static void probe_answer(void *router)
{
    const ps_deadline now = {0};
    for (int i = 0; i < WAITING; i++) {
        zmq_msg_t parts[2], body;
        int n;
        if (ps_zsock_recv(router, now, parts, 2, &n) != PS_OK || n == 0) return;
        if (n < 2 || zmq_msg_size(&parts[1]) == 0 ||
            ps_zsock_msg_copy(&body, zmq_msg_data(&parts[1]), 1) != PS_OK) {
            ps_zsock_close_parts(parts, n);
            continue;
        }
        zmq_msg_close(&parts[1]);
        parts[1] = body;
        (void)ps_zsock_send(router, now, parts, 2); // a peer that is gone gets no answer
    }
}

static void answer_until_told(serving *s)
{
    const ps_deadline end = ps_deadline_in_ms(SERVE_MS);
    while (!ps_deadline_passed(end)) {
        enum { GATE_ITEMS = 2 };
        zmq_pollitem_t items[2 + GATE_ITEMS] = {
            {.socket = s->router, .events = ZMQ_POLLIN},
            {.fd = STDIN_FILENO, .events = ZMQ_POLLIN}};
        ps_gate_items(s->gate, items + 2);
        const int gate_ms = ps_gate_poll_ms(s->gate), ms = ps_deadline_left_ms(end);
        int n =
            zmq_poll(items, 2 + GATE_ITEMS, gate_ms >= 0 && gate_ms < ms ? gate_ms : ms);
        if (n < 0 && zmq_errno() != EINTR) return;
        if (items[1].revents) return; // the process that started it is done or gone
        ps_gate_turn(s->gate);
        probe_answer(s->router);
    }
}

static ps_err probe_serve(const ps_curve *curve, int port, FILE *out)
{
    serving s = {0};
    ps_err err = ps_zsock_context(1, ZMQ_MAX_SOCKETS_DFLT, false, &s.zmq_context);
    if (err == PS_OK) err = open_serving(&s, curve, port);
    if (err == PS_OK) {
        fprintf(out, "{\"serving\": %d}\n", port);
        fflush(out);
        answer_until_told(&s);
    }
    const ps_err_saved end = ps_err_save(err);
    close_serving(&s);
    return ps_err_restore(&end);
}

/* ---- the measuring end ---- */

static ps_err probe_send_bytes(void *dealer, size_t n, ps_deadline deadline)
{
    zmq_msg_t part;
    if (zmq_msg_init_size(&part, n) != 0)
        return ps_err_set(PS_ERR_NOMEM, "no memory for a message");
    memset(zmq_msg_data(&part), 'p', n);
    return ps_zsock_send(dealer, deadline, &part, 1);
}

static ps_err await_answer(void *dealer, ps_deadline deadline)
{
    zmq_msg_t part;
    int n;
    PS_TRY(ps_zsock_recv(dealer, deadline, &part, 1, &n));
    ps_zsock_close_parts(&part, n);
    if (n > 0) return PS_OK;
    return ps_err_set(PS_ERR_TIMEOUT, "the other end takes connections but does not "
                                      "answer: does a probe run there, and are its keys "
                                      "(--curve) those of this one?");
}

static int probe_ascending(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static ps_err measure_rtt(void *dealer, double *us, ps_deadline deadline)
{
    uint64_t rounds[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        uint64_t start = ps_clock_ns();
        PS_TRY(probe_send_bytes(dealer, 1, deadline));
        PS_TRY(await_answer(dealer, deadline));
        rounds[i] = ps_clock_ns() - start;
    }
    qsort(rounds, ROUNDS, sizeof *rounds, probe_ascending);
    *us = (double)rounds[ROUNDS / 2] * 1e-3;
    return PS_OK;
}

static ps_err measure_rate(void *dealer, double *mbit_s, ps_deadline deadline)
{
    uint64_t start = ps_clock_ns(), sent = 0;
    int waiting = 0; // blocks that are not answered yet: three keep the link busy
    const ps_deadline enough = ps_deadline_in_ms(RATE_MS);
    while (sent < BYTES && !ps_deadline_passed(enough)) {
        PS_TRY(probe_send_bytes(dealer, BLOCK, deadline));
        sent += BLOCK;
        if (++waiting < 3) continue;
        PS_TRY(await_answer(dealer, deadline));
        waiting--;
    }
    for (; waiting > 0; waiting--)
        PS_TRY(await_answer(dealer, deadline));
    *mbit_s = (double)sent * 8e3 / (double)(ps_clock_ns() - start);
    return PS_OK;
}

typedef struct measured {
    double us, mbit_s;
} measured;

static ps_err measure_over(void *zmq_context, const ps_probe_options *p,
                           const char *endpoint, measured *m)
{
    const ps_zsock_options o = {.type = ZMQ_DEALER, .curve = p->curve, .peer = p->peer};
    const ps_deadline deadline = ps_deadline_in_ms(MEASURE_MS);
    void *dealer;
    PS_TRY(ps_zsock_open(zmq_context, &o, &dealer));
    ps_err err = ps_zsock_connect(dealer, p->curve, endpoint);
    // The first round makes the connection.
    if (err == PS_OK) err = probe_send_bytes(dealer, 1, deadline);
    if (err == PS_OK) err = await_answer(dealer, ps_deadline_in_ms(CONNECT_MS));
    if (err == PS_OK) err = measure_rtt(dealer, &m->us, deadline);
    if (err == PS_OK) err = measure_rate(dealer, &m->mbit_s, deadline);
    ps_zsock_close(&dealer);
    return err;
}

static ps_err probe_measure(const ps_probe_options *p, const char *host, int port,
                            FILE *out)
{
    char remote[PS_ADDRESS_MAX], local[PS_ADDRESS_MAX], endpoint[PS_ENDPOINT_MAX];
    measured m = {0};
    ps_host self;
    void *zmq_context;
    PS_TRY(ps_net_reach(host, port, ps_deadline_in_ms(CONNECT_MS), remote, local));
    ps_net_endpoint(remote, port, endpoint, sizeof endpoint);
    PS_TRY(ps_zsock_context(1, ZMQ_MAX_SOCKETS_DFLT, false, &zmq_context));
    ps_err err = measure_over(zmq_context, p, endpoint, &m);
    zmq_ctx_term(zmq_context);
    if (err != PS_OK) return ps_err_prefix(err, "probe of %s:%d", host, port);
    ps_host_find(&self);
    fprintf(
        out,
        "{\"host\": \"%s\", \"address\": \"%s\", \"rtt_us\": %.1f, \"mbit_s\": %.0f}\n",
        self.name, local, m.us, m.mbit_s);
    return PS_OK;
}

ps_err ps_probe_run(const ps_probe_options *p, FILE *out)
{
    const char *what = p->what;
    char host[256];
    const char *colon = strrchr(what, ':');
    int64_t port = 0;
    if (!colon || !ps_parse_int(colon + 1, &port) || port < 1 || port > 65535 ||
        colon == what || (size_t)(colon - what) >= sizeof host)
        return ps_err_set(PS_ERR_ARG,
                          "--probe: '%.80s' is neither serve:PORT nor HOST:PORT", what);
    size_t n = (size_t)(colon - what);
    bool bracketed = what[0] == '[' && what[n - 1] == ']';
    snprintf(host, sizeof host, "%.*s", (int)(bracketed ? n - 2 : n), what + bracketed);
    if (strcmp(host, "serve") == 0) return probe_serve(p->curve, (int)port, out);
    return probe_measure(p, host, (int)port, out);
}
