/* A 64-bit streaming hash, to compare configurations and plans between processes.
 *
 * FNV-1a (Fowler, Noll, Vo), finished with the mixer of MurmurHash3 so that every input
 * bit reaches every output bit. It protects against accidents, not against adversaries.
 * It is the same on every machine: numbers are hashed as little-endian bytes.
 */
#ifndef PS_HASH_H
#define PS_HASH_H

#include <stddef.h>
#include <stdint.h>

typedef struct ps_hash {
    uint64_t state;
} ps_hash;

void ps_hash_init(ps_hash *h);
void ps_hash_bytes(ps_hash *h, const void *bytes, size_t n);
void ps_hash_u64(ps_hash *h, uint64_t value);
/* The bits of value; -0 as 0. */
void ps_hash_double(ps_hash *h, double value);
/* The length, then the bytes: ("ab", "c") and ("a", "bc") differ. */
void ps_hash_string(ps_hash *h, const char *text);
/* The hash of everything so far; more may follow. */
uint64_t ps_hash_value(const ps_hash *h);

#endif
