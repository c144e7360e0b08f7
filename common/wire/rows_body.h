/* The bodies of the messages of rows (wire.h). All numbers are little-endian; parts begin
 * at multiples of 8 bytes. T: the job's tables; a shard gets ids of its own partitions
 * alone (row_partition.h).
 *
 *   PULL_ROWS  how u32 (PS_ROWS_...), 0 u32; ids of each table (T u32); the ids, table
 *              after table; or, shared: of each table where they are, where the rows go
 *              and where gradients will be (T times 3 u64)
 *     ROWS     the rows, in that order, each table's as row_codec.h says; shared:
 *              nothing; else, ahead: a bit for each row (from the lowest bit of each
 *              byte), then the rows whose bits are 1, then the others, each in that order
 *              and one row after the other: what the step before does not change travels
 *              while it is made
 *   PUSH_ROWS  rate of each table (T double); pulls u32, 0 u32; has (pulls x T bytes);
 *              gradients (row_codec.h): table after table, and for each the step's
 *              PULL_ROWS that train, in their order. has: 0 where one has no gradient for
 *              a table. Gradients of shared pulls are not in it. All shards get the same
 *              rates and `has`; worker 0's rates count.
 *   LOAD_ROWS  table u32, width u32; steps of the table u64, n u64, clock u64, begins
 *              u64; ids (n), ages (n: version u32, count u32: ps_row_view), values (n,
 *              width) float32: rows, or rows with their optimizer's state; width 0:
 *              ids that are not admitted yet
 *              clock: of the table, that versions are of, at most 2^32 - 1 as these; 0:
 *              they do not count, and are as if the step before had made the rows
 *              begins: 1: all that the table has goes first
 *   SAVE_ROWS  table u32, partition u32, place in the partition u32, 0 u32
 *     ROWS     next u64, n u64, m u64, steps u64, clock u64; ids (n + m), ages (n + m),
 *              values with state of the n that are rows; m are not admitted yet. They
 *              are those of some partitions from that place on, or a part of one;
 *              next: partition and, times 2^32, place of the first that is not among
 *              them, 0: there is none
 *   KEEP_ROWS  point u64, what is written u32 (ps_row_writes), 0 u32; the path of files
 *              without its end, text (row_store.h)
 *     ROWS     since u64, 0: all rows; of each table: steps u64, bytes u64, CRC-32 u64 of
 *              its file; text: why there are no files, or nothing
 *   RETURN_ROWS  point u64; bytes of the folder u64; the folder; a manifest
 *              (row_manifest.h). With PS_ROWS_ALL_RETURN as its step every worker sends
 *              it, and worker 0's counts, once it is the next message of each: what they
 *              have sent before is answered, and changes nothing
 *     ROWS     1 u64: all is as it was at the point; 0: the shard has it not, and the
 *              manifest has no files
 */
/* Of readers, whose messages are whole:
 *
 *   TABLES     a MessagePack array: shards of the job; a map (row_spec.h) of each table,
 *              as bytes
 *   READ_ROWS  ids of each table (T u32); the ids, table after table
 *     READ     their rows, float32, in that order, whatever the table's codec
 */
/* Of a shard and its twin, which are whole, too:
 *
 *   TWIN_POINT  base u64: the point before, 0: none that is known; point u64, step u64,
 *              loads u64 (row_store.h); whole u64: 1: the rows have all come; the clock
 *              of each table (T ps_row_clock)
 *     TWIN     wants u64 (ps_rows_twin_wants)
 *   TWIN_ROWS  a piece (row_walk.h)
 *     TWIN     0 u64
 *   TWIN_ASK   point u64; first u64: 1: begins anew
 *     TWIN     has u64 (ps_rows_twin_has), step u64, loads u64; the clock of each table;
 *              a piece, or nothing
 */
#ifndef PS_ROWS_BODY_H
#define PS_ROWS_BODY_H

#include <stdbool.h>
#include <stdint.h>

#include "row_spec.h"

#define PS_ROWS_ALL_RETURN UINT64_MAX

/* Of an arena that a worker shares with the shards of its host, instead of ids, rows and
 * gradients in bodies. Only what is used takes memory. */
#define PS_ROWS_ARENA_BYTES (UINT64_C(1) << 30)

static inline uint64_t ps_rows_aligned(uint64_t bytes)
{
    return (bytes + 7) & ~(uint64_t)7;
}

/* Of a table in the arena: bytes from its start. */
typedef struct ps_rows_offsets {
    uint64_t ids, rows, grads;
} ps_rows_offsets;

/* How rows are pulled. */
enum {
    PS_ROWS_TRAINS = 1, // the step's PUSH_ROWS may have gradients of them
    PS_ROWS_SHARED = 2, // through the arena
    PS_ROWS_AHEAD = 4   // in the step before
};

typedef struct ps_rows_pull { // parts of the body
    bool trains, ahead;
    const uint32_t *counts;        // (T)
    const uint64_t *ids;           // (n); NULL: they are at places
    const ps_rows_offsets *places; // (T)
    uint64_t n;                    // of all tables
} ps_rows_pull;

/* The ids of a table, where ids is not NULL. */
static inline const uint64_t *ps_rows_pull_ids(const ps_rows_pull *pull, uint32_t table)
{
    const uint64_t *ids = pull->ids;
    for (uint32_t before = 0; before < table; before++)
        ids += pull->counts[before];
    return ids;
}

typedef struct ps_rows_push {
    const double *rates; // (T)
    uint32_t n_pulls;
    const uint8_t *has; // (n_pulls, T)
    const float *grads; // (n) or what takes their place (row_codec.h)
    uint64_t n;
} ps_rows_push;

typedef struct ps_rows_age { // as ps_row_view's
    uint32_t version, count;
} ps_rows_age;

typedef struct ps_rows_load {
    uint32_t table, width;
    uint64_t steps, n, clock, begins;
    const uint64_t *ids;     // (n)
    const ps_rows_age *ages; // (n)
    const float *values;     // (n, width)
} ps_rows_load;

typedef struct ps_rows_save {
    uint32_t table, partition, place, zero;
} ps_rows_save;

typedef struct ps_rows_page { // what answers it
    uint64_t next, n, n_candidates, steps, clock;
    const uint64_t *ids;     // (n + n_candidates)
    const ps_rows_age *ages; // likewise
    const float *values;     // (n, width)
} ps_rows_page;

typedef struct ps_rows_keep {
    uint64_t point;
    uint32_t writes;
    const char *path; // (path_bytes)
    uint64_t path_bytes;
} ps_rows_keep;

typedef struct ps_rows_kept { // what answers it
    uint64_t since;
    const struct ps_rows_kept_table {
        uint64_t steps, bytes, crc;
    } * tables;        // (T)
    const char *fault; // (fault_bytes)
    uint64_t fault_bytes;
} ps_rows_kept;

typedef struct ps_rows_return {
    uint64_t point;
    const char *folder, *manifest; // (folder_bytes), (manifest_bytes)
    uint64_t folder_bytes, manifest_bytes;
} ps_rows_return;

typedef struct ps_rows_ask { // READ_ROWS
    const uint32_t *counts;  // (T)
    const uint64_t *ids;     // (n)
    uint64_t n;              // of all tables
} ps_rows_ask;

typedef enum ps_rows_twin_wants {
    PS_TWIN_WANTS_NOTHING, // it has the point
    PS_TWIN_WANTS_CHANGES, // since the base
    PS_TWIN_WANTS_ALL,
    PS_TWIN_WANTS
} ps_rows_twin_wants;

typedef enum ps_rows_twin_has {
    PS_TWIN_HAS_NOTHING, // of that point
    PS_TWIN_HAS_MORE,    // than this page
    PS_TWIN_HAS_ALL,     // told: it is the last page
    PS_TWIN_HAS
} ps_rows_twin_has;

typedef struct ps_rows_twin_point {
    uint64_t base, point, step, loads, whole;
    const ps_row_clock *clocks; // (T)
} ps_rows_twin_point;

typedef struct ps_rows_twin_page { // what answers a TWIN_ASK
    uint64_t has, step, loads;
    const ps_row_clock *clocks; // (T)
    const void *piece;          // (bytes)
    uint64_t bytes;
} ps_rows_twin_page;

/* Bytes of a TWIN_POINT; of the page before its piece. */
uint64_t ps_rows_twin_point_bytes(uint32_t n_tables);
uint64_t ps_rows_twin_page_head(uint32_t n_tables);
/* Write all; of a page all but the piece. */
void ps_rows_twin_point_write(void *body, const ps_rows_twin_point *p, uint32_t n_tables);
void ps_rows_twin_page_write(void *body, const ps_rows_twin_page *p, uint32_t n_tables);
/* As the readers below. */
ps_err ps_rows_twin_point_read(const void *body, uint64_t bytes, uint32_t n_tables,
                               ps_rows_twin_point *out);
ps_err ps_rows_twin_page_read(const void *body, uint64_t bytes, uint32_t n_tables,
                              ps_rows_twin_page *out);
/* point and first of a TWIN_ASK; an answer that is one number below `most`. */
ps_err ps_rows_twin_ask_read(const void *body, uint64_t bytes, uint64_t out[2]);
ps_err ps_rows_twin_number_read(const void *body, uint64_t bytes, uint64_t most,
                                uint64_t *out);

/* Bytes before the ids of a READ_ROWS. */
uint64_t ps_rows_ask_head(uint32_t n_tables);

/* Bytes of the bits before n rows that were asked for ahead. */
static inline uint64_t ps_rows_ahead_head(uint64_t n)
{
    return ps_rows_aligned((n + 7) / 8);
}

/* Bytes before the ids or places, before the gradients. */
uint64_t ps_rows_pull_head(uint32_t n_tables);
uint64_t ps_rows_push_head(uint32_t n_tables, uint32_t n_pulls);
/* Bytes of whole bodies. */
uint64_t ps_rows_load_bytes(uint64_t n, uint32_t width);
uint64_t ps_rows_page_bytes(uint64_t n, uint64_t n_candidates, uint32_t width);
uint64_t ps_rows_keep_bytes(const ps_rows_keep *keep);
uint64_t ps_rows_kept_bytes(const ps_rows_kept *kept, uint32_t n_tables);
uint64_t ps_rows_return_bytes(const ps_rows_return *back);

/* Write the head; the rest is the caller's: after it at the same places as in what the
 * readers give. body has room for all. */
void ps_rows_pull_write(void *body, uint32_t how, const uint32_t *counts,
                        uint32_t n_tables);
void ps_rows_push_write(void *body, const double *rates, uint32_t n_tables,
                        uint32_t n_pulls);
void ps_rows_load_write(void *body, const ps_rows_load *load);
void ps_rows_page_write(void *body, const ps_rows_page *page);
/* Write all. */
void ps_rows_keep_write(void *body, const ps_rows_keep *keep);
void ps_rows_kept_write(void *body, const ps_rows_kept *kept, uint32_t n_tables);
void ps_rows_return_write(void *body, const ps_rows_return *back);

/* PROTOCOL when the bytes are not exactly such a body. body: 8-byte aligned; borrowed by
 * *out. widths (n_tables): of rows with their state. */
ps_err ps_rows_pull_read(const void *body, uint64_t bytes, uint32_t n_tables,
                         ps_rows_pull *out);
ps_err ps_rows_push_read(const void *body, uint64_t bytes, uint32_t n_tables,
                         ps_rows_push *out);
ps_err ps_rows_load_read(const void *body, uint64_t bytes, ps_rows_load *out);
ps_err ps_rows_save_read(const void *body, uint64_t bytes, ps_rows_save *out);
ps_err ps_rows_page_read(const void *body, uint64_t bytes, uint32_t width,
                         ps_rows_page *out);
ps_err ps_rows_keep_read(const void *body, uint64_t bytes, ps_rows_keep *out);
ps_err ps_rows_kept_read(const void *body, uint64_t bytes, uint32_t n_tables,
                         ps_rows_kept *out);
ps_err ps_rows_return_read(const void *body, uint64_t bytes, ps_rows_return *out);
ps_err ps_rows_ask_read(const void *body, uint64_t bytes, uint32_t n_tables,
                        ps_rows_ask *out);

/* TABLES. specs (n) in the order of their numbers. Reading: *specs is owned by the caller
 * (free()); PROTOCOL, ARG, NOMEM. */
void ps_rows_tables_write(ps_mp_writer *w, uint32_t n_shards,
                          const ps_row_spec *const *specs, uint32_t n);
ps_err ps_rows_tables_read(const void *body, uint64_t bytes, uint32_t *n_shards,
                           ps_row_spec **specs, uint32_t *n);

#endif
