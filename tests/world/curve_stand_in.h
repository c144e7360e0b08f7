/* A stand-in for libzmq's CURVE, without any cryptography: a public key is a hash of the
 * secret one. It keeps out, as CURVE does, whoever does not have the keys (world_zmq.c);
 * what it says nothing about is whether CURVE itself is safe.
 */
#ifndef CURVE_STAND_IN_H
#define CURVE_STAND_IN_H

#include <stdbool.h>
#include <stdint.h>

enum { STAND_IN_KEY_BYTES = 32 };

void curve_stand_in_public(const uint8_t secret[STAND_IN_KEY_BYTES],
                           uint8_t out[STAND_IN_KEY_BYTES]);

/* Whether a job of this kind has keys. */
bool curve_stand_in_job_has_keys(void);
/* Its setting of net.curve or, without keys, of net.insecure. */
const char *curve_stand_in_setting(bool is_worker);
/* A role's secret key in such a job. */
void curve_stand_in_secret(bool is_worker, uint8_t out[STAND_IN_KEY_BYTES]);

#endif
