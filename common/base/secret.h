/* What proves to others of a job that a process is its member: random bytes that the
 * coordinator draws for each, and that nobody else is told. */
#ifndef PS_SECRET_H
#define PS_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum { PS_SECRET_BYTES = 16 };

typedef struct ps_secret {
    uint8_t bytes[PS_SECRET_BYTES];
} ps_secret;

/* A fresh one. IO when the system gives no random numbers. */
ps_err ps_secret_draw(ps_secret *out);

/* Whether the bytes are this secret. Takes the same time whatever they are, so that a
 * peer cannot find it byte by byte. */
bool ps_secret_is(const ps_secret *s, const void *bytes, size_t n);

#endif
