/* In place of what the coordinator's code asks of the system: memory, time, random
 * numbers, sockets, its thread. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "coord_end.h"
#include "joining_world.h"

enum { FRAMES = 8192, FRAME = 1024 };

bool world_in_coordinator;
uint64_t world_waited_ns;
world_news world_coming;

int __wrap_clock_gettime(clockid_t id, struct timespec *out)
{
    const uint64_t ns = WORLD_NOW + world_waited_ns;
    *out = (struct timespec){.tv_sec = (time_t)(ns / 1000000000u),
                             .tv_nsec = (long)(ns % 1000000000u)};
    return 0;
}

/* ---- memory ---- */

void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
void *__real_realloc(void *, size_t);
void __real_free(void *);

static void *memory_take(size_t bytes)
{
    const uint32_t rounded = (uint32_t)(bytes + 63) / 64 * 64 + (bytes == 0 ? 64 : 0);
    uint32_t i = 0;
    while (i < W.n_blocks && (W.blocks[i].used || W.blocks[i].bytes != rounded))
        i++;
    if (i == W.n_blocks) {
        if (i == BLOCKS || W.used + rounded > MEMORY) {
            world_wrong("the coordinator holds more than %u bytes", W.used);
            return NULL;
        }
        W.blocks[W.n_blocks++] = (block){.at = W.used, .bytes = rounded};
        W.used += rounded;
    }
    W.blocks[i].used = true;
    return W.memory + W.blocks[i].at;
}

static block *memory_find(const void *p)
{
    for (uint32_t i = 0; i < W.n_blocks; i++)
        if (W.memory + W.blocks[i].at == p) return &W.blocks[i];
    abort();
}

static bool is_ours(const void *p)
{
    return (const uint8_t *)p >= W.memory && (const uint8_t *)p < W.memory + MEMORY;
}

/* What is free is zero, so that states that differ in it alone are one. */
static void memory_give_back(void *p)
{
    block *b = memory_find(p);
    memset(p, 0, b->bytes);
    b->used = false;
    while (W.n_blocks > 0 && !W.blocks[W.n_blocks - 1].used) {
        W.used -= W.blocks[--W.n_blocks].bytes;
        W.blocks[W.n_blocks] = (block){0};
    }
}

void *__wrap_malloc(size_t bytes)
{
    return world_in_coordinator ? memory_take(bytes) : __real_malloc(bytes);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return world_in_coordinator ? memory_take(n * bytes) : __real_calloc(n, bytes);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    if (!world_in_coordinator) return __real_realloc(p, bytes);
    void *new = memory_take(bytes);
    if (new &&p) memcpy(new, p, memory_find(p)->bytes);
    if (new &&p) memory_give_back(p);
    return new;
}

void __wrap_free(void *p)
{
    if (!is_ours(p))
        __real_free(p);
    else if (world_in_coordinator)
        memory_give_back(p);
}

char *__wrap_strdup(const char *text)
{
    char *copy = __wrap_malloc(strlen(text) + 1);
    return copy ? strcpy(copy, text) : NULL;
}

/* ---- what would be random ---- */

ssize_t __wrap_getrandom(void *out, size_t bytes, unsigned flags)
{
    memset(out, 0, bytes);
    memcpy(out, &W.generation, sizeof W.generation); // the nonce
    return (ssize_t)bytes;
}

ps_err __wrap_ps_secret_draw(ps_secret *out)
{
    memset(out, 0, sizeof *out);
    out->bytes[0] = (uint8_t)(world_coming.from ? world_coming.from->member : MEMBERS);
    if (S.mistake == MISTAKE_SECRETS_STAY) return PS_OK;
    if (world_coming.from) out->bytes[1] = ++W.draws[world_coming.from->member];
    out->bytes[2] = (uint8_t)W.generation;
    out->bytes[3] = (uint8_t)(world_coming.from ? 0 : 1 + (out == &W.coordinator->twins));
    return PS_OK;
}

/* ---- sockets ---- */

#define DOES(type, name, args, ...)                                                      \
    type __wrap_##name args                                                              \
    {                                                                                    \
        __VA_ARGS__;                                                                     \
    }
DOES(ps_err, ps_zsock_context, (int64_t threads, int64_t n, bool patient, void **out),
     return PS_OK)
DOES(ps_err, ps_zsock_open, (void *context, const ps_zsock_options *o, void **out),
     return PS_OK)
DOES(bool, ps_zsock_count, (int fd, ps_zsock_counts *out), return false)
DOES(int, zmq_setsockopt, (void *socket, int option, const void *value, size_t bytes),
     return 0)
DOES(void, ps_gate_open, (ps_gate * gate), )
DOES(void, ps_gate_destroy, (ps_gate * *gate), )
DOES(ps_err, ps_gate_watch, (ps_gate * gate, void *socket, ps_gate_kind kind),
     return PS_OK)
DOES(void, ps_gate_unwatch, (void *router), )
DOES(void, ps_gate_items, (const ps_gate *gate, zmq_pollitem_t *items), )
DOES(int, ps_gate_poll_ms, (const ps_gate *gate), return -1)
DOES(void, ps_door_close, (ps_door * *door, int linger_ms), )
DOES(void *, ps_door_socket, (const ps_door *d), return NULL)
DOES(ps_err, ps_event_init, (ps_event * event), return PS_OK) // none: nobody waits

ps_err __wrap_ps_gate_create(const ps_gate_options *options, ps_gate **out)
{
    W.gate = *options;
    W.coordinator = options->owner;
    *out = NULL;
    return PS_OK;
}

void __wrap_ps_gate_turn(ps_gate *gate)
{
    if (world_coming.closed) W.gate.closed(W.gate.owner, world_coming.closed);
}

ps_err __wrap_ps_door_open(const ps_door_options *o, const char *where,
                           char endpoint[PS_ENDPOINT_MAX], ps_door **out)
{
    snprintf(endpoint, PS_ENDPOINT_MAX, "%s", where);
    *out = (ps_door *)W.processes; // no door; not NULL
    return PS_OK;
}

ps_err __wrap_ps_zsock_bind(void *socket, const ps_curve *curve, const char *where,
                            char endpoint[PS_ENDPOINT_MAX])
{
    snprintf(endpoint, PS_ENDPOINT_MAX, "tcp://127.0.0.1:2");
    return PS_OK;
}

bool __wrap_ps_zsock_is_connected(int fd)
{
    return W.links[fd - FD].open;
}

int __wrap_zmq_msg_get(const zmq_msg_t *message, int property)
{
    return FD + (int)(world_coming.from - W.links);
}

/* In the order of their numbers; what is equal has one. */
static struct {
    uint16_t bytes;
    uint8_t frame[FRAME];
} frames[FRAMES];
static uint16_t n_frames;

void world_forget_frames(void)
{
    n_frames = 0;
}

static uint16_t frame_number(const void *bytes, size_t n)
{
    uint16_t i = 0;
    while (i < n_frames &&
           (frames[i].bytes != n || memcmp(frames[i].frame, bytes, n) != 0))
        i++;
    if (i < n_frames) return i;
    if (i == FRAMES || n > FRAME) abort(); // too small
    frames[i].bytes = (uint16_t)n;
    memcpy(frames[i].frame, bytes, n);
    return n_frames++;
}

/* Texts are for people. */
uint16_t world_frame(const ps_control *c)
{
    static ps_control plain;
    uint8_t bytes[FRAME];
    ps_mp_writer w;
    plain = *c;
    if (c->kind != PS_CONTROL_JOIN) plain.text[0] = '\0';
    ps_mp_writer_init_fixed(&w, bytes, sizeof bytes);
    ps_control_write(&w, &plain);
    if (ps_mp_writer_end(&w) != PS_OK) abort();
    return frame_number(bytes, w.used);
}

void world_read_frame(uint16_t frame, ps_control *out)
{
    if (ps_control_read(frames[frame].frame, frames[frame].bytes, out, NULL) != PS_OK)
        world_wrong("a malformed message: %s", ps_err_message());
}

const char *world_frame_name(uint16_t frame)
{
    static ps_control c;
    world_read_frame(frame, &c);
    return ps_control_kind_name((int)c.kind);
}

static void queue_add(uint16_t *queue, uint8_t *n, uint16_t frame)
{
    if (*n == QUEUE) abort(); // too small
    queue[(*n)++] = frame;
}

static uint16_t queue_take(uint16_t *queue, uint8_t *n)
{
    const uint16_t first = queue[0];
    *n = (uint8_t)(*n - 1);
    memmove(queue, queue + 1, *n * sizeof *queue);
    queue[*n] = 0;
    return first;
}

void world_clear(uint16_t *queue, uint8_t *n)
{
    memset(queue, 0, QUEUE * sizeof *queue);
    *n = 0;
}

void world_send(connection *l, uint16_t frame)
{
    if (!l->gone) queue_add(l->up, &l->n_up, frame);
}

void world_lose_rest(uint32_t link)
{
    world_clear(W.links[link].up, &W.links[link].n_up);
}

/* What the coordinator sends. WAIT and HEARTBEAT change texts and deadlines alone. */
static void take_sent(const void *id, size_t id_bytes, bool at_door, zmq_msg_t *part)
{
    ps_control c;
    world_in_coordinator = false;
    if (ps_control_read(zmq_msg_data(part), zmq_msg_size(part), &c, NULL) != PS_OK)
        world_wrong("the coordinator sends a malformed message");
    for (uint32_t i = 0; i < LINKS; i++) {
        connection *l = &W.links[i];
        if (!l->used || l->at_door != at_door || !l->open || l->gone || l->replaced ||
            (!at_door && !l->shown) || memcmp(l->id.bytes, id, id_bytes) != 0 ||
            c.kind == PS_CONTROL_WAIT || c.kind == PS_CONTROL_HEARTBEAT)
            continue;
        // what came before it says nothing more
        if (c.kind == PS_CONTROL_NEWCOMERS && l->n_down > 0 &&
            strcmp(world_frame_name(l->down[l->n_down - 1]),
                   ps_control_kind_name(PS_CONTROL_NEWCOMERS)) == 0)
            l->down[--l->n_down] = 0;
        queue_add(l->down, &l->n_down, world_frame(&c));
        break;
    }
    world_in_coordinator = true;
}

ps_err __wrap_ps_zsock_send(void *socket, ps_deadline deadline, zmq_msg_t *parts, int n)
{
    take_sent(zmq_msg_data(&parts[0]), zmq_msg_size(&parts[0]), false, &parts[1]);
    zmq_msg_close(&parts[0]);
    zmq_msg_close(&parts[1]);
    return PS_OK;
}

ps_err __wrap_ps_door_send(ps_door *d, const void *id, size_t id_bytes, zmq_msg_t *frame)
{
    take_sent(id, id_bytes, true, frame);
    zmq_msg_close(frame);
    return PS_OK;
}

void __wrap_ps_door_turn(ps_door *d, int n, ps_door_take *take, void *owner)
{
    connection *l = world_coming.from;
    if (!l || !l->at_door || l->n_up == 0) return;
    const uint16_t frame = queue_take(l->up, &l->n_up);
    const ps_door_message m = {.id = l->id.bytes,
                               .id_bytes = sizeof l->id.bytes,
                               .body = frames[frame].frame,
                               .body_bytes = frames[frame].bytes};
    world_coming.closed = 0;
    take(owner, &m);
    world_coming.from = NULL;
}

ps_err __wrap_ps_zsock_recv(void *socket, ps_deadline deadline, zmq_msg_t *parts, int cap,
                            int *n)
{
    connection *l = world_coming.from;
    *n = 0;
    if (!l || l->at_door || l->n_up == 0) return PS_OK;
    const uint16_t frame = queue_take(l->up, &l->n_up);
    ps_zsock_msg_copy(&parts[0], l->id.bytes, sizeof l->id.bytes);
    ps_zsock_msg_copy(&parts[1], frames[frame].frame, frames[frame].bytes);
    *n = 2;
    return PS_OK;
}

/* Its thread runs only to end: it is stopped, and waits for last words. */
int __wrap_zmq_poll(zmq_pollitem_t *items, int n, long ms)
{
    if (n == 1) { // those of its own process are here soon
        const process *host = &W.processes[0];
        world_coming.from = host->link == NOBODY ? NULL : &W.links[host->link];
        if (world_coming.from && !world_coming.from->shown) world_coming.from = NULL;
        if (!world_coming.from || world_coming.from->n_up == 0)
            world_waited_ns += (uint64_t)ms * 1000000u;
        return 1;
    }
    items[2].revents = ZMQ_POLLIN;
    return 1;
}

ps_err __wrap_ps_thread_start(ps_thread *thread, const char *name, void *(*run)(void *),
                              void *arg)
{
    W.thread = run;
    thread->runs = true;
    return PS_OK;
}

void __wrap_ps_thread_join(ps_thread *thread)
{
    W.thread(W.coordinator);
    thread->runs = false;
}

/* ---- mistakes ---- */

void __real_ps_coord_tell_abort(ps_coordinator *, const ps_coord_sender *);
void __real_ps_coord_tell_state(ps_coordinator *, ps_coord_peer *);
void __real_ps_coord_set_gone(ps_coordinator *, ps_coord_peer *);
void __real_ps_roster_entry_fini(ps_roster_entry *);

void __wrap_ps_coord_tell_abort(ps_coordinator *c, const ps_coord_sender *to)
{
    if (S.mistake != MISTAKE_ABORT_IS_TOLD_ONCE) __real_ps_coord_tell_abort(c, to);
}

void __wrap_ps_coord_tell_state(ps_coordinator *c, ps_coord_peer *p)
{
    if (S.mistake != MISTAKE_END_IS_TOLD_ONCE) __real_ps_coord_tell_state(c, p);
}

void __wrap_ps_coord_set_gone(ps_coordinator *c, ps_coord_peer *p)
{
    if (S.mistake != MISTAKE_GOODBYE_IS_FORGOTTEN) __real_ps_coord_set_gone(c, p);
}

void __wrap_ps_roster_entry_fini(ps_roster_entry *e)
{
    if (S.mistake != MISTAKE_ENTRIES_LEAK) __real_ps_roster_entry_fini(e);
}
