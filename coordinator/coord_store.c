#include "coord_store.h"

#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "mem.h"

enum { MAX_KEYS = 1 << 20 };
static const size_t BYTES_MAX = (size_t)1 << 30;

struct ps_coord_entry {
    struct ps_coord_entry *next;
    char *key;
    void *value;
    size_t bytes;
};

static void store_free(ps_coord_entry *e)
{
    free(e->key);
    free(e->value);
    free(e);
}

void ps_coord_store_fini(ps_coord_store *s)
{
    for (int i = 0; i < PS_COORD_STORE_BUCKETS; i++)
        for (ps_coord_entry *e = s->buckets[i], *next; e; e = next) {
            next = e->next;
            store_free(e);
        }
    *s = (ps_coord_store){.n_keys = 0};
}

static size_t bucket_of(const char *key)
{
    ps_hash h;
    ps_hash_init(&h);
    ps_hash_string(&h, key);
    return ps_hash_value(&h) % PS_COORD_STORE_BUCKETS;
}

static ps_coord_entry *store_find(const ps_coord_store *s, const char *key)
{
    for (ps_coord_entry *e = s->buckets[bucket_of(key)]; e; e = e->next)
        if (strcmp(e->key, key) == 0) return e;
    return NULL;
}

static ps_err store_add(ps_coord_store *s, const char *key, ps_coord_entry **out)
{
    if (s->n_keys >= MAX_KEYS)
        return ps_err_set(PS_ERR_PEER, "%s: the coordinator holds too many keys", key);
    ps_coord_entry *e;
    PS_TRY(PS_NEW(&e, 1, "a key"));
    ps_err err = ps_mem_strdup(&e->key, key);
    if (err != PS_OK) {
        free(e);
        return err;
    }
    ps_coord_entry **bucket = &s->buckets[bucket_of(key)];
    e->next = *bucket;
    *bucket = e;
    s->n_keys++;
    *out = e;
    return PS_OK;
}

ps_err ps_coord_store_set(ps_coord_store *s, const char *key, const void *value,
                          size_t bytes)
{
    ps_coord_entry *e = store_find(s, key);
    size_t others = s->bytes - (e ? e->bytes : 0);
    if (bytes > BYTES_MAX - others)
        return ps_err_set(PS_ERR_PEER, "%s: the coordinator's store is full (%zu bytes)",
                          key, BYTES_MAX);
    void *copy;
    PS_TRY(ps_mem_zalloc(&copy, bytes, 1, "a value"));
    if (!e) {
        ps_err err = store_add(s, key, &e);
        if (err != PS_OK) {
            free(copy);
            return err;
        }
    }
    if (bytes > 0) memcpy(copy, value, bytes);
    free(e->value);
    e->value = copy;
    e->bytes = bytes;
    s->bytes = others + bytes;
    return PS_OK;
}

/* Takes the entry out of its bucket; *at then points to the next one. */
static void store_take_out(ps_coord_store *s, ps_coord_entry **at)
{
    ps_coord_entry *e = *at;
    *at = e->next;
    s->bytes -= e->bytes;
    s->n_keys--;
    store_free(e);
}

void ps_coord_store_drop(ps_coord_store *s, const char *key)
{
    ps_coord_entry **at = &s->buckets[bucket_of(key)];
    while (*at && strcmp((*at)->key, key) != 0)
        at = &(*at)->next;
    if (*at) store_take_out(s, at);
}

void ps_coord_store_drop_all(ps_coord_store *s, const char *prefix)
{
    for (int i = 0; i < PS_COORD_STORE_BUCKETS; i++)
        for (ps_coord_entry **at = &s->buckets[i]; *at;) {
            if (strncmp((*at)->key, prefix, strlen(prefix)) == 0)
                store_take_out(s, at);
            else
                at = &(*at)->next;
        }
}

bool ps_coord_store_get(const ps_coord_store *s, const char *key, const void **value,
                        size_t *bytes)
{
    const ps_coord_entry *e = store_find(s, key);
    *value = e ? e->value : NULL;
    *bytes = e ? e->bytes : 0;
    return e != NULL;
}
