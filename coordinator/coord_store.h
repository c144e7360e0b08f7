/* The coordinator's key-value store. Keys and bytes are bounded, since members fill it.
 */
#ifndef PS_COORD_STORE_H
#define PS_COORD_STORE_H

#include <stdbool.h>
#include <stddef.h>

#include "err.h"

enum { PS_COORD_STORE_BUCKETS = 4096 };

typedef struct ps_coord_entry ps_coord_entry;

typedef struct ps_coord_store { // zeroed: empty
    ps_coord_entry *buckets[PS_COORD_STORE_BUCKETS];
    size_t n_keys, bytes;
} ps_coord_store;

void ps_coord_store_fini(ps_coord_store *s);

/* Copies key and value. PEER: the store is full; NOMEM; it is then as before. */
ps_err ps_coord_store_set(ps_coord_store *s, const char *key, const void *value,
                          size_t bytes);
/* Forgets the key, if it is there. */
void ps_coord_store_drop(ps_coord_store *s, const char *key);
/* Forgets all keys that begin so. */
void ps_coord_store_drop_all(ps_coord_store *s, const char *prefix);
/* Whether the key is there; value is borrowed until it is set again. */
bool ps_coord_store_get(const ps_coord_store *s, const char *key, const void **value,
                        size_t *bytes);

#endif
