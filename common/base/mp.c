#include "mp.h"

#include <msgpack/pack.h>
#include <stdlib.h>
#include <string.h>

/* The first bytes of the MessagePack formats read here
 * (github.com/msgpack/msgpack, spec.md). */
enum {
    FIXMAP = 0x80,
    FIXARRAY = 0x90,
    FIXSTR = 0xa0,
    BOOL_FALSE = 0xc2,
    BOOL_TRUE = 0xc3,
    BIN8 = 0xc4,
    FLOAT64 = 0xcb,
    UINT8 = 0xcc,
    INT8 = 0xd0,
    STR8 = 0xd9,
    ARRAY16 = 0xdc,
    MAP16 = 0xde,
    NEGATIVE_FIXINT = 0xe0
};

void ps_mp_writer_init_fixed(ps_mp_writer *w, void *base, size_t cap)
{
    *w = (ps_mp_writer){.base = base, .cap = cap};
}

void ps_mp_writer_init(ps_mp_writer *w)
{
    *w = (ps_mp_writer){.grows = true};
}

void ps_mp_writer_fini(ps_mp_writer *w)
{
    if (w->grows) free(w->base);
    *w = (ps_mp_writer){0};
}

ps_err ps_mp_writer_end(const ps_mp_writer *w)
{
    if (w->failed) return ps_err_set(PS_ERR_NOMEM, "no memory for a message");
    return PS_OK;
}

static bool mp_reserve(ps_mp_writer *w, size_t n)
{
    if (w->failed) return false;
    if (n <= w->cap - w->used) return true;
    size_t cap = w->cap < 256 ? 256 : w->cap;
    while (w->grows && cap - w->used < n && cap <= SIZE_MAX / 2)
        cap *= 2;
    uint8_t *base = w->grows && cap - w->used >= n ? realloc(w->base, cap) : NULL;
    w->failed = !base;
    if (!base) return false;
    w->base = base;
    w->cap = cap;
    return true;
}

static int mp_append(void *writer, const char *bytes, size_t n)
{
    ps_mp_writer *w = writer;
    if (!mp_reserve(w, n)) return -1;
    if (n > 0) memcpy(w->base + w->used, bytes, n);
    w->used += n;
    return 0;
}

void ps_mp_write_array(ps_mp_writer *w, size_t n)
{
    msgpack_packer packer = {w, mp_append};
    msgpack_pack_array(&packer, n);
}

void ps_mp_write_map(ps_mp_writer *w, size_t n)
{
    msgpack_packer packer = {w, mp_append};
    msgpack_pack_map(&packer, n);
}

void ps_mp_write_bool(ps_mp_writer *w, bool value)
{
    const char byte = (char)(value ? BOOL_TRUE : BOOL_FALSE);
    mp_append(w, &byte, 1);
}

void ps_mp_write_double(ps_mp_writer *w, double value)
{
    msgpack_packer packer = {w, mp_append};
    msgpack_pack_double(&packer, value);
}

void ps_mp_write_uint(ps_mp_writer *w, uint64_t value)
{
    msgpack_packer packer = {w, mp_append};
    msgpack_pack_uint64(&packer, value);
}

void ps_mp_write_int(ps_mp_writer *w, int64_t value)
{
    msgpack_packer packer = {w, mp_append};
    msgpack_pack_int64(&packer, value);
}

void ps_mp_write_str(ps_mp_writer *w, const char *text)
{
    msgpack_packer packer = {w, mp_append};
    size_t n = text ? strlen(text) : 0;
    msgpack_pack_str(&packer, n);
    mp_append(w, text, n);
}

void ps_mp_write_bin(ps_mp_writer *w, const void *bytes, size_t n)
{
    msgpack_packer packer = {w, mp_append};
    if (n > UINT32_MAX) w->failed = true;
    msgpack_pack_bin(&packer, n);
    mp_append(w, bytes, n);
}

void ps_mp_reader_init(ps_mp_reader *r, const void *bytes, size_t n)
{
    static const uint8_t nothing[1];
    const uint8_t *at = bytes ? bytes : nothing;
    *r = (ps_mp_reader){.at = at, .end = at + (bytes ? n : 0)};
}

bool ps_mp_reader_end(const ps_mp_reader *r)
{
    return !r->failed && r->at == r->end;
}

static size_t mp_left(const ps_mp_reader *r)
{
    return r->failed ? 0 : (size_t)(r->end - r->at);
}

/* n big-endian bytes. */
static uint64_t take_big_endian(ps_mp_reader *r, unsigned n)
{
    if (mp_left(r) < n) {
        r->failed = true;
        return 0;
    }
    uint64_t value = 0;
    for (unsigned i = 0; i < n; i++)
        value = value << 8 | r->at[i];
    r->at += n;
    return value;
}

uint64_t ps_mp_read_uint(ps_mp_reader *r, uint64_t max)
{
    unsigned first = (unsigned)take_big_endian(r, 1);
    uint64_t value = first;
    if (first >= UINT8 && first < UINT8 + 4)
        value = take_big_endian(r, 1u << (first - UINT8));
    else if (first > 0x7f)
        r->failed = true;
    if (value > max) r->failed = true;
    return r->failed ? 0 : value;
}

/* A two's complement number of n bytes. */
static int64_t sign_extend(uint64_t value, unsigned n)
{
    unsigned shift = 64 - 8 * n;
    return (int64_t)(value << shift) >> shift;
}

int64_t ps_mp_read_int(ps_mp_reader *r, int64_t min, int64_t max)
{
    if (mp_left(r) == 0) {
        r->failed = true;
        return 0;
    }
    unsigned first = *r->at;
    int64_t value;
    if (first >= NEGATIVE_FIXINT) {
        value = sign_extend(take_big_endian(r, 1), 1);
    } else if (first >= INT8 && first < INT8 + 4) {
        unsigned n = 1u << (first - INT8);
        r->at++;
        value = sign_extend(take_big_endian(r, n), n);
    } else {
        value = (int64_t)ps_mp_read_uint(r, INT64_MAX);
    }
    if (value < min || value > max) r->failed = true;
    return r->failed ? 0 : value;
}

/* Items in their short form (its first byte with the number in the low bits) or in one of
 * the two long ones. Every item takes at least a byte: a larger claim is a lie. */
static size_t mp_read_count(ps_mp_reader *r, unsigned fix, unsigned wide, size_t max,
                            size_t bytes_each)
{
    unsigned first = (unsigned)take_big_endian(r, 1);
    uint64_t n = first & 0x0f;
    if (first == wide || first == wide + 1)
        n = take_big_endian(r, first == wide ? 2 : 4);
    else if ((first & 0xf0) != fix)
        r->failed = true;
    if (n > max || n > mp_left(r) / bytes_each) r->failed = true;
    return r->failed ? 0 : (size_t)n;
}

size_t ps_mp_read_array(ps_mp_reader *r, size_t max)
{
    return mp_read_count(r, FIXARRAY, ARRAY16, max, 1);
}

size_t ps_mp_read_map(ps_mp_reader *r, size_t max)
{
    return mp_read_count(r, FIXMAP, MAP16, max, 2);
}

bool ps_mp_read_bool(ps_mp_reader *r)
{
    const uint64_t first = take_big_endian(r, 1);
    if (first != BOOL_FALSE && first != BOOL_TRUE) r->failed = true;
    return !r->failed && first == BOOL_TRUE;
}

double ps_mp_read_double(ps_mp_reader *r)
{
    if (take_big_endian(r, 1) != FLOAT64) r->failed = true;
    const uint64_t bits = take_big_endian(r, sizeof(double));
    double value = 0;
    if (!r->failed) memcpy(&value, &bits, sizeof value);
    return value;
}

static const void *mp_take(ps_mp_reader *r, uint64_t n)
{
    if (n > mp_left(r)) r->failed = true;
    if (r->failed) return NULL;
    const void *p = r->at;
    r->at += n;
    return p;
}

void ps_mp_read_str(ps_mp_reader *r, char *out, size_t cap)
{
    unsigned first = (unsigned)take_big_endian(r, 1);
    uint64_t n = first & 0x1f;
    if (first >= STR8 && first < STR8 + 3)
        n = take_big_endian(r, 1u << (first - STR8));
    else if ((first & 0xe0) != FIXSTR)
        r->failed = true;
    if (n >= cap) r->failed = true;
    const void *text = mp_take(r, n);
    if (text && memchr(text, 0, n)) r->failed = true;
    if (r->failed) n = 0;
    if (n > 0) memcpy(out, text, n);
    out[n] = '\0';
}

const void *ps_mp_read_bin(ps_mp_reader *r, size_t *n, size_t max)
{
    unsigned first = (unsigned)take_big_endian(r, 1);
    uint64_t bytes = 0;
    if (first >= BIN8 && first < BIN8 + 3)
        bytes = take_big_endian(r, 1u << (first - BIN8));
    else
        r->failed = true;
    if (bytes > max) r->failed = true;
    const void *p = mp_take(r, bytes);
    *n = p ? (size_t)bytes : 0;
    return p;
}
