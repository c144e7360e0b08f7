/* All tables of a shard: points to go back to, files for another number of shards, the
 * manifest that names them, and files that are damaged, or missing. The yardstick is a
 * store that has made the same steps without any of it. */
#include "row_walk.h"

#include <unistd.h>

#include "row_lists.h"
#include "temp_files.h"

enum { DIM = 2, IDS = 500, PULL = 40, TABLES = 2, SHARDS_MAX = 3 };

typedef struct job {
    uint32_t n;
    ps_row_store *stores[SHARDS_MAX];
    ps_row_step steps[SHARDS_MAX];
} job;

static void specs_of(ps_row_spec specs[TABLES])
{
    for (uint32_t t = 0; t < TABLES; t++) {
        specs[t] = ps_row_spec_default(t == 0 ? PS_ROW_ADAGRAD : PS_ROW_SPARSE_ADAM);
        snprintf(specs[t].name, sizeof specs[t].name, "table%u", t);
        specs[t].number = t;
        specs[t].dim = DIM;
        specs[t].expire = t == 0 ? 4 : 0;
        specs[t].admit = 2 * t;
    }
}

static void job_init(job *j, uint32_t n)
{
    ps_row_spec specs[TABLES];
    specs_of(specs);
    j->n = n;
    for (uint32_t i = 0; i < n; i++) {
        assert_ok(ps_row_store_create(specs, TABLES, ps_row_first_partition(i, n),
                                      ps_row_first_partition(i + 1, n), NULL,
                                      &j->stores[i]));
        assert_ok(ps_row_step_init(&j->steps[i], 1, PS_ROW_KEY_PLAIN));
    }
}

static void job_fini(job *j)
{
    for (uint32_t i = 0; i < j->n; i++) {
        ps_row_store_destroy(&j->stores[i]);
        ps_row_step_fini(&j->steps[i]);
    }
}

/* Table 1 has gradients in every second step alone. */
static void job_step(job *j, uint64_t step)
{
    for (uint32_t k = 0; k < j->n * TABLES; k++) {
        const uint32_t i = k / TABLES, t = k % TABLES;
        ps_row_table *table = &j->stores[i]->tables[t];
        uint64_t ids[PULL];
        float grads[PULL * DIM];
        uint32_t n = 0;
        for (uint64_t p = 0; p < PULL && !(t == 1 && step % 2); p++) {
            const uint64_t id = ps_row_mix(step * PULL + p) % IDS;
            if (ps_row_table_owns(table, id)) ids[n++] = id;
        }
        for (uint32_t g = 0; g < n * DIM; g++)
            grads[g] = (float)(ids[g / DIM] % 7 + g % DIM + step) / 32;
        const float *const of_ranks[] = {grads};
        j->stores[i]->clocks[t].made += !(t == 1 && step % 2);
        const ps_row_update update = {
            .lr = 0.1, .t = j->stores[i]->clocks[t].made, .step = step};
        ps_row_step_clear(&j->steps[i]);
        assert_ok(ps_row_step_pull(&j->steps[i], 0, n, ids));
        assert_ok(ps_row_table_apply(table, &j->steps[i], &update, of_ranks));
    }
}

static void job_steps(job *j, uint64_t from, uint64_t to)
{
    for (uint64_t step = from; step < to; step++)
        job_step(j, step);
}

static void job_point(job *j, uint64_t point, uint64_t step)
{
    for (uint32_t i = 0; i < j->n; i++)
        assert_ok(ps_row_store_set_point(j->stores[i], point, step));
}

static void job_return(job *j, uint64_t point, uint64_t step)
{
    for (uint32_t i = 0; i < j->n; i++) {
        uint64_t at;
        assert_ok(ps_row_store_go_back(j->stores[i], point, &at));
        assert_int_equal(at, step);
    }
}

/* All that files hold of a partition. */
static const ps_row_table *table_at(const job *j, uint32_t t, uint32_t partition)
{
    return &j->stores[ps_row_shard(partition, j->n)]->tables[t];
}

static void assert_same_jobs(const job *a, const job *b)
{
    uint64_t all = 0;
    for (uint32_t t = 0; t < TABLES; t++) {
        assert_int_equal(a->stores[0]->clocks[t].made, b->stores[0]->clocks[t].made);
        for (uint32_t p = 0; p < PS_ROW_PARTITIONS; p++)
            all += assert_same_rows(table_at(a, t, p), table_at(b, t, p), p);
    }
    assert_true(all > IDS / 4);
}

static void assert_as_after(const job *j, uint64_t steps)
{
    job alone;
    job_init(&alone, 1);
    job_steps(&alone, 0, steps);
    assert_same_jobs(j, &alone);
    job_fini(&alone);
}

TEST(goes_back_to_the_last_two_points)
{
    job j;
    job_init(&j, 2);
    job_steps(&j, 0, 3);
    job_point(&j, 71, 3);
    job_steps(&j, 3, 8);
    job_point(&j, 72, 8);
    job_steps(&j, 8, 20);
    job_return(&j, 72, 8);
    assert_as_after(&j, 8);
    job_steps(&j, 8, 9);
    job_return(&j, 71, 3);
    assert_as_after(&j, 3);
    assert_false(ps_row_store_has(j.stores[0], 72));
    // again from there, with the names of two points at one step
    job_steps(&j, 3, 8);
    job_point(&j, 73, 8);
    job_point(&j, 74, 8);
    job_steps(&j, 8, 9);
    job_return(&j, 73, 8);
    assert_as_after(&j, 8);
    job_steps(&j, 8, 12);
    job_return(&j, 74, 8);
    assert_as_after(&j, 8);
    job_steps(&j, 8, 12);
    job_point(&j, 75, 12);
    job_point(&j, 76, 12);
    assert_false(ps_row_store_has(j.stores[0], 74));
    uint64_t at;
    assert_error(ps_row_store_go_back(j.stores[0], 74, &at), PS_ERR_PROTOCOL, "point 74");
    assert_as_after(&j, 12);
    job_fini(&j);
}

TEST(rows_from_elsewhere_belong_to_the_point_after_them)
{
    job j;
    const uint64_t id = 3, new_id = 7777777;
    const float row[2 * DIM] = {8, 8, 9, 9};
    float out[DIM];
    uint64_t at;
    job_init(&j, 1);
    ps_row_store *s = j.stores[0];
    ps_row_table *table = &s->tables[0];
    job_steps(&j, 0, 5);
    job_point(&j, 1, 4);
    job_point(&j, 2, 5);
    for (uint32_t k = 0; k < 2; k++)
        assert_ok(ps_row_table_set(table, 1, k ? &new_id : &id, row + k * DIM, 5));
    s->loads++;
    job_point(&j, 3, 5); // the same step, other rows
    assert_false(ps_row_store_has(s, 2));
    assert_false(ps_row_store_has(s, 1));
    job_steps(&j, 5, 9);
    assert_ok(ps_row_store_go_back(s, 3, &at));
    ps_row_table_read(table, 1, &id, out);
    assert_memory_equal(out, row, sizeof out);
    ps_row_table_read(table, 1, &new_id, out);
    assert_memory_equal(out, row + DIM, sizeof out);
    job_fini(&j);
}

/* ---- a second store that has the same points ---- */

enum { PIECE = 700, PIECES_MOST = 400 };

/* Takes what has changed between the last two points of each store, or all, to another
 * one. Returns the pieces. */
static int job_walk(const job *from, job *to, bool changes)
{
    int pieces = 0;
    for (uint32_t i = 0; i < from->n; i++) {
        ps_row_walk walk = {0};
        uint64_t piece[PIECE / 8 + 1], bytes;
        const uint64_t room = ps_row_walk_room(from->stores[i], PIECE);
        assert_int_equal(room, PIECE);
        ps_row_walk_begin(&walk, from->stores[i], changes);
        for (;;) {
            assert_ok(ps_row_walk_next(&walk, piece, room, &bytes));
            if (bytes == 0) break;
            assert_in_range(bytes, 9, room);
            assert_ok(ps_row_store_put(to->stores[i], piece, bytes));
            if (pieces % 3 == 0) // it comes twice
                assert_ok(ps_row_store_put(to->stores[i], piece, bytes));
            assert_true(++pieces < PIECES_MOST);
        }
        ps_row_walk_end(&walk);
        memcpy(to->stores[i]->clocks, from->stores[i]->clocks,
               TABLES * sizeof(ps_row_clock));
        to->stores[i]->loads = from->stores[i]->loads;
    }
    return pieces;
}

static bool job_can_tell_changes(const job *j)
{
    bool can = true;
    for (uint32_t i = 0; i < j->n; i++)
        can &= ps_row_walk_can_tell_changes(j->stores[i]);
    return can;
}

/* Rows that have gone, candidates and new ids are among what has changed. */
TEST(a_second_store_follows_by_changes)
{
    job j, twin;
    job_init(&j, 2);
    job_init(&twin, 2);
    job_steps(&j, 0, 9);
    job_point(&j, 1, 9);
    assert_false(job_can_tell_changes(&j));
    const int all = job_walk(&j, &twin, false);
    job_point(&twin, 1, 9);
    assert_as_after(&twin, 9);
    job_steps(&j, 9, 10);
    job_point(&j, 2, 10);
    assert_true(job_can_tell_changes(&j));
    const int changes = job_walk(&j, &twin, true);
    job_point(&twin, 2, 10);
    assert_as_after(&twin, 10);
    assert_true(0 < changes && changes < all / 2);
    // two points of one step
    job_point(&j, 3, 10);
    assert_int_equal(job_walk(&j, &twin, true), 0);
    job_point(&twin, 3, 10);
    for (uint64_t step = 10; step < 30; step += 5) {
        job_steps(&j, step, step + 5);
        job_point(&j, step, step + 5);
        assert_true(job_can_tell_changes(&j));
        job_walk(&j, &twin, true);
        job_point(&twin, step, step + 5);
        assert_as_after(&twin, step + 5);
    }
    job_return(&twin, 20, 25);
    assert_as_after(&twin, 25);
    job_steps(&twin, 25, 31); // it goes on as the first one
    assert_as_after(&twin, 31);
    job_fini(&twin);
    job_fini(&j);
}

TEST(changes_that_came_in_part_are_undone)
{
    job j, twin;
    uint64_t piece[PIECE / 8 + 1], bytes;
    ps_row_walk walk = {0};
    job_init(&j, 1);
    job_init(&twin, 1);
    job_steps(&j, 0, 9);
    job_point(&j, 1, 9);
    job_walk(&j, &twin, false);
    job_point(&twin, 1, 9);
    job_steps(&j, 9, 15);
    job_point(&j, 2, 15);
    ps_row_walk_begin(&walk, j.stores[0], true);
    for (int i = 0; i < 2; i++) {
        assert_ok(ps_row_walk_next(&walk, piece, PIECE, &bytes));
        assert_ok(ps_row_store_put(twin.stores[0], piece, bytes));
    }
    ps_row_walk_end(&walk);
    job_return(&twin, 1, 9);
    assert_as_after(&twin, 9);
    // The first one goes back, too, and on another way.
    job_return(&j, 1, 9);
    assert_false(job_can_tell_changes(&j));
    job_steps(&j, 9, 12);
    job_point(&j, 3, 12);
    assert_true(job_can_tell_changes(&j));
    job_walk(&j, &twin, true);
    job_point(&twin, 3, 12);
    assert_as_after(&twin, 12);
    job_fini(&twin);
    job_fini(&j);
}

TEST(rows_from_elsewhere_are_changes)
{
    job j, twin;
    const uint64_t ids[] = {3, 7777777};
    const float rows[2 * DIM] = {8, 8, 9, 9};
    float out[2 * DIM];
    job_init(&j, 1);
    job_init(&twin, 1);
    job_steps(&j, 0, 5);
    job_point(&j, 1, 5);
    job_walk(&j, &twin, false);
    job_point(&twin, 1, 5);
    assert_ok(ps_row_table_set(&j.stores[0]->tables[0], 2, ids, rows, 5));
    j.stores[0]->loads++;
    job_point(&j, 2, 5); // the same step, other rows
    assert_true(job_can_tell_changes(&j));
    job_walk(&j, &twin, true);
    job_point(&twin, 2, 5);
    assert_same_jobs(&j, &twin);
    ps_row_table_read(&twin.stores[0]->tables[0], 2, ids, out);
    assert_memory_equal(out, rows, sizeof out);
    assert_false(ps_row_store_has(twin.stores[0], 1));
    job_fini(&twin);
    job_fini(&j);
}

TEST(pieces_that_are_none)
{
    job j;
    uint64_t piece[8] = {0};
    uint32_t *words = (uint32_t *)(void *)piece;
    job_init(&j, 2);
    ps_row_store *s = j.stores[0];
    for (uint64_t id = 0; ps_row_table_owns(&s->tables[0], id); id++)
        piece[1] = id + 1; // the other shard's
    assert_ok(ps_row_store_put(s, piece, 8));
    assert_error(ps_row_store_put(s, piece, 7), PS_ERR_PROTOCOL, "7 bytes");
    assert_error(ps_row_store_put(s, piece, 20), PS_ERR_PROTOCOL, "12 bytes");
    assert_error(ps_row_store_put(s, piece, 24), PS_ERR_PROTOCOL, "16 bytes");
    words[5] = PS_ROW_CANDIDATE;
    assert_error(ps_row_store_put(s, piece, 24), PS_ERR_PROTOCOL, "malformed");
    words[5] = 1;
    assert_error(ps_row_store_put(s, piece, 24), PS_ERR_PROTOCOL,
                 "table0, which another");
    words[0] = TABLES;
    assert_error(ps_row_store_put(s, piece, 24), PS_ERR_PROTOCOL, "malformed");
    words[0] = 0;
    words[1] = 1;
    assert_error(ps_row_store_put(s, piece, 24), PS_ERR_PROTOCOL, "malformed");
    job_fini(&j);
}

/* ---- files ---- */

static void job_write(job *j, const char *name, ps_row_writes writes, uint64_t point,
                      uint64_t step, ps_row_manifest *m)
{
    job_point(j, point, step);
    m->point = point;
    m->step = step;
    for (uint32_t i = 0; i < j->n; i++) {
        uint64_t since;
        ps_row_manifest_file files[TABLES];
        assert_ok(
            ps_row_store_write(j->stores[i], temp_path(name), i, writes, &since, files));
        for (uint32_t t = 0; t < TABLES; t++) {
            assert_ok(ps_row_manifest_add(m, &files[t]));
            m->tables[t].steps = j->stores[i]->clocks[t].made;
        }
    }
}

static ps_err job_read(job *j, const ps_row_manifest *m)
{
    for (uint32_t i = 0; i < j->n; i++)
        PS_TRY(ps_row_store_read(j->stores[i], folder.path, m, i, j->n));
    return PS_OK;
}

/* As text and back. */
static ps_row_manifest through_text(ps_row_manifest *m)
{
    char *text;
    ps_row_manifest out;
    assert_ok(ps_row_manifest_write(m, &text));
    assert_ok(ps_row_manifest_read(text, strlen(text), &out));
    free(text);
    ps_row_manifest_fini(m);
    return out;
}

/* As if from a state that another job had saved: at `clock`, in the job's step. */
static void job_take(job *j, const job *from, uint64_t clock, uint64_t step)
{
    for (uint32_t t = 0; t < TABLES; t++) {
        ps_row_view *views;
        uint64_t n;
        ps_row_table *to = &j->stores[0]->tables[t];
        assert_ok(ps_row_table_list(&from->stores[0]->tables[t], 0, PS_ROW_PARTITIONS, 0,
                                    &views, &n));
        assert_ok(ps_row_table_clear(to));
        for (uint64_t i = 0; i < n; i++)
            assert_ok(ps_row_table_put(to, &views[i]));
        free(views);
        j->stores[0]->clocks[t] =
            (ps_row_clock){from->stores[0]->clocks[t].made, clock - step};
    }
    j->stores[0]->loads++;
}

/* Of two points with the same versions each is found, and files have the clock. */
IN_FOLDER(rows_of_another_job_keep_their_ages)
{
    job j, other, again;
    ps_row_spec specs[TABLES];
    ps_row_manifest m;
    specs_of(specs);
    job_init(&j, 1);
    job_init(&other, 1);
    job_steps(&j, 0, 3);
    job_steps(&j, 4, 6);
    job_point(&j, 1, 6);
    job_steps(&other, 0, 4);
    job_take(&j, &other, 4, 6);
    job_steps(&j, 4, 6); // its 6th and 7th
    assert_ok(ps_row_manifest_init(&m, specs, TABLES));
    job_write(&j, "one", PS_ROW_WRITE_FIRST, 2, 8, &m);
    job_steps(&j, 6, 7);
    job_write(&j, "two", PS_ROW_WRITE_CHANGES, 3, 9, &m);
    job_init(&again, 1);
    assert_ok(job_read(&again, &m));
    job_steps(&again, 7, 11);
    assert_as_after(&again, 11);
    for (uint32_t t = 0; t < TABLES; t++)
        assert_true(again.stores[0]->clocks[t].ahead == (uint64_t)-2);
    job_return(&j, 2, 8);
    assert_as_after(&j, 6);
    job_fini(&j);
    // From a later point to one with the same versions, and another clock.
    job_init(&j, 1);
    job_steps(&j, 0, 3);
    job_steps(&j, 4, 6);
    job_point(&j, 1, 6);
    job_take(&j, &other, 4, 6);
    job_steps(&j, 4, 6);
    job_point(&j, 2, 8);
    job_steps(&j, 6, 8);
    job_return(&j, 1, 6);
    job_fini(&again);
    job_init(&again, 1);
    job_steps(&again, 0, 3);
    job_steps(&again, 4, 6);
    assert_same_jobs(&j, &again);
    assert_true(j.stores[0]->clocks[0].ahead == 0);
    ps_row_manifest_fini(&m);
    job_fini(&again);
    job_fini(&other);
    job_fini(&j);
}

IN_FOLDER(another_number_of_shards_goes_on)
{
    job two, three;
    ps_row_spec specs[TABLES];
    ps_row_manifest m;
    specs_of(specs);
    job_init(&two, 2);
    assert_ok(ps_row_manifest_init(&m, specs, TABLES));
    job_steps(&two, 0, 6);
    job_write(&two, "one", PS_ROW_WRITE_FIRST, 5, 6, &m);
    job_steps(&two, 6, 15);
    job_write(&two, "two", PS_ROW_WRITE_CHANGES, 6, 15, &m);
    assert_int_equal(m.n_files, 2 * 2 * TABLES);
    m = through_text(&m);
    job_init(&three, 3);
    assert_ok(job_read(&three, &m));
    assert_as_after(&three, 15);
    job_steps(&three, 15, 22);
    assert_as_after(&three, 22);
    ps_row_manifest_fini(&m);
    job_fini(&two);
    job_fini(&three);
}

/* Writes what has changed since the last files, where that is known. */
static ps_row_manifest write_changes(job *j, const char *name, uint64_t point,
                                     uint64_t step, bool known)
{
    ps_row_spec specs[TABLES];
    ps_row_manifest m;
    specs_of(specs);
    assert_ok(ps_row_manifest_init(&m, specs, TABLES));
    job_write(j, name, PS_ROW_WRITE_CHANGES, point, step, &m);
    for (uint32_t i = 0; i < m.n_files; i++)
        assert_int_equal(m.files[i].changes, known);
    return m;
}

/* Shards that have read files of others, and have gone back, know no files to which they
 * could add: they write all rows. */
IN_FOLDER(changes_of_another_number_of_shards)
{
    job two, three, one;
    job_init(&two, 2);
    job_init(&three, 3);
    job_init(&one, 1);
    job_steps(&two, 0, 6);
    ps_row_manifest m = write_changes(&two, "two", 5, 6, false);
    assert_ok(job_read(&three, &m));
    ps_row_manifest_fini(&m);
    job_steps(&three, 6, 9);
    ps_row_manifest full = write_changes(&three, "full", 6, 9, false);
    job_steps(&three, 9, 12);
    m = write_changes(&three, "some", 7, 12, true);
    ps_row_manifest_fini(&m);
    job_steps(&three, 12, 14);
    job_return(&three, 7, 12);
    job_steps(&three, 12, 16);
    m = write_changes(&three, "again", 8, 16, false);
    assert_ok(job_read(&one, &m));
    assert_as_after(&one, 16);
    ps_row_manifest_fini(&m);
    ps_row_manifest_fini(&full);
    job_fini(&one);
    job_fini(&three);
    job_fini(&two);
}

/* Where full files follow one to which others were to be added. */
IN_FOLDER(dropped_ids_are_noted_only_for_changes)
{
    job j;
    ps_row_spec specs[TABLES];
    ps_row_manifest m;
    specs_of(specs);
    job_init(&j, 1);
    assert_ok(ps_row_manifest_init(&m, specs, TABLES));
    const ps_row_table *table = &j.stores[0]->tables[0];
    job_steps(&j, 0, 6);
    job_write(&j, "first", PS_ROW_WRITE_FIRST, 5, 6, &m);
    job_steps(&j, 6, 12);
    assert_true(table->n_drops > 0);
    job_write(&j, "full", PS_ROW_WRITE_FULL, 6, 12, &m);
    job_steps(&j, 12, 18);
    assert_int_equal(table->n_drops, 0);
    ps_row_manifest_fini(&m);
    job_fini(&j);
}

static ps_err read_anew(const ps_row_manifest *m)
{
    job j;
    job_init(&j, 3);
    const ps_err err = job_read(&j, m);
    job_fini(&j);
    return err;
}

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    const int byte = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    fputc(byte ^ 1, f);
    fclose(f);
}

IN_FOLDER(what_is_damaged_or_missing_has_a_name)
{
    job two;
    ps_row_spec specs[TABLES];
    ps_row_manifest m;
    specs_of(specs);
    job_init(&two, 2);
    assert_ok(ps_row_manifest_init(&m, specs, TABLES));
    job_steps(&two, 0, 6);
    job_write(&two, "one", PS_ROW_WRITE_FULL, 5, 6, &m);
    assert_ok(read_anew(&m));
    char path[400];
    snprintf(path, sizeof path, "%s-1-0", temp_path("one"));
    for (long at = 0; at < (long)m.files[1].bytes; at += 97) {
        flip(path, at);
        assert_error(read_anew(&m), PS_ERR_FORMAT, "one-1-0");
        assert_non_null(
            strstr(ps_err_message(), "Remove each checkpoint that has this file"));
        flip(path, at);
    }
    assert_ok(read_anew(&m));
    m.files[2] = m.files[0]; // table 0 of shard 1
    assert_error(read_anew(&m), PS_ERR_FORMAT, "table0");
    assert_int_equal(unlink(path), 0);
    assert_error(read_anew(&m), PS_ERR_IO, "one-1-0: No such file");
    assert_non_null(strstr(ps_err_message(), "Is it lost? Remove each checkpoint"));
    assert_error(ps_row_manifest_check(&m, specs, 1), PS_ERR_SHAPE, "of 2 tables");
    strcpy(specs[1].name, "other");
    assert_error(ps_row_manifest_check(&m, specs, TABLES), PS_ERR_SHAPE, "other now");
    ps_row_manifest_fini(&m);
    job_fini(&two);
}

TEST(manifests_that_are_none)
{
    static const char *const texts[] = {
        "",
        "{}",
        "[]",
        "{\"rows\": 2}",
        "{\"rows\": 1, \"point\": 0, \"step\": 1}",
        "{\"rows\": 1, \"point\": 1, \"step\": -1}",
        "{\"rows\": 1, \"point\": 1, \"step\": 1, \"tables\": [], \"files\": []}",
        "{\"rows\": 1, \"point\": 1, \"step\": 1, \"tables\": [7], \"files\": []}",
        "{\"rows\": 1, \"point\": 1, \"step\": 1, \"tables\": [{\"name\": \"a\", "
        "\"steps\": 1}], \"files\": [{\"name\": \"../a\", \"table\": 0, \"changes\": "
        "false, \"bytes\": 1, \"crc32\": 1}]}",
        "{\"rows\": 1, \"point\": 1, \"step\": 1, \"tables\": [{\"name\": \"a\", "
        "\"steps\": 1}], \"files\": [{\"name\": \"a\", \"table\": 1, \"changes\": "
        "false, \"bytes\": 1, \"crc32\": 1}]}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        ps_row_manifest m;
        assert_error(ps_row_manifest_read(texts[i], strlen(texts[i]), &m), PS_ERR_FORMAT,
                     "manifest of rows");
    }
}
