/* Where a row lives. A table has PS_ROW_PARTITIONS partitions; a shard owns a range of
 * them. Both are functions of (table, id) alone, so that any process can compute them,
 * and a checkpoint can be read by another number of shards. */
#ifndef PS_ROW_PARTITION_H
#define PS_ROW_PARTITION_H

#include <stdint.h>

enum { PS_ROW_PARTITION_BITS = 10, PS_ROW_PARTITIONS = 1 << PS_ROW_PARTITION_BITS };

/* A bijection that lets every bit reach every bit: the finalizer of splitmix64
 * (Stafford's Mix13). */
static inline uint64_t ps_row_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* What ps_row_hash wants of a table: computed once. */
static inline uint64_t ps_row_hash_salt(uint32_t table)
{
    return ps_row_mix(table + 0x9e3779b97f4a7c15u);
}

/* The place of an id: its top bits are the partition. */
static inline uint64_t ps_row_hash(uint64_t salt, uint64_t id)
{
    return ps_row_mix(id ^ salt);
}

static inline uint32_t ps_row_partition(uint64_t place)
{
    return (uint32_t)(place >> (64 - PS_ROW_PARTITION_BITS));
}

/* The first partition of a shard; that of shard n_shards is PS_ROW_PARTITIONS. n_shards:
 * at most PS_ROW_PARTITIONS, others own nothing. */
static inline uint32_t ps_row_first_partition(uint32_t shard, uint32_t n_shards)
{
    return (uint32_t)(((uint64_t)shard * PS_ROW_PARTITIONS + n_shards - 1) / n_shards);
}

/* The shard that owns a partition. */
static inline uint32_t ps_row_shard(uint32_t partition, uint32_t n_shards)
{
    return (uint32_t)((uint64_t)partition * n_shards / PS_ROW_PARTITIONS);
}

/* The key of the hash tables that hold ids. Shards draw it (or derive it from a secret of
 * the job), since ids come from workers: who does not know it cannot find ids that
 * collide. No result depends on it. */
typedef struct ps_row_key {
    uint64_t a, b;
} ps_row_key;

/* For hash tables of one's own ids: in a worker. */
#define PS_ROW_KEY_PLAIN ((ps_row_key){0x243f6a8885a308d3u, 0x13198a2e03707345u})

static inline uint64_t ps_row_keyed(ps_row_key key, uint64_t x)
{
    const unsigned __int128 product =
        (unsigned __int128)(x ^ key.a) * (key.b | 0x8000000000000001u);
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

#endif
