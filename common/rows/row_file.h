/* Partitions of a table as a file, for checkpoints: all rows, or those that changed since
 * an earlier version. A reader of another number of shards takes the partitions that it
 * owns from any file.
 *
 *   magic       "pstrain\nrows 1\n" and a zero byte: 16 bytes
 *   partitions  one after another: removed ids (n_removed u64), ids (n u64), versions (n
 *               u32), counts (n u32), then the rows of the ids with count 0 (width
 *               float32): weights, state. Ids ascend.
 *   contents    for each partition: number, n, n_removed, CRC-32 (u32 each), n_rows
 * (u32), 0 (u32), offset (u64) settings    a MessagePack map: what the rows are end
 * offset of the contents, of the settings (u64 each), n partitions, CRC-32 of contents,
 * settings and the rest of the end (u32 each), "rows end" (8 bytes)
 *
 * All numbers are little-endian. */
#ifndef PS_ROW_FILE_H
#define PS_ROW_FILE_H

#include "row_table.h"

/* Writes all partitions of the table into a new file, synced; since: rows whose version
 * is above it, and the ids that were dropped since then; 0: all. version: the table's.
 * Returns the bytes in *bytes and, if not NULL, the file's CRC-32 in *crc. IO names the
 * path. */
ps_err ps_row_file_write(const char *path, const ps_row_table *table, uint64_t since,
                         uint64_t version, uint64_t *bytes, uint32_t *crc);

typedef struct ps_row_file {
    const char *name;     // borrowed; for messages
    const uint8_t *bytes; // borrowed by ps_row_file_parse
    uint64_t n_bytes;
    void *mapped; // what ps_row_file_open has mapped
    ps_row_spec spec;
    uint64_t since, version;
    uint32_t n_partitions;
    const uint8_t *contents, *settings;
} ps_row_file;

/* Maps a file and checks its frame. IO, FORMAT name the path and what is wrong. */
ps_err ps_row_file_open(ps_row_file *file, const char *path);
/* The same for bytes in memory, which must stay. */
ps_err ps_row_file_parse(ps_row_file *file, const char *name, const void *bytes,
                         uint64_t n);
void ps_row_file_close(ps_row_file *file); // safe on a zeroed one

/* Puts the file's partitions that belong to the table into it, each checked first: of the
 * full file, then of the incremental ones in the order of their versions. FORMAT names
 * file and partition; SHAPE: a table of other settings. NOMEM. */
ps_err ps_row_file_load(const ps_row_file *file, ps_row_table *table);

#endif
