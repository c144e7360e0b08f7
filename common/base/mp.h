/* MessagePack within bounds: msgpack-c's packers into a buffer, and a reader that never
 * allocates and never believes a length before the bytes are there.
 *
 * Both keep the first failure, so that a message is written or read item by item and
 * checked once at its end. (msgpack-c's unpacker builds objects in zones whose sizes a
 * peer chooses; these messages have fixed shapes, so they are read straight.)
 */
#ifndef PS_MP_H
#define PS_MP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

typedef struct ps_mp_writer {
    uint8_t *base; // owned when it grows
    size_t used, cap;
    bool grows, failed;
} ps_mp_writer;

/* Writes into cap bytes at base; failed when they do not suffice. */
void ps_mp_writer_init_fixed(ps_mp_writer *w, void *base, size_t cap);
/* Writes into memory that grows. */
void ps_mp_writer_init(ps_mp_writer *w);
void ps_mp_writer_fini(ps_mp_writer *w);
/* NOMEM when anything did not fit. */
ps_err ps_mp_writer_end(const ps_mp_writer *w);

void ps_mp_write_array(ps_mp_writer *w, size_t n);
void ps_mp_write_map(ps_mp_writer *w, size_t n); // pairs
void ps_mp_write_bool(ps_mp_writer *w, bool value);
void ps_mp_write_double(ps_mp_writer *w, double value);
void ps_mp_write_uint(ps_mp_writer *w, uint64_t value);
void ps_mp_write_int(ps_mp_writer *w, int64_t value);
void ps_mp_write_str(ps_mp_writer *w, const char *text); // NULL: ""
void ps_mp_write_bin(ps_mp_writer *w, const void *bytes, size_t n);

typedef struct ps_mp_reader {
    const uint8_t *at, *end; // borrowed
    bool failed;
} ps_mp_reader;

void ps_mp_reader_init(ps_mp_reader *r, const void *bytes, size_t n);
/* True when nothing has failed and nothing is left to read. */
bool ps_mp_reader_end(const ps_mp_reader *r);

/* Each returns 0, or NULL, once anything failed. A value beyond max is a failure. */
uint64_t ps_mp_read_uint(ps_mp_reader *r, uint64_t max);
int64_t ps_mp_read_int(ps_mp_reader *r, int64_t min, int64_t max);
/* Items of an array: at most max, and no more than there are bytes left. */
size_t ps_mp_read_array(ps_mp_reader *r, size_t max);
size_t ps_mp_read_map(ps_mp_reader *r, size_t max); // likewise pairs
bool ps_mp_read_bool(ps_mp_reader *r);
double ps_mp_read_double(ps_mp_reader *r);
/* Copies a string of fewer than cap bytes, without NUL inside, and ends it with NUL. */
void ps_mp_read_str(ps_mp_reader *r, char *out, size_t cap);
/* Borrowed from the message; *n bytes, at most max. */
const void *ps_mp_read_bin(ps_mp_reader *r, size_t *n, size_t max);

#endif
