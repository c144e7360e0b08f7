#include "stranger.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "curve_stand_in.h"
#include "world.h"

enum {
    HEARD = 24, // messages that it remembers
    CALLS_MOST = 12,
    MESSAGES_MOST = 4,
    BYTES_MOST = 64 // of what it makes up
};

typedef struct memory {
    world_heard heard;
    bool filled;
} memory;

static struct {
    memory memories[HEARD];
    uint64_t random; // its own: what others draw stays as it is
    void (*gone)(void *arg);
    void *arg;
    void *context;
} S;

static uint64_t stranger_draw(uint64_t below)
{
    return world_choice_of(S.random++, 0, below);
}

static void *copy_of(const void *from, size_t bytes)
{
    void *to = malloc(bytes + 1);
    if (!to) world_wrong("no memory for a stranger");
    memcpy(to, from, bytes);
    return to;
}

/* Old ones stay for long: they may be of a job that is over by now. */
static void overhear(const world_heard *heard)
{
    memory *m = &S.memories[stranger_draw(HEARD)];
    if (m->filled && stranger_draw(8) != 0) return;
    for (int i = 0; m->filled && i < m->heard.n; i++)
        free(m->heard.frames[i].bytes);
    *m = (memory){.heard = *heard, .filled = true};
    for (int i = 0; i < heard->n; i++)
        m->heard.frames[i].bytes = copy_of(heard->frames[i].bytes, heard->frames[i].n);
}

static void send_one(void *socket, const void *bytes, size_t n, bool more)
{
    (void)zmq_send(socket, bytes, n, more ? ZMQ_SNDMORE : 0);
}

static void send_made_up(void *socket)
{
    uint8_t bytes[BYTES_MOST];
    const int n = 1 + (int)stranger_draw(3);
    for (int i = 0; i < n; i++) {
        const size_t size = stranger_draw(BYTES_MOST);
        for (size_t k = 0; k < size; k++)
            bytes[k] = (uint8_t)stranger_draw(256);
        send_one(socket, bytes, size, i + 1 < n);
    }
}

/* Again; or a frame of it is changed or cut short, and what follows may lack. Of what is
 * said at a door a changed message may be a good one of somebody else, against which only
 * keys help. */
static void send_heard(void *socket, const world_heard *h, bool at_door)
{
    const uint64_t how = stranger_draw(4);
    const int changed = (int)stranger_draw((uint64_t)h->n);
    const int n = how == 3 ? changed + 1 : h->n;
    for (int i = 0; i < n; i++) {
        uint8_t *bytes = copy_of(h->frames[i].bytes, h->frames[i].n);
        size_t size = h->frames[i].n;
        if (i == changed && size > 0 && how == 1 && !at_door)
            bytes[stranger_draw(size)] ^= (uint8_t)(1u << stranger_draw(8));
        if (i == changed && size > 0 && how == 2) size = stranger_draw(size);
        send_one(socket, bytes, size, i + 1 < n);
        free(bytes);
    }
}

static const world_heard *remembered(void)
{
    const memory *m = &S.memories[stranger_draw(HEARD)];
    return m->filled ? &m->heard : NULL;
}

/* Nobody who lives is known by that name, and the secret is of a job that is over. */
static void take_name(void *socket, const char *where, const world_heard *h)
{
    uint8_t id[WORLD_ID];
    const size_t n = h && stranger_draw(2) ? h->id_bytes : 1 + stranger_draw(WORLD_ID);
    for (size_t i = 0; i < n; i++)
        id[i] = (uint8_t)(1 + stranger_draw(255));
    if (h && world_is_closed(h->sender) && stranger_draw(2))
        zmq_setsockopt(socket, ZMQ_ROUTING_ID, h->id, h->id_bytes);
    else
        zmq_setsockopt(socket, ZMQ_ROUTING_ID, id, n);
    if (h && h->secret_bytes > 0 && world_has_renewed(where, h))
        zmq_setsockopt(socket, ZMQ_PLAIN_PASSWORD, h->secret, h->secret_bytes);
    else if (stranger_draw(2))
        zmq_setsockopt(socket, ZMQ_PLAIN_PASSWORD, id, n);
}

/* No key that lets anybody in: none, one that nobody knows, shown to the right listener
 * or meant for another one; a member's of before, or, where only members may come, a
 * role's. Returns whether it is a role's. */
static bool take_key(void *socket, const char *where, const world_heard *h)
{
    uint8_t of_server[WORLD_KEY], secret[WORLD_KEY], public[WORLD_KEY];
    bool is_door;
    if (!world_key_of(where, of_server, &is_door)) return false;
    for (int i = 0; i < WORLD_KEY; i++)
        secret[i] = (uint8_t)stranger_draw(256);
    const uint64_t how = stranger_draw(5);
    if (how == 0) return false;
    if (how == 1) of_server[stranger_draw(WORLD_KEY)] ^= 1;
    if (how == 2 && h && h->secret_bytes == sizeof secret && world_has_renewed(where, h))
        memcpy(secret, h->secret, sizeof secret);
    if (how == 3 && !is_door) curve_stand_in_secret(stranger_draw(2), secret);
    curve_stand_in_public(secret, public);
    zmq_setsockopt(socket, ZMQ_CURVE_SERVERKEY, of_server, sizeof of_server);
    zmq_setsockopt(socket, ZMQ_CURVE_PUBLICKEY, public, sizeof public);
    zmq_setsockopt(socket, ZMQ_CURVE_SECRETKEY, secret, sizeof secret);
    return how == 3 && !is_door;
}

/* A step takes a millisecond, a death a second. */
static uint64_t pause_us(void)
{
    static const uint64_t most[] = {500, 3000, 20000, 200000, 2000000};
    return most[stranger_draw(sizeof most / sizeof *most)];
}

static void call_once(void)
{
    bool for_members;
    const world_heard *h = remembered(), *whose = remembered();
    const char *where = world_listener(stranger_draw(1 << 20), &for_members);
    if (!where) return;
    world_say("calls %s", where);
    void *socket = zmq_socket(S.context, ZMQ_DEALER);
    take_name(socket, where, whose);
    const bool has_role = take_key(socket, where, whose);
    zmq_connect(socket, where);
    for (uint64_t n = 1 + stranger_draw(MESSAGES_MOST); n > 0; n--) {
        if (h && stranger_draw(4) != 0)
            send_heard(socket, h, !for_members);
        else
            send_made_up(socket);
        h = remembered();
    }
    zmq_pollitem_t item = {.socket = socket, .events = ZMQ_POLLIN};
    zmq_poll(&item, 1, 1 + (long)stranger_draw(pause_us() / 1000 + 1));
    if (world_is_let_in(socket, has_role))
        world_wrong("a stranger was let in at %s", where);
    if (for_members && item.revents & ZMQ_POLLIN)
        world_wrong("a stranger was answered at %s", where);
    zmq_close(socket);
}

static int stranger_program(void *arg)
{
    (void)arg;
    S.context = zmq_ctx_new();
    for (uint64_t n = 1 + stranger_draw(CALLS_MOST); n > 0; n--) {
        usleep((useconds_t)stranger_draw(pause_us()));
        call_once();
    }
    S.gone(S.arg);
    return 0;
}

void stranger_come(uint64_t seed, void (*gone)(void *arg), void *arg)
{
    S.random = seed << 20;
    S.gone = gone;
    S.arg = arg;
    world_overheard = overhear;
    world_start("stranger", NULL, stranger_program, NULL);
}
