#include "ps_comm.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interrupt.h"
#include "loss_scale.h"
#include "mem.h"
#include "nontemporal_copy.h"
#include "ps_comm_state.h"
#include "shm_offer.h"
#include "shm_pass.h"
#include "thread.h"
#include "zsock.h"

enum {
    WAIT_SLICE_MS = 1000 // between two looks at progress while waiting
};

/* ---- what every part needs ---- */

ps_wire_header ps_comm_header(const ps_comm *c, int kind)
{
    return (ps_wire_header){
        .version = PS_WIRE_VERSION,
        .kind = (uint8_t)kind,
        .nonce = c->nonce,
        .epoch = c->epoch,
        .rank = (uint32_t)c->o.rank,
    };
}

const char *ps_comm_lost_text(const ps_comm_link *l, char *text, size_t cap)
{
    uint64_t lost_ns = atomic_load(&l->lost_ns);
    text[0] = '\0';
    if (lost_ns)
        snprintf(text, cap, "; there has been no connection to it for %.1f s",
                 (double)(ps_clock_awake_ns() - lost_ns) * 1e-9);
    return text;
}

void ps_comm_give_up(ps_comm *c, ps_err err)
{
    if (atomic_exchange(&c->failing, true)) return;
    c->failure = ps_err_save(err);
    atomic_store(&c->failed, true);
    ps_bell_ring(c->bell);
}

ps_err ps_comm_check(const ps_comm *c)
{
    return atomic_load(&c->failed) ? ps_err_restore(&c->failure) : PS_OK;
}

/* ---- commands ---- */

void ps_comm_set_step_of(ps_comm *c, uint64_t step, uint32_t step_of)
{
    atomic_store(&c->steps_of[step % 2], step_of);
}

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
    const uint32_t step_of = atomic_load(&c->steps_of[step % 2]);
    for (uint32_t i = 0; i < n; i++)
        PS_TRY(ps_command_queue_put(&c->commands, (ps_command){.kind = kinds[what],
                                                               .chunk = chunks[i],
                                                               .step = step,
                                                               .step_of = step_of}));
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

static double comm_seconds_since(uint64_t ns)
{
    return (double)(ps_clock_awake_ns() - ns) * 1e-9;
}

static ps_err comm_rows_timeout(const ps_comm *c, uint64_t since)
{
    const uint32_t shard = ps_comm_rows_late_shard(c);
    const ps_comm_link *l = &c->links[shard];
    char lost[128];
    ps_comm_lost_text(l, lost, sizeof lost);
    return ps_err_set(PS_ERR_TIMEOUT,
                      "rows of embedding tables are missing: shard %u of server %d (host "
                      "%s, %s) has sent nothing for %.1f s (net.step_timeout_ms)%s",
                      shard, l->server, l->host, l->endpoint, comm_seconds_since(since),
                      lost[0] ? lost : "; it waits for another worker, or does not run");
}

static ps_err comm_chunk_timeout(ps_comm *c, uint32_t chunk, int64_t version,
                                 uint64_t since)
{
    uint32_t shard = c->plan->chunks[chunk].shard;
    const ps_comm_link *l = &c->links[shard];
    char lost[128];
    ps_comm_lost_text(l, lost, sizeof lost);
    return ps_err_set(PS_ERR_TIMEOUT,
                      "version %" PRId64 " of chunk %u is missing: shard %u of server %d "
                      "(host %s, %s) has sent nothing for %.1f s (net.step_timeout_ms)%s",
                      version, chunk, shard, l->server, l->host, l->endpoint,
                      comm_seconds_since(since),
                      lost[0] ? lost : "; it waits for another worker, or does not run");
}

/* Sleeps until the thread wakes it, a slice at most; *late when timeout_ms have passed
 * *since the last progress, or the start. */
static void comm_sleep(ps_comm *c, uint32_t sequence, uint64_t start_ns,
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

/* chunk: PS_COMM_WAIT_ROWS: all answers to the messages of rows of that number. */
static bool comm_reached(const ps_comm *c, uint32_t chunk, int64_t version)
{
    return chunk == PS_COMM_WAIT_ROWS ? ps_comm_rows_are_answered(c, (uint64_t)version)
                                      : ps_comm_has(c, chunk, version);
}

/* Looks for a moment, and gives the core to others between looks. */
static ps_err comm_spin(ps_comm *c, uint32_t chunk, int64_t version)
{
    if (c->spin_ns == 0) return PS_OK;
    const uint64_t end_ns = ps_clock_ns() + c->spin_ns;
    while (!comm_reached(c, chunk, version) && ps_clock_ns() < end_ns) {
        PS_TRY(ps_comm_look(c));
        sched_yield();
    }
    return PS_OK;
}

/* wanted: what the bell is to be rung for, which the chunk's version comes with. */
static ps_err comm_wait_until(ps_comm *c, uint32_t chunk, int64_t version,
                              uint32_t wanted)
{
    if (comm_reached(c, chunk, version)) return PS_OK;
    PS_TRY(comm_spin(c, chunk, version));
    if (comm_reached(c, chunk, version)) return PS_OK;
    uint64_t start = ps_clock_awake_ns(), since = start;
    uint64_t timeout_ms = c->o.settings.step_timeout_ms;
    ps_err err = PS_OK;
    atomic_store(&c->bell->wanted, wanted);
    for (bool late = false;;) {
        uint32_t sequence = ps_bell_sequence(c->bell);
        if ((err = ps_comm_look(c)) != PS_OK) break;
        if (comm_reached(c, chunk, version)) break;
        if ((err = ps_comm_check(c)) != PS_OK) break;
        if ((err = ps_interrupt_ask_hook()) != PS_OK) break;
        if (late && chunk == PS_COMM_WAIT_ROWS)
            err = comm_rows_timeout(c, since);
        else if (late)
            err = comm_chunk_timeout(c, chunk, version, since);
        if (err != PS_OK) break;
        comm_sleep(c, sequence, start, timeout_ms, &late, &since);
    }
    atomic_store(&c->bell->wanted, PS_COMM_WAIT_NONE);
    return err;
}

ps_err ps_comm_wait(ps_comm *c, uint32_t chunk, int64_t version)
{
    return comm_wait_until(c, chunk, version, chunk + 1);
}

ps_err ps_comm_rows_wait(ps_comm *c, uint64_t sent)
{
    return comm_wait_until(c, PS_COMM_WAIT_ROWS, (int64_t)sent, PS_COMM_WAIT_ROWS);
}

ps_err ps_comm_wait_all(ps_comm *c, int64_t version)
{
    for (uint32_t i = 0; i < c->plan->n_chunks; i++) {
        if (ps_comm_has(c, i, version)) continue;
        const bool all = ps_comm_rings_want_all(c);
        PS_TRY(comm_wait_until(c, i, version, all ? PS_WIRE_WANTED_ALL : i + 1));
    }
    return PS_OK;
}

static ps_err comm_ready_timeout(const ps_comm *c)
{
    uint32_t missing = c->n_links - atomic_load(&c->n_ready);
    return ps_err_set(PS_ERR_TIMEOUT,
                      "%u of %u shards have not answered within %" PRIu64
                      " ms (net.join_timeout_ms); the first endpoint is %s",
                      missing, c->n_links, c->o.settings.join_timeout_ms,
                      c->links[0].endpoint);
}

ps_err ps_comm_wait_ready(ps_comm *c)
{
    ps_deadline deadline = ps_exchange_join_deadline(&c->o);
    ps_err err = PS_OK;
    atomic_store(&c->bell->wanted, PS_COMM_WAIT_ANY);
    for (;;) {
        uint32_t sequence = ps_bell_sequence(c->bell);
        if (atomic_load(&c->n_ready) == c->n_links) break;
        if ((err = ps_comm_check(c)) != PS_OK) break;
        if ((err = ps_interrupt_ask_hook()) != PS_OK) break;
        if (ps_deadline_passed(deadline)) {
            err = comm_ready_timeout(c);
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

/* ---- memory ---- */

static ps_err comm_alloc_arrays(ps_comm *c)
{
    size_t n = c->plan->n_chunks;
    // INIT or PULL, then PUSH, of every chunk, the messages of rows, BYE and QUIT are the
    // most that is queued.
    PS_TRY(ps_command_queue_init(&c->commands, (uint32_t)(2 * n + 2) +
                                                   PS_COMM_ROWS_MESSAGES * c->n_links));
    c->n_words = (uint32_t)(n + 63) / 64;
    PS_TRY(PS_NEW(&c->chunks, n, "commands"));
    PS_TRY(PS_NEW(&c->versions, n, "versions"));
    PS_TRY(PS_NEW(&c->asked, n, "versions"));
    PS_TRY(PS_NEW(&c->links, c->n_links, "links"));
    PS_TRY(PS_NEW(&c->items, 2 * c->n_links + 2, "links"));
    PS_TRY(PS_NEW(&c->fds, 2 * c->n_links + 2, "links"));
    c->paced.pace.one_host = c->plan->size.one_host;
    PS_TRY(PS_NEW(&c->paced.figures, ps_pace_of_worker((int)c->n_links), "steps"));
    PS_TRY(PS_NEW(&c->paced.n_sent, c->n_links, "steps"));
    for (uint32_t i = 0; i < n; i++)
        atomic_init(&c->versions[i], (int64_t)ps_comm_first_version(c, i) - 1);
    return PS_OK;
}

static ps_err comm_init_codec(ps_comm *c)
{
    uint32_t n = c->plan->n_chunks;
    c->codec = c->o.settings.codec;
    ps_chunk_codec_end(&c->codec, c->o.total_steps);
    PS_TRY(PS_NEW(&c->encoded, n, "codecs"));
    if (c->codec.codec == PS_CODEC_NONE) return PS_OK;
    for (uint32_t i = 0; i < n; i++) {
        const ps_chunk *chunk = &c->plan->chunks[i];
        if (ps_chunk_codec_of(&c->codec, chunk, PS_CODED_GRADIENT, 0) == PS_CODEC_NONE)
            continue;
        uint64_t bytes = ps_chunk_codec_most_bytes(&c->codec, chunk, PS_CODED_GRADIENT);
        PS_TRY(ps_mem_zalloc_aligned(&c->encoded[i], bytes, "a payload"));
    }
    if (!ps_codec_feeds_back(c->codec.codec)) return PS_OK;
    PS_TRY(ps_mem_zalloc_large(&c->residual, c->o.grads->bytes, "residuals"));
    if (!c->o.settings.drops) return PS_OK;
    return ps_mem_zalloc_large(&c->residual_before, c->o.grads->bytes, "residuals");
}

static void comm_init_scale(ps_comm *c)
{
    const ps_loss_scale *first = &c->o.rule->scale;
    uint32_t bits;
    memcpy(&bits, &first->scale, sizeof bits);
    c->codec.overflow = first->on;
    c->scale_version = c->o.first_step;
    atomic_init(&c->scale_bits, bits);
}

ps_err ps_comm_memory_init(ps_comm *c)
{
    c->bell = &c->own_bell;
    ps_wire_frames_open(&c->ring_frames);
    PS_TRY(comm_alloc_arrays(c));
    PS_TRY(comm_init_codec(c));
    comm_init_scale(c);
    return PS_OK;
}

static void comm_memory_fini(ps_comm *c)
{
    if (c->bell) ps_wire_frames_close(&c->ring_frames);
    ps_shared_mem_fini(&c->ring_memory);
    ps_shared_mem_fini(&c->row_memory);
    ps_command_queue_fini(&c->commands);
    free(c->links);
    free(c->items);
    free(c->fds);
    free(c->chunks);
    free(c->versions);
    free(c->asked);
    for (uint32_t i = 0; c->encoded && i < c->plan->n_chunks; i++)
        free(c->encoded[i]);
    free(c->encoded);
    free(c->residual);
    free(c->residual_before);
    free(c->paced.figures);
    free(c->paced.n_sent);
}

/* ---- the connections ---- */

static ps_err comm_connect_link(ps_comm *c, uint32_t shard)
{
    ps_comm_link *l = &c->links[shard];
    uint8_t id[PS_WIRE_ID_BYTES];
    const ps_secret *secret = ps_member_secret(c->o.member);
    ps_wire_id((uint32_t)c->o.rank, secret, id);
    const bool coded = c->codec.codec != PS_CODEC_NONE;
    uint64_t largest = c->plan->max_chunk_count * ps_credit_element_bytes(coded);
    if (largest < PS_WIRE_PIECE_BYTES) largest = PS_WIRE_PIECE_BYTES;
    const ps_zsock_options options = {
        .type = ZMQ_DEALER,
        .silence_ms = ps_member_silence_ms(c->o.member),
        .max_message_bytes = (int64_t)(largest + (64u << 10)),
        .routing_id = id,
        .routing_id_bytes = sizeof id,
        .secret = secret,
        .curve = ps_member_curve(c->o.member),
        .peer = PS_ROLE_SERVER,
    };
    PS_TRY(ps_zsock_open(c->zmq_context, &options, &l->socket));
    PS_TRY(ps_zsock_monitor(c->zmq_context, l->socket, "shard", &l->monitor));
    atomic_init(&l->lost_ns, ps_clock_awake_ns());
    return ps_zsock_connect(l->socket, options.curve, l->endpoint);
}

static ps_err comm_init_link(ps_comm *c, uint32_t shard, int server, int index, bool shm)
{
    const ps_roster_entry *entry = &ps_member_roster(c->o.member)->servers[server];
    ps_comm_link *l = &c->links[shard];
    l->server = server;
    l->host = entry->host;
    l->endpoint = entry->endpoints[index];
    l->shm = shm;
    l->credit = ps_credit_of_shard(c->o.settings.credit, &c->codec, c->plan, shard);
    PS_TRY(PS_NEW(&l->waiting, c->n_words, "commands"));
    PS_TRY(comm_connect_link(c, shard));
    c->items[shard].socket = l->socket;
    return ps_zsock_monitor_fd(l->monitor, &c->items[c->n_links + 2 + shard].fd);
}

/* Offers the arenas, and what else there is, to a server whose first shard is `shard`. */
static ps_err comm_offer_arenas(ps_comm *c, int server, uint32_t shard, bool *shm)
{
    int wakes[PS_SHM_WAKES_MAX];
    const int n = ps_member_roster(c->o.member)->servers[server].n_endpoints;
    const bool with = c->ring_memory.base != NULL;
    const ps_shm_offer_more more = {.rings = with ? &c->ring_memory : NULL,
                                    .wakes = wakes,
                                    .n_wakes = n,
                                    .rows = c->row_memory.base ? &c->row_memory : NULL};
    PS_TRY(ps_shm_offer_arenas(&c->o, server, &more, shm));
    for (int i = 0; with && *shm && i < n; i++) {
        ps_event wake = ps_event_of(wakes[i]);
        if (shard + (uint32_t)i < c->n_links)
            c->links[shard + (uint32_t)i].wake = wake;
        else
            ps_event_fini(&wake);
    }
    return PS_OK;
}

static ps_err comm_connect_servers(ps_comm *c, bool rings)
{
    const ps_roster *roster = ps_member_roster(c->o.member);
    uint32_t shard = 0;
    if (rings) PS_TRY(ps_comm_rings_open(c));
    ps_comm_rows_open(c);
    for (int s = 0; s < roster->n_servers; s++) {
        bool shm;
        PS_TRY(comm_offer_arenas(c, s, shard, &shm));
        for (int i = 0; i < roster->servers[s].n_endpoints; i++) {
            if (shard == c->n_links) break;
            PS_TRY(comm_init_link(c, shard++, s, i, shm));
        }
    }
    ps_comm_rings_agree(c);
    if (shard == c->n_links) return PS_OK;
    return ps_err_set(PS_ERR_PEER, "the servers offer %u shards, the plan has %u", shard,
                      c->n_links);
}

static ps_err comm_open_links(ps_comm *c, bool rings)
{
    const ps_exchange_settings *x = &c->o.settings;
    PS_TRY(
        ps_zsock_context(x->io_threads, 3 * c->n_links + 64, x->coarse, &c->zmq_context));
    PS_TRY(comm_connect_servers(c, rings));
    uint32_t n = c->n_links;
    c->items[n].fd = ps_event_fd(&c->commands.wake);
    c->items[n + 1].fd = ps_member_abort_fd(c->o.member);
    return PS_OK;
}

static void comm_close_links(ps_comm *c)
{
    for (uint32_t i = 0; c->links && i < c->n_links; i++) {
        ps_comm_link *l = &c->links[i];
        if (l->socket) zmq_socket_monitor(l->socket, NULL, 0);
        ps_zsock_close(&l->monitor);
        ps_zsock_close(&l->socket);
        free(l->waiting);
        ps_event_fini(&l->wake);
    }
    if (c->zmq_context) zmq_ctx_term(c->zmq_context);
}

/* ---- life ---- */

ps_err ps_comm_create(const ps_exchange_options *options, bool rings, ps_comm **out)
{
    *out = NULL;
    ps_comm *c;
    PS_TRY(PS_NEW(&c, 1, "the communication thread"));
    const ps_roster *roster = ps_member_roster(options->member);
    c->o = *options;
    c->plan = options->plan;
    c->nonce = roster->nonce;
    c->epoch = ps_member_epoch(options->member);
    c->n_links = options->plan->n_shards;
    c->bypass_caches =
        ps_nontemporal_copy_pays(options->params->bytes * 2); // and as many gradients
    ps_err err;
    PS_TRY_GOTO(ps_comm_memory_init(c), err, out);
    PS_TRY_GOTO(comm_open_links(c, rings), err, out);
    PS_TRY_GOTO(ps_thread_start(&c->thread, "exchange", ps_comm_main, c), err, out);
    *out = c;
    return PS_OK;
out:
    ps_comm_destroy(&c);
    return err;
}

ps_err ps_comm_stop(ps_comm *c, bool returns)
{
    PS_TRY(ps_comm_rows_wait(c, PS_EXCHANGE_ROWS_ALL));
    PS_TRY(ps_comm_check(c));
    c->returns = returns;
    PS_TRY(ps_command_queue_put(&c->commands, (ps_command){.kind = PS_MSG_BYE}));
    ps_command_queue_wake(&c->commands);
    ps_thread_join(&c->thread);
    return ps_comm_check(c);
}

void ps_comm_destroy(ps_comm **pointer)
{
    ps_comm *c = *pointer;
    if (!c) return;
    if (c->thread.runs &&
        ps_command_queue_put(&c->commands, (ps_command){.kind = PS_COMM_QUIT}) == PS_OK)
        ps_command_queue_wake(&c->commands);
    ps_thread_join(&c->thread);
    comm_close_links(c);
    comm_memory_fini(c);
    free(c);
    *pointer = NULL;
}
