/* A secret proves to the members of a job that a process is one of them: random bytes
 * that the coordinator draws for each member. Nobody outside the job learns it. */
#ifndef PS_SECRET_H
#define PS_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum { PS_SECRET_BYTES = 32 }; // as a key of CURVE has (curve.h)

typedef struct ps_secret {
    uint8_t bytes[PS_SECRET_BYTES];
} ps_secret;

/* Draws a fresh secret. IO when the system gives no random numbers. */
ps_err ps_secret_draw(ps_secret *out);

/* True when the bytes are this secret. Takes the same time whatever the bytes are, so
 * that a peer cannot find it byte by byte. */
bool ps_secret_is(const ps_secret *s, const void *bytes, size_t n);

#endif
