/* Files of partitions: what one set of shards writes, another reads; full and incremental
 * ones; and no changed byte goes unseen. */
#include "row_file.h"

#include <zlib.h>

#include "row_lists.h"
#include "temp_files.h"

enum { N_IDS = 4000, DIM = 3, PULL = 300, MAX_SHARDS = 3 };

typedef struct shards {
    ps_row_memory memory;
    ps_row_table tables[MAX_SHARDS];
    ps_row_step steps[MAX_SHARDS];
    uint32_t n;
} shards;

static ps_row_spec spec_of_table(void)
{
    ps_row_spec spec = ps_row_spec_default(PS_ROW_ADAGRAD);
    snprintf(spec.name, sizeof spec.name, "user");
    spec.dim = DIM;
    spec.number = 5;
    spec.admit = 2;
    spec.expire = 6;
    spec.full = PS_ROW_FULL_EVICT;
    spec.max_bytes = 2 * PS_ROW_PARTITIONS * ps_row_spec_row_bytes(&spec);
    return spec;
}

static void shards_init(shards *s, const ps_row_spec *spec, uint32_t n)
{
    s->n = n;
    ps_row_memory_init(&s->memory);
    for (uint32_t i = 0; i < n; i++) {
        const ps_row_key key = {ps_row_mix(i + n), n};
        assert_ok(ps_row_table_init(&s->tables[i], spec, key,
                                    ps_row_first_partition(i, n),
                                    ps_row_first_partition(i + 1, n), &s->memory));
        assert_ok(ps_row_step_init(&s->steps[i], 1, key));
    }
}

static void shards_fini(shards *s)
{
    for (uint32_t i = 0; i < s->n; i++) {
        ps_row_table_fini(&s->tables[i]);
        ps_row_step_fini(&s->steps[i]);
    }
    ps_row_memory_fini(&s->memory);
}

/* A step with gradients for some ids. Among `among` of them, so that others grow old. */
static void shards_step(shards *s, uint64_t step, uint64_t among)
{
    static uint64_t ids[PULL];
    static float grads[PULL * DIM];
    const ps_row_update update = {.lr = 0.1, .t = step + 1, .step = step};
    const float *const of_ranks[] = {grads};
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t n = 0;
        for (uint64_t k = 0; k < PULL; k++) {
            const uint64_t id = ps_row_mix(step * PULL + k) % among * 977;
            if (ps_row_table_owns(&s->tables[i], id)) ids[n++] = id;
        }
        // as many gradients as look-ups: an id may occur twice
        for (uint32_t k = 0; k < n * DIM; k++)
            grads[k] = (float)(ids[k / DIM] % 89 + k % DIM + step) / 64;
        ps_row_step_clear(&s->steps[i]);
        assert_ok(ps_row_step_pull(&s->steps[i], 0, n, ids));
        assert_ok(ps_row_table_apply(&s->tables[i], &s->steps[i], &update, of_ranks));
    }
}

static void write_files(const shards *s, const char *kind, uint64_t since,
                        uint64_t version, uint64_t *all)
{
    char name[64];
    *all = 0;
    for (uint32_t i = 0; i < s->n; i++) {
        uint64_t bytes;
        uint32_t crc;
        static uint8_t content[4 << 20];
        snprintf(name, sizeof name, "%s-%u", kind, i);
        assert_ok(ps_row_file_write(temp_path(name), &s->tables[i], since, version,
                                    &bytes, &crc));
        FILE *f = fopen(temp_path(name), "rb");
        assert_non_null(f);
        assert_int_equal(fread(content, 1, sizeof content, f), bytes);
        fclose(f);
        assert_int_equal(crc32_z(0, content, bytes), crc);
        *all += bytes;
    }
}

static void read_files(shards *s, const char *kind, uint32_t n_files)
{
    for (uint32_t f = 0; f < n_files; f++) {
        char name[64];
        ps_row_file file;
        snprintf(name, sizeof name, "%s-%u", kind, f);
        assert_ok(ps_row_file_open(&file, temp_path(name)));
        for (uint32_t i = 0; i < s->n; i++)
            assert_ok(ps_row_file_load(&file, &s->tables[i]));
        ps_row_file_close(&file);
    }
}

static const ps_row_table *table_of(const shards *s, uint32_t partition)
{
    return &s->tables[ps_row_shard(partition, s->n)];
}

/* All rows, states, versions and counts. Returns how many. */
static uint64_t assert_same(const shards *a, const shards *b)
{
    uint64_t all = 0;
    for (uint32_t p = 0; p < PS_ROW_PARTITIONS; p++)
        all += assert_same_rows(table_of(a, p), table_of(b, p), p);
    return all;
}

IN_FOLDER(another_number_of_shards_reads_them)
{
    static shards three, two;
    static const char *const chain[] = {"a", "b", "c", "d"};
    const ps_row_spec spec = spec_of_table();
    uint64_t full, incremental, step = 0, version;
    shards_init(&three, &spec, 3);
    for (; step < 20; step++)
        shards_step(&three, step, N_IDS);
    version = step;
    write_files(&three, "full", 0, version, &full);
    for (uint32_t i = 0; i < 3; i++)
        ps_row_table_forget(&three.tables[i], version);
    // rows expire and are evicted; some of them come again
    for (uint32_t k = 0; k < 4; k++) {
        const uint64_t since = step;
        for (; step < since + 10; step++)
            shards_step(&three, step, step % 3 ? 300 : N_IDS);
        write_files(&three, "since-full", version, step, &incremental);
        write_files(&three, chain[k], since, step, &incremental);
        shards_init(&two, &spec, 2);
        read_files(&two, "full", 3);
        read_files(&two, "since-full", 3);
        assert_true(assert_same(&three, &two) > 500);
        shards_fini(&two);
        shards_init(&two, &spec, 2);
        read_files(&two, "full", 3);
        for (uint32_t i = 0; i <= k; i++)
            read_files(&two, chain[i], 3);
        assert_true(assert_same(&three, &two) > 500);
        shards_fini(&two);
    }
    shards_fini(&three);
}

/* What was dropped, and lives again after going back, is not dropped by the file. */
IN_FOLDER(going_back_brings_dropped_rows_back)
{
    static shards a, b;
    const ps_row_spec spec = spec_of_table();
    uint64_t bytes;
    shards_init(&a, &spec, 1);
    for (uint64_t step = 0; step < 12; step++)
        shards_step(&a, step, N_IDS);
    write_files(&a, "full", 0, 12, &bytes);
    ps_row_table_forget(&a.tables[0], 12);
    ps_row_table_mark(&a.tables[0], 12, 12);
    for (uint64_t step = 12; step < 30; step++)
        shards_step(&a, step, 200);
    assert_true(ps_row_table_stats(&a.tables[0])->expired > 100);
    assert_ok(ps_row_table_undo(&a.tables[0], 12));
    shards_step(&a, 12, N_IDS);
    write_files(&a, "part", 12, 13, &bytes);
    shards_init(&b, &spec, 1);
    read_files(&b, "full", 1);
    read_files(&b, "part", 1);
    assert_true(assert_same(&a, &b) > 500);
    shards_fini(&a);
    shards_fini(&b);
}

static uint64_t drawn;

static uint64_t draw(uint64_t below)
{
    return ps_row_mix(drawn++) % below;
}

static ps_err load_bytes(const uint8_t *bytes, uint64_t n, const ps_row_spec *spec)
{
    ps_row_memory memory;
    ps_row_table t;
    ps_row_file file;
    ps_row_memory_init(&memory);
    assert_ok(
        ps_row_table_init(&t, spec, PS_ROW_KEY_PLAIN, 0, PS_ROW_PARTITIONS, &memory));
    ps_err err = ps_row_file_parse(&file, "FILE", bytes, n);
    if (err == PS_OK) err = ps_row_file_load(&file, &t);
    ps_row_file_close(&file);
    ps_row_table_fini(&t);
    ps_row_memory_fini(&memory);
    return err;
}

IN_FOLDER(no_changed_byte_goes_unseen)
{
    static shards a;
    static uint8_t bytes[1 << 20];
    ps_row_spec spec = spec_of_table();
    uint64_t n;
    spec.admit = 1;
    shards_init(&a, &spec, 1);
    for (uint64_t step = 0; step < 2; step++)
        shards_step(&a, step, 40);
    write_files(&a, "file", 0, 2, &n);
    FILE *f = fopen(temp_path("file-0"), "rb");
    assert_non_null(f);
    assert_int_equal(fread(bytes, 1, sizeof bytes, f), n);
    fclose(f);
    assert_ok(load_bytes(bytes, n, &spec));
    for (int i = 0; i < 10000; i++) {
        const uint64_t at = draw(n);
        const uint8_t kept = bytes[at];
        bytes[at] ^= (uint8_t)(1 + draw(255));
        if (load_bytes(bytes, n, &spec) != PS_ERR_FORMAT)
            fail_msg("byte %d of %d", (int)at, (int)n);
        assert_non_null(strstr(ps_err_message(), "FILE"));
        bytes[at] = kept;
    }
    for (uint64_t cut = 0; cut < n; cut += 1 + n / 500)
        assert_int_equal(load_bytes(bytes, cut, &spec), PS_ERR_FORMAT);
    spec.dim++;
    assert_error(load_bytes(bytes, n, &spec), PS_ERR_SHAPE, "dim 3");
    shards_fini(&a);
}

IN_FOLDER(a_file_that_cannot_be)
{
    ps_row_file file;
    assert_error(ps_row_file_open(&file, temp_path("none")), PS_ERR_IO, "none");
    ps_row_file_close(&file);
    shards a;
    uint64_t bytes;
    const ps_row_spec spec = spec_of_table();
    shards_init(&a, &spec, 1);
    for (uint64_t step = 0; step < 2; step++)
        shards_step(&a, step, 40);
    write_files(&a, "old", 0, 1, &bytes); // its rows are of version 2
    assert_ok(ps_row_file_open(&file, temp_path("old-0")));
    assert_error(ps_row_file_load(&file, &a.tables[0]), PS_ERR_FORMAT, "version");
    ps_row_file_close(&file);
    assert_error(ps_row_file_write(temp_path("part"), &a.tables[0], 1, 2, NULL, NULL),
                 PS_ERR_ARG, "full one first");
    assert_error(ps_row_file_write("/nowhere/file", &a.tables[0], 0, 0, NULL, NULL),
                 PS_ERR_IO, "/nowhere/file");
    shards_fini(&a);
}
