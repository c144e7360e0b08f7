/* Prints rows of an embedding table of a job that runs: a reader is no member of the job.
 *
 *   cc read_rows.c $(pkg-config --cflags --libs pstrain) -o read_rows
 *   ./read_rows tcp://127.0.0.1:29500 user 7 1311768467463790320
 *
 * PS_CURVE_DIR: the folder with worker.key, of a job with keys.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <pstrain.h>

enum { IDS_MAX = 64 };

static int failed(const char *what)
{
    fprintf(stderr, "read_rows: %s\n", what);
    return 1;
}

/* The table of that name: its index; -1: there is none. */
static int find(const pstrain_rows_reader *reader, const char *name,
                pstrain_rows_table *table)
{
    for (int i = 0; i < pstrain_rows_reader_tables(reader); i++)
        if (pstrain_rows_reader_table(reader, i, table, sizeof *table) == PSTRAIN_OK &&
            strcmp(table->name, name) == 0)
            return i;
    return -1;
}

static int print_rows(pstrain_rows_reader *reader, const char *name, const int64_t *ids,
                      uint64_t n)
{
    pstrain_rows_table table;
    uint64_t steps[2];
    const int index = find(reader, name, &table);
    if (index < 0) return failed("the job has no such table");
    float *rows = calloc(n * table.dim, sizeof *rows);
    if (!rows) return failed("no memory");
    const pstrain_rows_read read = {.table = index, .ids = ids, .n = n, .out = rows};
    const int status = pstrain_rows_reader_read(reader, &read, 1, sizeof read, steps);
    for (uint64_t i = 0; i < n && status == PSTRAIN_OK; i++) {
        printf("%lld:", (long long)ids[i]);
        for (uint32_t d = 0; d < table.dim; d++)
            printf(" %.9g", (double)rows[i * table.dim + d]);
        printf("\n");
    }
    free(rows);
    if (status != PSTRAIN_OK) return failed(pstrain_error());
    printf("after %llu steps\n", (unsigned long long)steps[0]);
    return 0;
}

int main(int argc, char **argv)
{
    int64_t ids[IDS_MAX];
    const int n = argc - 3;
    if (n < 1 || n > IDS_MAX) return failed("read_rows ADDRESS TABLE ID...");
    for (int i = 0; i < n; i++)
        ids[i] = strtoll(argv[3 + i], NULL, 10);
    const pstrain_rows_reader_options options = {.struct_size = sizeof options,
                                                 .address = argv[1],
                                                 .keys = getenv("PS_CURVE_DIR"),
                                                 .timeout_ms = 10000};
    pstrain_rows_reader *reader;
    if (pstrain_rows_reader_open(&options, &reader) != PSTRAIN_OK)
        return failed(pstrain_error());
    const int code = print_rows(reader, argv[2], ids, (uint64_t)n);
    pstrain_rows_reader_close(&reader);
    return code;
}
