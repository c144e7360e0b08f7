#include "ps_comm.h"

#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "interrupt.h"
#include "mem.h"
#include "nontemporal_copy.h"
#include "ps_comm_links.h"
#include "ps_comm_rings.h"
#include "ps_comm_thread.h"
#include "thread.h"

enum {
    WAIT_SLICE_MS = 1000 // between two looks at progress while waiting
};

/* ---- commands ---- */

ps_err ps_comm_push(ps_comm *c, uint64_t step, const uint32_t *chunks, uint32_t n,
                    bool more)
{
    if (!c->rings) return ps_comm_submit(c, PS_COMM_PUSH, step, chunks, n);
    PS_TRY(ps_comm_check(c));
    return ps_comm_rings_push(c, step, chunks, n, more);
}

ps_err ps_comm_submit(ps_comm *c, ps_comm_command what, uint64_t step,
                      const uint32_t *chunks, uint32_t n)
{
    static const uint8_t kinds[] = {
        [PS_COMM_INIT] = PS_MSG_INIT,   [PS_COMM_PUSH] = PS_MSG_PUSH,
        [PS_COMM_PULL] = PS_MSG_PULL,   [PS_COMM_EXACT] = PS_MSG_EXACT,
        [PS_COMM_FETCH] = PS_MSG_FETCH, [PS_COMM_RESTORE] = PS_MSG_RESTORE,
    };
    if (c->rings && what == PS_COMM_PUSH) return ps_comm_push(c, step, chunks, n, false);
    PS_TRY(ps_comm_check(c));
    // The thread has nothing to do with these chunks until it takes the command.
    for (uint32_t i = 0; i < n && what >= PS_COMM_EXACT; i++)
        atomic_store(&c->versions[chunks[i]], (int64_t)step - 1);
    for (uint32_t i = 0; i < n; i++)
        PS_TRY(ps_command_queue_put(&c->commands,
                                    (ps_command){kinds[what], chunks[i], step}));
    if (n) ps_command_queue_wake(&c->commands);
    return PS_OK;
}

ps_err ps_comm_ask(ps_comm *c, ps_comm_command command, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        c->asked[i] = atomic_load(&c->versions[i]);
        PS_TRY(ps_comm_submit(c, command, (uint64_t)c->asked[i], &i, 1));
    }
    for (uint32_t i = 0; i < n; i++)
        PS_TRY(ps_comm_wait(c, i, c->asked[i]));
    return PS_OK;
}

/* ---- waiting ---- */

ps_err ps_comm_look(ps_comm *c)
{
    return c->rings ? ps_comm_rings_take(c) : PS_OK;
}

bool ps_comm_has(const ps_comm *c, uint32_t chunk, int64_t version)
{
    return atomic_load_explicit(&c->versions[chunk], memory_order_acquire) >= version;
}

void ps_comm_computed(ps_comm *c, uint64_t step, uint64_t ns)
{
    atomic_store(&c->computed_ns, ns);
    atomic_store(&c->computed_step, step + 1);
}

void ps_comm_tell(ps_comm *c, ps_comm_told *told, void *ctx)
{
    c->told = told;
    c->told_ctx = ctx;
}

void ps_comm_give_up(ps_comm *c, ps_err err)
{
    ps_comm_fail(c, err);
}

bool ps_comm_scales(const ps_comm *c)
{
    return c->scales;
}

void ps_comm_rest(const ps_comm *c, bool *rests, bool *over)
{
    const uint32_t rest = atomic_load_explicit(&c->rest, memory_order_relaxed);
    *rests = (rest & PS_WIRE_REST) != 0;
    *over = (rest & PS_WIRE_OVER) != 0;
}

float ps_comm_loss_scale(const ps_comm *c)
{
    uint32_t bits = atomic_load_explicit(&c->scale_bits, memory_order_relaxed);
    float scale;
    memcpy(&scale, &bits, sizeof scale);
    return scale;
}

static double seconds_since(uint64_t ns)
{
    return (double)(ps_clock_awake_ns() - ns) * 1e-9;
}

static ps_err chunk_timeout(ps_comm *c, uint32_t chunk, int64_t version, uint64_t since)
{
    uint32_t shard = c->plan->chunks[chunk].shard;
    const ps_comm_link *l = &c->links[shard];
    char lost[128];
    ps_comm_lost_text(l, lost, sizeof lost);
    return ps_err_set(PS_ERR_TIMEOUT,
                      "version %" PRId64 " of chunk %u is missing: shard %u of server %d "
                      "(host %s, %s) has sent nothing for %.1f s (net.step_timeout_ms)%s",
                      version, chunk, shard, l->server, l->host, l->endpoint,
                      seconds_since(since),
                      lost[0] ? lost : "; it waits for another worker, or does not run");
}

/* Sleeps until the thread wakes it, a slice at most; *late when timeout_ms have passed
 * *since the last progress, or the start. */
static void sleep_for(ps_comm *c, uint32_t sequence, uint64_t start_ns,
                      uint64_t timeout_ms, bool *late, uint64_t *since)
{
    uint64_t progress = atomic_load_explicit(&c->progress_ns, memory_order_relaxed);
    *since = progress > start_ns ? progress : start_ns;
    ps_deadline deadline = {*since + timeout_ms * 1000000u};
    *late = ps_deadline_passed(deadline);
    if (!*late)
        ps_bell_sleep(
            c->bell, sequence,
            ps_deadline_left_ms_max(ps_interrupt_slice(deadline), WAIT_SLICE_MS));
}

/* Looks for a moment, and gives the core to others between looks. */
static ps_err comm_spin(ps_comm *c, uint32_t chunk, int64_t version)
{
    if (c->spin_ns == 0) return PS_OK;
    const uint64_t end_ns = ps_clock_ns() + c->spin_ns;
    while (!ps_comm_has(c, chunk, version) && ps_clock_ns() < end_ns) {
        PS_TRY(ps_comm_look(c));
        sched_yield();
    }
    return PS_OK;
}

/* wanted: what the bell is to be rung for, which the chunk's version comes with. */
static ps_err wait_until(ps_comm *c, uint32_t chunk, int64_t version, uint32_t wanted)
{
    if (ps_comm_has(c, chunk, version)) return PS_OK;
    PS_TRY(comm_spin(c, chunk, version));
    if (ps_comm_has(c, chunk, version)) return PS_OK;
    uint64_t start = ps_clock_awake_ns(), since = start;
    uint64_t timeout_ms = (uint64_t)c->o.config->net.step_timeout_ms;
    ps_err err = PS_OK;
    atomic_store(&c->bell->wanted, wanted);
    for (bool late = false;;) {
        uint32_t sequence = ps_bell_sequence(c->bell);
        if ((err = ps_comm_look(c)) != PS_OK) break;
        if (ps_comm_has(c, chunk, version)) break;
        if ((err = ps_comm_check(c)) != PS_OK) break;
        if ((err = ps_interrupt_ask_hook()) != PS_OK) break;
        if (late && (err = chunk_timeout(c, chunk, version, since)) != PS_OK) break;
        sleep_for(c, sequence, start, timeout_ms, &late, &since);
    }
    atomic_store(&c->bell->wanted, PS_COMM_WAIT_NONE);
    return err;
}

ps_err ps_comm_wait(ps_comm *c, uint32_t chunk, int64_t version)
{
    return wait_until(c, chunk, version, chunk + 1);
}

ps_err ps_comm_wait_all(ps_comm *c, int64_t version)
{
    for (uint32_t i = 0; i < c->plan->n_chunks; i++) {
        if (ps_comm_has(c, i, version)) continue;
        const bool all = ps_comm_rings_want_all(c);
        PS_TRY(wait_until(c, i, version, all ? PS_WIRE_WANTED_ALL : i + 1));
    }
    return PS_OK;
}

static ps_err ready_timeout(const ps_comm *c)
{
    uint32_t missing = c->n_links - atomic_load(&c->n_ready);
    return ps_err_set(PS_ERR_TIMEOUT,
                      "%u of %u shards have not answered within %" PRId64
                      " ms (net.join_timeout_ms); the first endpoint is %s",
                      missing, c->n_links, c->o.config->net.join_timeout_ms,
                      c->links[0].endpoint);
}

ps_err ps_comm_wait_ready(ps_comm *c)
{
    ps_deadline deadline = ps_deadline_in_ms((uint64_t)c->o.config->net.join_timeout_ms);
    ps_err err = PS_OK;
    atomic_store(&c->bell->wanted, PS_COMM_WAIT_ANY);
    for (;;) {
        uint32_t sequence = ps_bell_sequence(c->bell);
        if (atomic_load(&c->n_ready) == c->n_links) break;
        if ((err = ps_comm_check(c)) != PS_OK) break;
        if ((err = ps_interrupt_ask_hook()) != PS_OK) break;
        if (ps_deadline_passed(deadline)) {
            err = ready_timeout(c);
            break;
        }
        ps_bell_sleep(
            c->bell, sequence,
            ps_deadline_left_ms_max(ps_interrupt_slice(deadline), WAIT_SLICE_MS));
    }
    atomic_store(&c->bell->wanted, PS_COMM_WAIT_NONE);
    return err;
}

void ps_comm_get_stats(const ps_comm *c, ps_comm_stats *out)
{
    *out = (ps_comm_stats){
        .bytes_sent = ps_counter_get(&c->bytes_sent),
        .bytes_received = ps_counter_get(&c->bytes_received),
        .raw_bytes = ps_counter_get(&c->raw_bytes),
        .shm_sent = ps_counter_get(&c->shm_sent),
        .shm_received = ps_counter_get(&c->shm_received),
        .most_on_the_way = ps_counter_get(&c->most_on_the_way),
        .encode_ns = ps_counter_get(&c->encode_ns),
        .send_ns = ps_counter_get(&c->send_ns),
    };
}

/* ---- life ---- */

ps_err ps_comm_create(const ps_exchange_options *options, ps_comm **out)
{
    *out = NULL;
    ps_comm *c;
    PS_TRY(ps_mem_zalloc(&c, 1, sizeof *c, "the communication thread"));
    const ps_roster *roster = ps_member_roster(options->member);
    c->o = *options;
    c->plan = options->plan;
    c->nonce = roster->nonce;
    c->epoch = roster->epoch;
    c->n_links = options->plan->n_shards;
    c->bypass_caches =
        ps_nontemporal_copy_pays(options->params->bytes * 2); // and as many gradients
    ps_err err;
    PS_TRY_GOTO(ps_comm_memory_init(c), err, out);
    PS_TRY_GOTO(ps_comm_links_open(c), err, out);
    PS_TRY_GOTO(ps_thread_start(&c->thread, "exchange", ps_comm_thread_main, c), err,
                out);
    c->running = true;
    *out = c;
    return PS_OK;
out:
    ps_comm_destroy(&c);
    return err;
}

static void join_thread(ps_comm *c)
{
    if (c->running) pthread_join(c->thread, NULL);
    c->running = false;
}

ps_err ps_comm_stop(ps_comm *c)
{
    PS_TRY(ps_comm_check(c));
    PS_TRY(ps_command_queue_put(&c->commands, (ps_command){.kind = PS_MSG_BYE}));
    ps_command_queue_wake(&c->commands);
    join_thread(c);
    PS_TRY(ps_comm_check(c));
    return PS_OK;
}

void ps_comm_destroy(ps_comm **pointer)
{
    ps_comm *c = *pointer;
    if (!c) return;
    if (c->running &&
        ps_command_queue_put(&c->commands, (ps_command){.kind = PS_COMM_QUIT}) == PS_OK)
        ps_command_queue_wake(&c->commands);
    join_thread(c);
    ps_comm_links_close(c);
    ps_comm_memory_fini(c);
    free(c);
    *pointer = NULL;
}
