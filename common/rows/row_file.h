/* Partitions of a table as a file, for checkpoints: all rows, or those that changed since
 * an earlier version. A reader of another number of shards takes the partitions that it
 * owns from any file.
 *
 *   magic       "pstrain rows 1\n" and a zero byte: 16 bytes
 *   partitions  one after another, those that have something: ids that were dropped
 *               (n_dropped u64), ids (n u64), versions (n u32), counts (n u32), then the
 *               rows of the ids with count 0 (width float32): weights, state. Ids ascend.
 *   contents    for each of them: number, n, n_dropped, n_rows, CRC-32, 0 (u32 each),
 *               offset (u64)
 *   settings    a MessagePack map: the table, the versions
 *   end         offset of contents, of settings (u64 each), number of partitions, CRC-32
 * of all from contents on up to here (u32 each), "rows end" (8 bytes)
 *
 * All numbers are little-endian. An incremental file begins anew from the ids that were
 * dropped: a reader removes them, then puts the rows. */
#ifndef PS_ROW_FILE_H
#define PS_ROW_FILE_H

#include "row_table.h"

/* Writes all partitions of the table into a new file at the path, and syncs it; whatever
 * was there is removed. version: the table's. since: only what changed after that
 * version, which is not before that of ps_row_table_forget; 0: all. *bytes and *crc
 * (CRC-32), if not NULL, become those of the file. IO names the path; ARG, NOMEM. */
ps_err ps_row_file_write(const char *path, const ps_row_table *table, uint64_t since,
                         uint64_t version, uint64_t *bytes, uint32_t *crc);

enum { PS_ROW_FILE_PART_BYTES = 32 };

/* A file that is read. */
typedef struct ps_row_file {
    const char *name; // borrowed; for messages
    int fd;           // -1: bytes
    const uint8_t *bytes;
    uint64_t n_bytes;
    ps_row_spec spec;
    uint64_t since, version;
    uint32_t first_partition, end_partition; // that it is about, with something or not
    uint32_t n_parts;
    uint8_t *contents;      // (n_parts, PS_ROW_FILE_PART_BYTES)
    uint64_t contents_from; // offset
} ps_row_file;

/* Opens a file and checks its frame; the path must stay. IO, FORMAT name it and what is
 * wrong. */
ps_err ps_row_file_open(ps_row_file *file, const char *path);
/* The same for bytes in memory, which must stay. */
ps_err ps_row_file_parse(ps_row_file *file, const char *name, const void *bytes,
                         uint64_t n);
void ps_row_file_close(ps_row_file *file); // safe after a failure

/* Puts the file's partitions that belong to the table into it, each checked before
 * anything of it is used: first those of the full file, then those of incremental files
 * in the order of their versions. FORMAT names file and partition; SHAPE: the table is
 * another one, or has another dim or optimizer. NOMEM. */
ps_err ps_row_file_load(const ps_row_file *file, ps_row_table *table);

#endif
