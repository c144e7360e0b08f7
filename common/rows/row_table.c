#include "row_table.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "finite.h"
#include "mem.h"
#include "row_init.h"
#include "row_loops.h"

/* Ids are looked up in small blocks: while the rows of block k are computed with, those
 * of the blocks up to k + AHEAD are on their way to the cache, and the buckets of the
 * blocks up to k + 2 AHEAD. */
enum { BLOCK = 8, AHEAD = 4, N_BLOCKS = 2 * AHEAD + 1, LINE = 64 };

ps_err ps_row_step_init(ps_row_step *step, uint32_t n_ranks, ps_row_key key)
{
    *step = (ps_row_step){.n_ranks = n_ranks, .is_ordered = true};
    ps_row_set_init(&step->touched, key);
    return PS_NEW(&step->pulls, n_ranks, "pulls of a step");
}

void ps_row_step_fini(ps_row_step *step)
{
    for (uint32_t r = 0; step->pulls && r < step->n_ranks; r++)
        free(step->pulls[r].positions);
    free(step->pulls);
    ps_row_set_fini(&step->touched);
    *step = (ps_row_step){0};
}

void ps_row_step_clear(ps_row_step *step)
{
    for (uint32_t r = 0; r < step->n_ranks; r++)
        step->pulls[r].n = 0;
    step->last = 0;
    step->is_ordered = true;
    ps_row_set_clear(&step->touched);
}

ps_err ps_row_step_pull(ps_row_step *step, uint32_t rank, uint32_t n, const uint64_t *ids)
{
    struct ps_row_pull *pull = &step->pulls[rank];
    if (pull->room - pull->n < n) {
        const uint64_t room = (uint64_t)pull->n + n + n / 4;
        uint32_t *more =
            room <= UINT32_MAX ? realloc(pull->positions, room * sizeof *more) : NULL;
        if (!more) return ps_err_set(PS_ERR_NOMEM, "no memory for a pull of %u rows", n);
        pull->positions = more;
        pull->room = (uint32_t)room;
    }
    PS_TRY(ps_row_set_add(&step->touched, n, ids, pull->positions + pull->n));
    pull->n += n;
    step->is_ordered &= rank >= step->last;
    step->last = rank;
    return PS_OK;
}

ps_err ps_row_table_init(ps_row_table *table, const ps_row_spec *spec, ps_row_key key,
                         uint32_t first, uint32_t end, ps_row_memory *memory)
{
    *table = (ps_row_table){.spec = *spec,
                            .key = key,
                            .salt = ps_row_hash_salt(spec->number),
                            .first_partition = first,
                            .end_partition = end,
                            .partition_rows = UINT32_MAX,
                            .drops_since = UINT64_MAX,
                            .hand = first};
    const uint64_t rows =
        spec->max_bytes / ps_row_spec_row_bytes(spec) / PS_ROW_PARTITIONS;
    if (spec->max_bytes > 0 && rows < UINT32_MAX) table->partition_rows = (uint32_t)rows;
    ps_row_slab_init(&table->slab, ps_row_spec_width(spec), memory, false);
    ps_row_slab_init(&table->cold, ps_row_spec_width(spec), memory, true);
    ps_row_undo_init(&table->undo, ps_row_spec_width(spec));
    return ps_row_index_init(&table->index, table->salt, key, memory);
}

void ps_row_table_fini(ps_row_table *table)
{
    ps_row_index_fini(&table->index);
    ps_row_slab_fini(&table->slab);
    ps_row_slab_fini(&table->cold);
    ps_row_undo_fini(&table->undo);
    ps_mem_unmap(table->sums, table->sums_room * sizeof *table->sums);
    free(table->drops);
    free(table->warm.ids);
    free(table->old.ids);
    *table = (ps_row_table){0};
}

static uint32_t table_partition(const ps_row_table *table, uint64_t id)
{
    return ps_row_partition(ps_row_hash(table->salt, id));
}

bool ps_row_table_owns(const ps_row_table *table, uint64_t id)
{
    const uint32_t partition = table_partition(table, id);
    return partition >= table->first_partition && partition < table->end_partition;
}

ps_err ps_row_table_check_ids(const ps_row_table *table, uint64_t n, const uint64_t *ids)
{
    for (uint64_t i = 0; i < n; i++)
        if (!ps_row_table_owns(table, ids[i]))
            return ps_err_set(PS_ERR_PROTOCOL,
                              "id %" PRIu64 " of table %s, which another shard has",
                              ids[i], table->spec.name);
    return PS_OK;
}

/* Of an entry that is a row. */
static float *table_slot_row(const ps_row_table *table, uint32_t slot)
{
    if (slot & PS_ROW_COLD)
        return ps_row_slab_row(&table->cold, (slot & ~PS_ROW_COLD) - 1);
    return ps_row_slab_row(&table->slab, slot - 1);
}

static void table_give_slot(ps_row_table *table, uint32_t slot)
{
    ps_row_slab *slab = slot & PS_ROW_COLD ? &table->cold : &table->slab;
    ps_row_slab_give(slab, (slot & ~PS_ROW_COLD) - 1);
}

static ps_err table_take_slot(ps_row_table *table, bool cold, uint32_t *slot)
{
    PS_TRY(ps_row_slab_take(cold ? &table->cold : &table->slab, slot));
    *slot = (*slot + 1) | (cold ? PS_ROW_COLD : 0);
    return PS_OK;
}

/* The row of an entry; NULL: there is no entry, or it is no row yet. */
static float *table_row(const ps_row_table *table, const ps_row_entry *e)
{
    if (!e || e->slot == 0 || e->slot & PS_ROW_CANDIDATE) return NULL;
    return table_slot_row(table, e->slot);
}

typedef struct id_block {
    const uint64_t *ids;
    uint64_t begin;
    uint32_t n;
    uint64_t hashes[BLOCK];
    float *rows[BLOCK];
    ps_row_entry before[BLOCK];
} id_block;

/* Block k of n ids, whose buckets are then on their way to the cache. */
static void table_hash(const ps_row_table *table, id_block *b, uint64_t k,
                       const uint64_t *ids, uint64_t n)
{
    b->begin = k * BLOCK;
    b->ids = ids + b->begin;
    b->n = n - b->begin < BLOCK ? (uint32_t)(n - b->begin) : BLOCK;
    for (uint32_t i = 0; i < b->n; i++) {
        b->hashes[i] = ps_row_index_hash(&table->index, b->ids[i]);
        __builtin_prefetch(ps_row_index_bucket(&table->index, b->hashes[i]));
    }
}

/* Each line of a row once. */
static void row_prefetch(const float *row, uint32_t n)
{
    const uintptr_t end = (uintptr_t)(row + n);
    for (uintptr_t line = (uintptr_t)row / LINE * LINE; line < end; line += LINE)
        __builtin_prefetch((const void *)line, 1);
}

/* Finds the rows of a block, which are then on their way; initial ones go to out at once.
 */
static void table_find(const ps_row_table *table, id_block *b, float *out)
{
    const uint32_t dim = table->spec.dim;
    for (uint32_t i = 0; i < b->n; i++) {
        b->rows[i] =
            table_row(table, ps_row_index_find(&table->index, b->hashes[i], b->ids[i]));
        if (b->rows[i])
            row_prefetch(b->rows[i], dim);
        else
            ps_row_init_fill(&table->spec, b->ids[i], out + (b->begin + i) * dim);
    }
}

void ps_row_table_read(const ps_row_table *table, uint64_t n, const uint64_t *ids,
                       float *out)
{
    const uint64_t n_blocks = (n + BLOCK - 1) / BLOCK;
    id_block blocks[N_BLOCKS];
    for (uint64_t k = 0; k < n_blocks + 2 * AHEAD; k++) {
        if (k < n_blocks) table_hash(table, &blocks[k % N_BLOCKS], k, ids, n);
        if (k >= AHEAD && k - AHEAD < n_blocks)
            table_find(table, &blocks[(k - AHEAD) % N_BLOCKS], out);
        if (k < 2 * AHEAD) continue;
        const id_block *b = &blocks[(k - 2 * AHEAD) % N_BLOCKS];
        ps_row_loops_gather(table->spec.dim, b->n, (const float *const *)b->rows,
                            out + b->begin * table->spec.dim);
    }
}

/* ---- Applying a step ---- */

static ps_err table_sums_room(ps_row_table *table, uint64_t n)
{
    enum { PAGE = 4096 };
    if (n <= table->sums_room) return PS_OK;
    const uint64_t bytes = (n + n / 4) * sizeof(float) / PAGE * PAGE + PAGE;
    ps_mem_unmap(table->sums, table->sums_room * sizeof *table->sums);
    table->sums = NULL;
    table->sums_room = 0;
    PS_TRY(ps_mem_map_large(&table->sums, bytes, "gradients of rows"));
    table->sums_room = bytes / sizeof(float);
    return PS_OK;
}

static ps_err table_refuse_sum(const ps_row_table *table, const ps_row_step *step)
{
    uint32_t i = 0;
    while (ps_finite_all(table->sums + (uint64_t)i * table->spec.dim, table->spec.dim))
        i++;
    return ps_err_set(PS_ERR_NUMERIC,
                      "table '%s': the gradient of id %" PRId64
                      " is not finite; a lower learning rate may help",
                      table->spec.name, (int64_t)step->touched.ids[i]);
}

/* Zeros for the rows that only a rank without a gradient has pulled. */
static void table_fill(ps_row_table *table, const struct ps_row_pull *pull,
                       uint32_t *filled)
{
    const uint32_t dim = table->spec.dim;
    for (uint32_t i = 0; i < pull->n; i++)
        if (pull->positions[i] == *filled)
            memset(table->sums + (uint64_t)(*filled)++ * dim, 0,
                   dim * sizeof *table->sums);
}

/* In the order of the ranks, from zeros, as index_add_ does it. Where the ranks have
 * pulled in this order, rows are first touched in that of their positions, so that none
 * has to be cleared before. */
static ps_err table_sum(ps_row_table *table, const ps_row_step *step,
                        const float *const *grads)
{
    const uint32_t dim = table->spec.dim;
    const uint64_t n = (uint64_t)step->touched.n * dim;
    if (n == 0) return PS_OK;
    PS_TRY(table_sums_room(table, n));
    uint32_t filled = step->is_ordered ? 0 : step->touched.n;
    if (!step->is_ordered) memset(table->sums, 0, n * sizeof *table->sums);
    for (uint32_t r = 0; r < step->n_ranks; r++)
        if (grads[r])
            ps_row_loops_add(dim, step->pulls[r].n, step->pulls[r].positions, grads[r],
                             table->sums, &filled);
        else
            table_fill(table, &step->pulls[r], &filled);
    return ps_finite_all(table->sums, n) ? PS_OK : table_refuse_sum(table, step);
}

static ps_row_scalars table_scalars(const ps_row_spec *spec, const ps_row_update *update)
{
    double lr = update->lr;
    const double t = (double)update->t;
    if (spec->optimizer == PS_ROW_ADAGRAD) lr /= 1 + (t - 1) * spec->lr_decay;
    if (spec->optimizer == PS_ROW_SPARSE_ADAM)
        lr = lr * sqrt(1 - pow(spec->beta2, t)) / (1 - pow(spec->beta1, t));
    return (ps_row_scalars){.optimizer = spec->optimizer,
                            .lr_neg = (float)-lr,
                            .eps = (float)spec->eps,
                            .lerp1 = (float)(1 - spec->beta1),
                            .lerp2 = (float)(1 - spec->beta2)};
}

/* Rows from elsewhere begin in the file, if there is one: which are warm is not known. */
static bool table_is_first_cold(const ps_row_table *table)
{
    return table->slab.memory->folder != NULL;
}

/* An entry's slot for a new row: with initial weights and state. */
static ps_err table_new_row(ps_row_table *table, uint64_t id, bool cold, uint32_t *slot)
{
    const ps_row_spec *spec = &table->spec;
    const bool sums =
        spec->optimizer == PS_ROW_ADAGRAD || spec->optimizer == PS_ROW_ROWWISE_ADAGRAD;
    PS_TRY(table_take_slot(table, cold, slot));
    float *row = table_slot_row(table, *slot);
    ps_row_init_fill(spec, id, row);
    for (uint32_t i = spec->dim; i < ps_row_spec_width(spec); i++)
        row[i] = sums ? (float)spec->initial_accumulator : 0.0f;
    table->stats.rows++;
    return PS_OK;
}

/* Gives an id an entry, which it has not, or another slot. */
static ps_err table_point(ps_row_table *table, uint64_t hash, uint64_t id,
                          ps_row_entry *e, uint32_t slot, uint32_t version)
{
    if (!e) PS_TRY(ps_row_index_insert(&table->index, hash, id, &e));
    if (e->slot & PS_ROW_CANDIDATE) table->stats.candidates--;
    if (slot & PS_ROW_CANDIDATE) table->stats.candidates++;
    e->slot = slot;
    e->version = version;
    return PS_OK;
}

static ps_err table_note_id(struct ps_row_ids *list, uint64_t id)
{
    PS_TRY(ps_mem_room(&list->ids, list->n, &list->room, sizeof id, "ids of rows"));
    list->ids[list->n++] = id;
    return PS_OK;
}

/* Whether a row in the file that has a gradient now should be in memory. */
static bool table_is_warm(const ps_row_table *table, const ps_row_entry *before)
{
    return before->slot & PS_ROW_COLD &&
           (before->version > table->began[0] || ps_row_slab_has_room(&table->slab));
}

/* Notes a gradient for an id. *before: its entry before; slot 0: none. *row: NULL where
 * it is not admitted yet. */
static ps_err table_touch(ps_row_table *table, uint64_t hash, uint64_t id,
                          uint32_t version, ps_row_entry *before, float **row)
{
    ps_row_entry *e = ps_row_index_find(&table->index, hash, id);
    *before = e ? *e : (ps_row_entry){.id = id};
    *row = table_row(table, e);
    if (*row) {
        e->version = version;
        return table_is_warm(table, before) ? table_note_id(&table->warm, id) : PS_OK;
    }
    const uint32_t count = (before->slot & ~PS_ROW_CANDIDATE) + 1;
    uint32_t slot;
    if (count < table->spec.admit)
        return table_point(table, hash, id, e, PS_ROW_CANDIDATE | count, version);
    PS_TRY(table_new_row(table, id, !ps_row_slab_has_room(&table->slab), &slot));
    PS_TRY(table_point(table, hash, id, e, slot, version));
    *row = table_slot_row(table, slot);
    return PS_OK;
}

typedef struct ids_there {
    const ps_row_table *table;
    ps_row_set told;
} ids_there;

static bool table_tells_once(void *ctx, uint64_t id)
{
    ids_there *there = ctx;
    const ps_row_index *index = &there->table->index;
    uint32_t position;
    const uint32_t n = there->told.n;
    if (!ps_row_index_find(index, ps_row_index_hash(index, id), id)) return false;
    return ps_row_set_add(&there->told, 1, &id, &position) != PS_OK || there->told.n > n;
}

/* Those that came after the mark and are gone need not be undone. */
static void table_shorten_undo(ps_row_table *table)
{
    ids_there there = {.table = table};
    ps_row_set_init(&there.told, table->key);
    ps_row_undo_shorten(&table->undo, table_tells_once, &there);
    ps_row_set_fini(&there.told);
}

/* The entry as it was before a write, for the undo log. */
static ps_err table_keep(ps_row_table *table, const ps_row_entry *before)
{
    const bool is_new = before->slot == 0;
    if (is_new ? table->undo.n == 0 : !ps_row_undo_wants(&table->undo, before->version))
        return PS_OK;
    if (is_new &&
        ps_row_undo_is_long(&table->undo, table->stats.rows + table->stats.candidates))
        table_shorten_undo(table);
    return ps_row_undo_keep(&table->undo, before, table_row(table, before));
}

/* Makes the optimizer's step on all rows that have a gradient. */
static ps_err table_apply_rows(ps_row_table *table, const ps_row_scalars *scalars,
                               uint32_t version, const ps_row_set *touched)
{
    const uint64_t n = touched->n, n_blocks = (n + BLOCK - 1) / BLOCK;
    id_block blocks[N_BLOCKS];
    for (uint64_t k = 0; k < n_blocks + 2 * AHEAD; k++) {
        id_block *b = &blocks[k % N_BLOCKS];
        if (k < n_blocks) table_hash(table, b, k, touched->ids, n);
        b = &blocks[(k + N_BLOCKS - AHEAD) % N_BLOCKS];
        for (uint32_t i = 0; k >= AHEAD && k - AHEAD < n_blocks && i < b->n; i++) {
            PS_TRY(table_touch(table, b->hashes[i], b->ids[i], version, &b->before[i],
                               &b->rows[i]));
            if (b->rows[i]) row_prefetch(b->rows[i], table->slab.stride);
        }
        if (k < 2 * AHEAD) continue;
        b = &blocks[(k + N_BLOCKS - 2 * AHEAD) % N_BLOCKS];
        for (uint32_t i = 0; table->undo.n > 0 && i < b->n; i++)
            PS_TRY(table_keep(table, &b->before[i]));
        ps_row_loops_apply(scalars, table->spec.dim, b->n, b->rows,
                           table->sums + b->begin * table->spec.dim);
    }
    return PS_OK;
}

/* ---- What is dropped at the end of a step ---- */

/* Removes an entry; its row goes back to the slab. */
static void table_take_out(ps_row_table *table, ps_row_entry *e)
{
    if (e->slot & PS_ROW_CANDIDATE) {
        table->stats.candidates--;
    } else {
        table_give_slot(table, e->slot);
        table->stats.rows--;
    }
    ps_row_index_remove(&table->index, e);
}

static ps_err table_note_drop(ps_row_table *table, uint64_t id, uint32_t version)
{
    if (table->drops_since == UINT64_MAX) return PS_OK;
    if (table->n_drops == table->drops_room) {
        const uint64_t room = table->drops_room > 0 ? 2 * table->drops_room : 1024;
        ps_row_drop *more = realloc(table->drops, room * sizeof *more);
        if (!more)
            return ps_err_set(PS_ERR_NOMEM,
                              "table '%s': no memory for %" PRIu64 " dropped ids",
                              table->spec.name, room);
        table->drops = more;
        table->drops_room = room;
    }
    table->drops[table->n_drops++] = (ps_row_drop){.id = id, .version = version};
    return PS_OK;
}

/* Drops an entry for good, in the step that makes this version. */
static ps_err table_drop(ps_row_table *table, ps_row_entry *e, uint32_t version)
{
    PS_TRY(table_note_drop(table, e->id, version));
    PS_TRY(table_keep(table, e));
    table_take_out(table, e);
    return PS_OK;
}

void ps_row_table_forget(ps_row_table *table, uint64_t version)
{
    uint64_t n = 0;
    for (uint64_t i = 0; i < table->n_drops; i++)
        if (table->drops[i].version > version) table->drops[n++] = table->drops[i];
    table->n_drops = n;
    table->drops_since = version;
    if (n > 0) return;
    free(table->drops);
    table->drops = NULL;
    table->drops_room = 0;
}

/* Whether the step looks through the partition: they take turns. */
static bool table_looks_through(const ps_row_table *table, uint32_t partition,
                                uint64_t step)
{
    const uint32_t quarter = table->spec.expire / 4;
    const uint32_t every = quarter < 1                   ? 1
                           : quarter < PS_ROW_PARTITIONS ? quarter
                                                         : PS_ROW_PARTITIONS;
    return table->spec.expire > 0 && partition % every == step % every;
}

static bool table_has_expired(const ps_row_table *table, const ps_row_entry *e,
                              uint64_t step)
{
    return (uint64_t)e->version + table->spec.expire <= step + 1;
}

/* Of partitions first .. end - 1, which share segments. */
static ps_err table_expire(ps_row_table *table, uint32_t first, uint32_t end,
                           uint64_t step)
{
    uint32_t wanted = 0;
    for (uint32_t p = first; p < end; p++)
        if (table_looks_through(table, p, step)) wanted += table->index.counts[p];
    if (wanted == 0) return PS_OK;
    ps_row_cursor c = ps_row_cursor_at(&table->index, first, end);
    for (ps_row_entry *e; (e = ps_row_cursor_next(&table->index, &c));) {
        if (!table_has_expired(table, e, step) ||
            !table_looks_through(table, table_partition(table, e->id), step))
            continue;
        PS_TRY(table_drop(table, e, (uint32_t)step + 1));
        ps_row_cursor_back(&c);
        table->stats.expired++;
    }
    return PS_OK;
}

static bool drop_is_before(const ps_row_drop *a, const ps_row_drop *b)
{
    return a->version != b->version ? a->version < b->version : a->id < b->id;
}

static void drops_swap(ps_row_drop *a, ps_row_drop *b)
{
    const ps_row_drop kept = *a;
    *a = *b;
    *b = kept;
}

/* Moves the k oldest of n to the front: quickselect (Hoare 1961). No two are equal. */
static void drops_select(ps_row_drop *x, uint32_t n, uint32_t k)
{
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t pivot = low;
        drops_swap(&x[low + (high - low) / 2], &x[high - 1]);
        for (uint32_t i = low; i < high - 1; i++)
            if (drop_is_before(&x[i], &x[high - 1])) drops_swap(&x[i], &x[pivot++]);
        drops_swap(&x[pivot], &x[high - 1]);
        if (k == pivot) return;
        if (k < pivot)
            high = pivot;
        else
            low = pivot + 1;
    }
}

/* The oldest rows go until an eighth of the bound is free, so that not every step has to
 * look for them. */
static ps_err table_evict(ps_row_table *table, uint32_t partition, uint32_t version)
{
    const uint32_t n = table->index.counts[partition];
    const uint32_t most = table->partition_rows, too_many = n - (most - most / 8);
    ps_row_drop *all;
    PS_TRY(PS_NEW(&all, n, "rows to evict"));
    ps_row_cursor c = ps_row_cursor_at(&table->index, partition, partition + 1);
    uint32_t at = 0;
    for (ps_row_entry *e; (e = ps_row_cursor_next(&table->index, &c));)
        all[at++] = (ps_row_drop){.id = e->id, .version = e->version};
    drops_select(all, n, too_many);
    ps_err err = PS_OK;
    for (uint32_t i = 0; err == PS_OK && i < too_many; i++) {
        const uint64_t hash = ps_row_index_hash(&table->index, all[i].id);
        err =
            table_drop(table, ps_row_index_find(&table->index, hash, all[i].id), version);
        table->stats.evicted++;
    }
    free(all);
    return err;
}

static ps_err table_refuse_growth(const ps_row_table *table)
{
    const ps_row_spec *spec = &table->spec;
    return ps_err_set(
        PS_ERR_NOMEM,
        "table '%s' has reached max_bytes %" PRIu64 " with %" PRIu64 " rows and %" PRIu64
        " ids that are not admitted yet, which count as rows, in %u of %d "
        "partitions: raise it, let rows expire, or evict the oldest",
        spec->name, spec->max_bytes, table->stats.rows, table->stats.candidates,
        table->end_partition - table->first_partition, PS_ROW_PARTITIONS);
}

static ps_err table_bound(ps_row_table *table, uint64_t step)
{
    const uint32_t end = table->end_partition;
    uint64_t all = 0;
    for (uint32_t p = table->first_partition, next; table->spec.expire && p < end;
         p = next) {
        next = ps_row_index_group_end(&table->index, p);
        PS_TRY(table_expire(table, p, next < end ? next : end, step));
    }
    if (table->partition_rows == UINT32_MAX) return PS_OK;
    for (uint32_t p = table->first_partition; p < end; p++) {
        if (table->index.counts[p] > table->partition_rows &&
            table->spec.full == PS_ROW_FULL_EVICT)
            PS_TRY(table_evict(table, p, (uint32_t)step + 1));
        all += table->index.counts[p];
    }
    const uint64_t owned = table->end_partition - table->first_partition;
    return all > owned * table->partition_rows ? table_refuse_growth(table) : PS_OK;
}

/* ---- Rows on a disk ---- */

static ps_row_entry *table_find_id(const ps_row_table *table, uint64_t id)
{
    return ps_row_index_find(&table->index, ps_row_index_hash(&table->index, id), id);
}

static bool table_is_old(const ps_row_table *table, const ps_row_entry *e)
{
    return !(e->slot & (PS_ROW_CANDIDATE | PS_ROW_COLD)) && e->version <= table->began[0];
}

/* Moves the hand on until it has found old rows, or has looked at *looks entries. */
static ps_err table_look_for_old(ps_row_table *table, uint32_t version, uint64_t *looks)
{
    while (table->old.n == 0 && *looks > 0) {
        uint64_t seen = 1;
        uint32_t end = ps_row_index_group_end(&table->index, table->hand);
        if (end > table->end_partition) end = table->end_partition;
        ps_row_cursor c = ps_row_cursor_at(&table->index, table->hand, end);
        for (const ps_row_entry *e; (e = ps_row_cursor_next(&table->index, &c)); seen++)
            if (table_is_old(table, e)) PS_TRY(table_note_id(&table->old, e->id));
        *looks -= seen < *looks ? seen : *looks;
        table->hand = end;
        if (end < table->end_partition) continue;
        table->hand = table->first_partition;
        table->began[0] = table->began[1];
        table->began[1] = version;
        *looks = 0; // a round takes a step at least
    }
    return PS_OK;
}

/* NULL: there is none any more. */
static ps_row_entry *table_next_old(ps_row_table *table)
{
    while (table->old.n > 0) {
        ps_row_entry *e = table_find_id(table, table->old.ids[--table->old.n]);
        if (e && table_is_old(table, e)) return e;
    }
    return NULL;
}

static void table_trade_places(ps_row_table *table, ps_row_entry *a, ps_row_entry *b)
{
    float *x = table_row(table, a), *y = table_row(table, b);
    const uint32_t slot = a->slot;
    for (uint32_t i = 0; i < ps_row_spec_width(&table->spec); i++) {
        const float kept = x[i];
        x[i] = y[i];
        y[i] = kept;
    }
    a->slot = b->slot;
    b->slot = slot;
}

static ps_err table_move_to_memory(ps_row_table *table, ps_row_entry *e)
{
    const float *from = table_row(table, e);
    uint32_t slot;
    PS_TRY(table_take_slot(table, false, &slot));
    memcpy(table_slot_row(table, slot), from,
           ps_row_spec_width(&table->spec) * sizeof *from);
    table_give_slot(table, e->slot);
    e->slot = slot;
    return PS_OK;
}

/* Takes the step's warm rows into memory, as far as it has room, or old ones to give. */
static ps_err table_warm(ps_row_table *table, uint32_t version)
{
    enum { LOOKS = 4096, LOOKS_EACH = 16 };
    uint64_t looks = LOOKS + (uint64_t)LOOKS_EACH * table->warm.n;
    while (table->warm.n > 0) {
        ps_row_entry *e = table_find_id(table, table->warm.ids[--table->warm.n]);
        if (!e || e->slot & PS_ROW_CANDIDATE || !(e->slot & PS_ROW_COLD)) continue;
        if (ps_row_slab_has_room(&table->slab)) {
            PS_TRY(table_move_to_memory(table, e));
            continue;
        }
        ps_row_entry *old = table_next_old(table);
        if (!old) {
            PS_TRY(table_look_for_old(table, version, &looks));
            old = table_next_old(table);
        }
        if (old)
            table_trade_places(table, e, old);
        else
            table->warm.n = 0;
    }
    return PS_OK;
}

/* Rows have no room for larger versions: they would be taken for old ones. */
static ps_err table_refuse_step(const ps_row_table *table, uint64_t step)
{
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "table '%s' has made %" PRIu64 " steps, and can make no more: save "
                      "its rows, and begin another job with them",
                      table->spec.name, step);
}

ps_err ps_row_table_apply(ps_row_table *table, const ps_row_step *step,
                          const ps_row_update *update, const float *const *grads)
{
    if (update->step >= UINT32_MAX) return table_refuse_step(table, update->step);
    const ps_row_scalars k = table_scalars(&table->spec, update);
    PS_TRY(table_sum(table, step, grads));
    PS_TRY(table_apply_rows(table, &k, (uint32_t)update->step + 1, &step->touched));
    PS_TRY(table_bound(table, update->step));
    return table_warm(table, (uint32_t)update->step + 1);
}

bool ps_row_table_changes(const ps_row_table *table, const ps_row_step *step, uint64_t s,
                          uint64_t id)
{
    if (ps_row_set_has(&step->touched, id)) return true;
    const uint64_t hash = ps_row_index_hash(&table->index, id);
    const uint32_t partition = ps_row_partition(hash);
    if (table->partition_rows < UINT32_MAX && table->spec.full == PS_ROW_FULL_EVICT &&
        (uint64_t)table->index.counts[partition] + step->touched.n >
            table->partition_rows)
        return true;
    if (!table_looks_through(table, partition, s)) return false;
    const ps_row_entry *e = ps_row_index_find(&table->index, hash, id);
    return e && table_has_expired(table, e, s);
}

/* ---- Rows from elsewhere; going back ---- */

/* The id's row or candidate becomes this one, whatever was there. */
static ps_err table_store(ps_row_table *table, const ps_row_entry *as, const float *row)
{
    const uint64_t hash = ps_row_index_hash(&table->index, as->id);
    ps_row_entry *e = ps_row_index_find(&table->index, hash, as->id);
    float *to = table_row(table, e);
    uint32_t slot = PS_ROW_CANDIDATE | as->slot;
    if (!row && to) { // it becomes a candidate
        table_take_out(table, e);
        e = NULL;
    } else if (row && to) {
        slot = e->slot;
    } else if (row) {
        PS_TRY(table_new_row(table, as->id, table_is_first_cold(table), &slot));
        to = table_slot_row(table, slot);
    }
    if (row) memcpy(to, row, ps_row_spec_width(&table->spec) * sizeof *row);
    return table_point(table, hash, as->id, e, slot, as->version);
}

/* Notes what an id is, before it becomes something else. */
static ps_err table_note(ps_row_table *table, uint64_t id)
{
    const uint64_t hash = ps_row_index_hash(&table->index, id);
    const ps_row_entry *e = ps_row_index_find(&table->index, hash, id);
    const ps_row_entry before = e ? *e : (ps_row_entry){.id = id};
    return table_keep(table, &before);
}

ps_err ps_row_table_put(ps_row_table *table, const ps_row_view *view)
{
    const ps_row_entry as = {
        .id = view->id, .slot = view->count, .version = view->version};
    PS_TRY(table_note(table, view->id));
    ps_row_undo_note_put(&table->undo);
    return table_store(table, &as, view->row);
}

ps_err ps_row_table_set(ps_row_table *table, uint64_t n, const uint64_t *ids,
                        const float *weights, uint64_t version)
{
    const uint32_t dim = table->spec.dim;
    ps_row_undo_note_put(&table->undo);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t hash = ps_row_index_hash(&table->index, ids[i]);
        uint32_t slot;
        PS_TRY(ps_row_table_remove(table, ids[i]));
        PS_TRY(table_new_row(table, ids[i], table_is_first_cold(table), &slot));
        memcpy(table_slot_row(table, slot), weights + i * dim, dim * sizeof *weights);
        PS_TRY(table_point(table, hash, ids[i], NULL, slot, (uint32_t)version));
    }
    return PS_OK;
}

ps_err ps_row_table_remove(ps_row_table *table, uint64_t id)
{
    const uint64_t hash = ps_row_index_hash(&table->index, id);
    PS_TRY(table_note(table, id));
    ps_row_entry *e = ps_row_index_find(&table->index, hash, id);
    if (e) table_take_out(table, e);
    return PS_OK;
}

ps_err ps_row_table_clear(ps_row_table *table)
{
    ps_row_cursor c =
        ps_row_cursor_at(&table->index, table->first_partition, table->end_partition);
    for (ps_row_entry *e; (e = ps_row_cursor_next(&table->index, &c));) {
        PS_TRY(table_keep(table, e));
        table_take_out(table, e);
        ps_row_cursor_back(&c);
    }
    return PS_OK;
}

void ps_row_table_mark(ps_row_table *table, uint64_t name, uint64_t version)
{
    ps_row_undo_mark(&table->undo, name, (uint32_t)version);
}

/* Undoes all that the newest mark has. */
static ps_err table_undo_mark(ps_row_table *table)
{
    ps_row_entry as;
    const float *row;
    while (ps_row_undo_take(&table->undo, &as, &row)) {
        const uint64_t hash = ps_row_index_hash(&table->index, as.id);
        ps_row_entry *e = ps_row_index_find(&table->index, hash, as.id);
        if (as.slot == 0 && e)
            table_take_out(table, e);
        else if (as.slot != 0)
            PS_TRY(table_store(table, &as, row));
    }
    return PS_OK;
}

ps_err ps_row_table_undo(ps_row_table *table, uint64_t name)
{
    ps_row_undo *undo = &table->undo;
    bool found = false;
    for (uint32_t i = 0; i < undo->n; i++)
        found |= undo->marks[i].name == name;
    if (!found)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "table '%s' cannot go back to step %" PRIu64
                          ": it has no mark there",
                          table->spec.name, name);
    PS_TRY(table_undo_mark(table));
    while (undo->marks[undo->n - 1].name != name) {
        ps_row_undo_unmark(undo);
        PS_TRY(table_undo_mark(table));
    }
    return PS_OK;
}

/* ---- What others see ---- */

/* By partition, where there are several, and by id. */
static int view_compare(const void *a, const void *b, void *several)
{
    const uint64_t x = ((const ps_row_view *)a)->id, y = ((const ps_row_view *)b)->id;
    const ps_row_table *table = several;
    const uint32_t p = table ? table_partition(table, x) : 0,
                   q = table ? table_partition(table, y) : 0;
    return p != q ? (p > q) - (p < q) : (x > y) - (x < y);
}

static ps_row_view view_of(const ps_row_table *table, const ps_row_entry *e)
{
    const bool candidate = e->slot & PS_ROW_CANDIDATE;
    return (ps_row_view){.id = e->id,
                         .version = e->version,
                         .count = candidate ? e->slot & ~PS_ROW_CANDIDATE : 0,
                         .row = table_row(table, e)};
}

bool ps_row_table_view(const ps_row_table *table, uint64_t id, ps_row_view *out)
{
    const uint64_t hash = ps_row_index_hash(&table->index, id);
    const ps_row_entry *e = ps_row_index_find(&table->index, hash, id);
    if (e) *out = view_of(table, e);
    return e != NULL;
}

ps_err ps_row_table_list(const ps_row_table *table, uint32_t first, uint32_t end,
                         uint64_t since, ps_row_view **views, uint64_t *n)
{
    uint64_t most = 0;
    *n = 0;
    for (uint32_t p = first; p < end; p++)
        most += table->index.counts[p];
    PS_TRY(PS_NEW(views, most, "rows of a partition"));
    ps_row_cursor c = ps_row_cursor_at(&table->index, first, end);
    for (const ps_row_entry *e; (e = ps_row_cursor_next(&table->index, &c));) {
        if (since > 0 && e->version <= since) continue;
        (*views)[(*n)++] = view_of(table, e);
    }
    qsort_r(*views, *n, sizeof **views, view_compare,
            end - first > 1 ? (void *)table : NULL);
    return PS_OK;
}

const ps_row_stats *ps_row_table_stats(ps_row_table *table)
{
    const uint64_t entries = table->stats.rows + table->stats.candidates;
    table->stats.bytes = table->stats.rows * table->slab.stride * sizeof(float) +
                         entries * PS_ROW_INDEX_BYTES;
    return &table->stats;
}
