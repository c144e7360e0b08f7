/* Any bytes are either a file of rows or an error. Checksums are made right, so that what
 * lies behind them is reached. */
#include <stdlib.h>
#include <string.h>

#include <zlib.h>

#include "row_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

enum { END_BYTES = 32, END_CHECKED = 20, PART_CRC = 16, PART_OFFSET = 24 };

static void put_u32(uint8_t *to, uint64_t value)
{
    const uint32_t word = (uint32_t)value;
    memcpy(to, &word, sizeof word);
}

static uint64_t get_u64(const uint8_t *from)
{
    uint64_t value;
    memcpy(&value, from, sizeof value);
    return value;
}

static void mend_end(uint8_t *bytes, size_t n)
{
    if (n < END_BYTES) return;
    uint8_t *end = bytes + n - END_BYTES;
    const uint64_t from = get_u64(end);
    if (from <= n - END_BYTES)
        put_u32(end + END_CHECKED,
                crc32_z(0, bytes + from, n - END_BYTES - from + END_CHECKED));
}

static void mend_parts(ps_row_file *file)
{
    for (uint32_t i = 0; i < file->n_parts; i++) {
        uint8_t *part = file->contents + (uint64_t)i * PS_ROW_FILE_PART_BYTES;
        const uint64_t from = get_u64(part + PART_OFFSET);
        const uint64_t until = i + 1 < file->n_parts
                                   ? get_u64(part + PS_ROW_FILE_PART_BYTES + PART_OFFSET)
                                   : file->contents_from;
        put_u32(part + PART_CRC, crc32_z(0, file->bytes + from, until - from));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t n)
{
    ps_row_memory memory;
    ps_row_table table;
    ps_row_file file;
    uint8_t *bytes = malloc(n ? n : 1);
    if (!bytes) abort();
    if (n > 0) memcpy(bytes, input, n);
    mend_end(bytes, n);
    ps_row_memory_init(&memory);
    if (ps_row_file_parse(&file, "fuzz", bytes, n) == PS_OK && file.spec.dim < 4096) {
        mend_parts(&file);
        if (ps_row_table_init(&table, &file.spec, PS_ROW_KEY_PLAIN, 0, PS_ROW_PARTITIONS,
                              &memory) != PS_OK)
            abort();
        (void)ps_row_file_load(&file, &table);
        ps_row_table_fini(&table);
    }
    ps_row_file_close(&file);
    ps_row_memory_fini(&memory);
    free(bytes);
    return 0;
}
