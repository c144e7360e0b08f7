#include "zmtp.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum {
    GREETING = 64,
    SIGNATURE = 10, // its first bytes
    AT_MAJOR = 10,  // version of the protocol
    AT_MECHANISM = 12,
    MECHANISM = 20,
    MORE = 1, // flags of a frame
    LONG = 2,
    COMMAND = 4,
    READY_MAX = 1024 // a DEALER's has about 50 bytes, and a routing id
};

enum { STAGE_SIGNATURE, STAGE_GREETING, STAGE_READY, STAGE_MESSAGES };

static const uint8_t greeting[GREETING] = {0xff, 0,    0, 0, 0,   0,   0,   0,
                                           0,    0x7f, 3, 0, 'N', 'U', 'L', 'L'};
static const uint8_t ready[] =
    "\x04\x29\5READY\x0bSocket-Type\0\0\0\6ROUTER\x08Identity\0\0\0\0";

void ps_zmtp_init(ps_zmtp *z, size_t frame_max)
{
    *z = (ps_zmtp){.stage = STAGE_SIGNATURE, .frame_max = frame_max};
}

void ps_zmtp_fini(ps_zmtp *z)
{
    free(z->bytes);
    *z = (ps_zmtp){0};
}

ps_err ps_zmtp_put(ps_zmtp *z, const void *bytes, size_t n)
{
    if (z->taken > 0) memmove(z->bytes, z->bytes + z->taken, z->n_bytes);
    z->taken = 0;
    if (z->cap - z->n_bytes < n) {
        const size_t cap = z->n_bytes + n;
        uint8_t *more = realloc(z->bytes, cap);
        if (!more) return ps_err_set(PS_ERR_NOMEM, "no memory for a peer's bytes");
        z->bytes = more;
        z->cap = cap;
    }
    memcpy(z->bytes + z->n_bytes, bytes, n);
    z->n_bytes += n;
    return PS_OK;
}

static const uint8_t *zmtp_take(ps_zmtp *z, size_t n)
{
    const uint8_t *at = z->bytes + z->taken;
    z->taken += n;
    z->n_bytes -= n;
    return at;
}

static uint64_t big_endian(const uint8_t *b, size_t n)
{
    uint64_t v = 0;
    for (size_t i = 0; i < n; i++)
        v = v << 8 | b[i];
    return v;
}

/* A frame's head. False while it is not all there. */
static bool read_head(const ps_zmtp *z, uint8_t *flags, size_t *head, uint64_t *body)
{
    const uint8_t *at = z->bytes + z->taken;
    if (z->n_bytes < 2) return false;
    *flags = at[0];
    const size_t size = at[0] & LONG ? 8 : 1;
    *head = 1 + size;
    if (z->n_bytes < *head) return false;
    *body = big_endian(at + 1, size);
    return true;
}

/* The next frame, of at most `most` bytes. */
static ps_zmtp_event zmtp_frame(ps_zmtp *z, uint8_t wanted, size_t most,
                                const uint8_t **data, size_t *n)
{
    uint8_t flags;
    size_t head;
    uint64_t body;
    if (!read_head(z, &flags, &head, &body)) return PS_ZMTP_NOTHING;
    if ((flags & ~LONG) != wanted || body > most) return PS_ZMTP_WRONG;
    if (z->n_bytes - head < body) return PS_ZMTP_NOTHING;
    zmtp_take(z, head);
    *n = (size_t)body;
    *data = zmtp_take(z, *n);
    return PS_ZMTP_FRAME;
}

static bool zmtp_is(const uint8_t *name, size_t n, const char *word)
{
    return n == strlen(word) && strncasecmp((const char *)name, word, n) == 0;
}

/* Properties: the length of the name in a byte, the name, the length of the value in
 * four, the value. */
static bool read_properties(ps_zmtp *z, const uint8_t *at, size_t left)
{
    bool is_dealer = false;
    while (left > 0) {
        const size_t name = at[0];
        if (left < 1 + name + 4) return false;
        const uint64_t value = big_endian(at + 1 + name, 4);
        const uint8_t *v = at + 1 + name + 4;
        left -= 1 + name + 4;
        if (value > left) return false;
        if (zmtp_is(at + 1, name, "Socket-Type")) is_dealer = zmtp_is(v, value, "DEALER");
        if (zmtp_is(at + 1, name, "Identity")) {
            if (value > PS_ZMTP_ID_MAX) return false;
            memcpy(z->id, v, value);
            z->id_bytes = value;
        }
        left -= value;
        at = v + value;
    }
    return is_dealer;
}

static ps_zmtp_event on_ready(ps_zmtp *z, const uint8_t **data, size_t *n)
{
    enum { NAME = 6 };
    const ps_zmtp_event e = zmtp_frame(z, COMMAND, READY_MAX, data, n);
    if (e != PS_ZMTP_FRAME) return e;
    if (*n < NAME || memcmp(*data, "\5READY", NAME) != 0 ||
        !read_properties(z, *data + NAME, *n - NAME))
        return PS_ZMTP_WRONG;
    z->stage = STAGE_MESSAGES;
    *data = ready;
    *n = sizeof ready - 1;
    return PS_ZMTP_ANSWER;
}

static ps_zmtp_event on_greeting(ps_zmtp *z, const uint8_t **data, size_t *n)
{
    if (z->n_bytes < GREETING) return PS_ZMTP_NOTHING;
    const uint8_t *g = zmtp_take(z, GREETING);
    if (g[AT_MAJOR] < greeting[AT_MAJOR] ||
        memcmp(g + AT_MECHANISM, greeting + AT_MECHANISM, MECHANISM) != 0)
        return PS_ZMTP_WRONG;
    z->stage = STAGE_READY;
    return on_ready(z, data, n);
}

/* libzmq sends the signature and waits for our greeting before it sends the rest. */
static ps_zmtp_event on_signature(ps_zmtp *z, const uint8_t **data, size_t *n)
{
    const uint8_t *at = z->bytes + z->taken;
    if (z->n_bytes > 0 && at[0] != greeting[0]) return PS_ZMTP_WRONG;
    if (z->n_bytes < SIGNATURE) return PS_ZMTP_NOTHING;
    if (!(at[SIGNATURE - 1] & 1)) return PS_ZMTP_WRONG;
    z->stage = STAGE_GREETING;
    *data = greeting;
    *n = sizeof greeting;
    return PS_ZMTP_ANSWER;
}

ps_zmtp_event ps_zmtp_next(ps_zmtp *z, const uint8_t **data, size_t *n)
{
    *n = 0;
    switch (z->stage) {
    case STAGE_SIGNATURE:
        return on_signature(z, data, n);
    case STAGE_GREETING:
        return on_greeting(z, data, n);
    case STAGE_READY:
        return on_ready(z, data, n);
    default:
        return zmtp_frame(z, 0, z->frame_max, data, n);
    }
}

size_t ps_zmtp_head(uint8_t out[PS_ZMTP_HEAD_MAX], size_t n)
{
    const bool is_long = n > 255;
    out[0] = is_long ? LONG : 0;
    for (int i = 0; is_long && i < 8; i++)
        out[1 + i] = (uint8_t)((uint64_t)n >> (8 * (7 - i)));
    if (!is_long) out[1] = (uint8_t)n;
    return is_long ? 9 : 2;
}
