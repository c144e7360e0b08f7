#include "table.h"

#include <stdlib.h>
#include <unistd.h>

#include "data_files.h"
#include "file_at.h"
#include "hash.h"
#include "mem.h"

enum {
    FIRST_SLOTS = 64,
    FIRST_LINES = 64,
    WRITTEN_CELLS = 1 << 17,
    BLOCK_CELLS = 1 << 14
};

/* --- texts ------------------------------------------------------------------------- */

static void texts_fini(ps_texts *t)
{
    ps_class_names_fini(&t->names);
    free(t->slots);
    *t = (ps_texts){0};
}

/* The slot that has the text, or the one that it would take. */
static int64_t *texts_slot(const ps_texts *t, const char *text)
{
    ps_hash h;
    ps_hash_init(&h);
    ps_hash_string(&h, text);
    for (uint64_t at = ps_hash_value(&h);; at++) {
        int64_t *slot = &t->slots[at & (uint64_t)(t->n_slots - 1)];
        if (*slot == 0 || strcmp(t->names.names[*slot - 1], text) == 0) return slot;
    }
}

static ps_err texts_grow(ps_texts *t)
{
    const int64_t n_slots = t->n_slots > 0 ? 2 * t->n_slots : FIRST_SLOTS;
    char **names = realloc(t->names.names, (size_t)n_slots / 2 * sizeof *names);
    if (!names) return ps_err_set(PS_ERR_NOMEM, "no memory for the texts of a table");
    t->names.names = names;
    t->room = n_slots / 2;
    free(t->slots);
    t->n_slots = 0;
    PS_TRY(PS_NEW(&t->slots, (size_t)n_slots, "texts"));
    t->n_slots = n_slots;
    for (int64_t i = 0; i < t->names.n; i++)
        *texts_slot(t, t->names.names[i]) = i + 1;
    return PS_OK;
}

ps_err ps_table_text(ps_table_column *c, const char *text, ps_cell *out)
{
    ps_texts *t = &c->seen;
    if (t->names.n == t->room) PS_TRY(texts_grow(t));
    int64_t *slot = texts_slot(t, text);
    if (*slot == 0) {
        PS_TRY(ps_mem_strdup(&t->names.names[t->names.n], text));
        *slot = ++t->names.n;
    }
    *out = ps_cell_of_text(*slot - 1);
    return PS_OK;
}

/* --- lines ------------------------------------------------------------------------- */

static const char temporary_name[] = "data.stream: the temporary file of a table";

ps_err ps_table_init(ps_table *t, int64_t n_columns, const char *folder)
{
    *t = (ps_table){.n_columns = n_columns, .fd = -1};
    PS_TRY(PS_NEW(&t->columns, (size_t)n_columns, "columns"));
    if (folder) PS_TRY(ps_data_temporary(folder, &t->fd));
    return PS_OK;
}

void ps_table_fini(ps_table *t)
{
    for (int64_t i = 0; i < t->n_columns && t->columns; i++) {
        free(t->columns[i].name);
        free(t->columns[i].first_missing);
        free(t->columns[i].first_text);
        free(t->columns[i].unknown);
        texts_fini(&t->columns[i].seen);
    }
    if (t->columns && t->fd >= 0) close(t->fd);
    free(t->columns);
    free(t->cells);
    free(t->rows);
    free(t->notes);
    free(t->doubts);
    ps_class_names_fini(&t->names);
    *t = (ps_table){.fd = -1};
}

static size_t line_bytes(const ps_table *t)
{
    return (size_t)t->n_columns * sizeof(ps_cell);
}

/* Lines that are not in the file yet. */
static int64_t lines_held(const ps_table *t)
{
    return t->n - t->n_written;
}

static ps_err table_write_lines(ps_table *t)
{
    PS_TRY(ps_file_write_at(t->fd, temporary_name, (size_t)t->n_written * line_bytes(t),
                            t->cells, (size_t)lines_held(t) * line_bytes(t)));
    t->n_written = t->n;
    return PS_OK;
}

static ps_err table_grow(ps_table *t)
{
    const int64_t room = t->room > 0 ? t->room + t->room / 2 : FIRST_LINES;
    size_t bytes;
    ps_cell *cells = NULL;
    if (!__builtin_mul_overflow((size_t)room, line_bytes(t), &bytes))
        cells = realloc(t->cells, bytes);
    if (!cells)
        return ps_err_set(PS_ERR_NOMEM,
                          "no memory for %lld lines of a table; data.stream=true keeps "
                          "them in a file",
                          (long long)room);
    t->cells = cells;
    t->room = room;
    return PS_OK;
}

ps_err ps_table_add(ps_table *t, const ps_cell *cells)
{
    if (t->fd >= 0 && lines_held(t) * t->n_columns >= WRITTEN_CELLS)
        PS_TRY(table_write_lines(t));
    if (lines_held(t) == t->room) PS_TRY(table_grow(t));
    memcpy(t->cells + lines_held(t) * t->n_columns, cells, line_bytes(t));
    t->n++;
    return PS_OK;
}

ps_err ps_table_end(ps_table *t)
{
    if (t->fd < 0) {
        ps_cell *cells =
            t->n > 0 ? realloc(t->cells, (size_t)t->n * line_bytes(t)) : NULL;
        if (cells) t->cells = cells; // shrinking may fail
        return PS_OK;
    }
    PS_TRY(table_write_lines(t));
    free(t->cells);
    t->cells = NULL;
    return PS_OK;
}

ps_err ps_table_keep(ps_table *t, const int64_t *rows, int64_t n)
{
    int64_t *kept;
    PS_TRY(PS_NEW(&kept, (size_t)n, "the lines of a table"));
    for (int64_t i = 0; i < n; i++)
        kept[i] = t->rows ? t->rows[rows[i]] : rows[i];
    free(t->rows);
    t->rows = kept;
    t->n = n;
    if (t->fd >= 0) return PS_OK;
    for (int64_t i = 0; i < n; i++)
        memmove(t->cells + i * t->n_columns, t->cells + rows[i] * t->n_columns,
                line_bytes(t));
    return ps_table_end(t);
}

/* Where line i lies, in the file or in memory. */
static int64_t line_at(const ps_table *t, int64_t i)
{
    return t->fd >= 0 && t->rows ? t->rows[i] : i;
}

ps_err ps_table_row(const ps_table *t, int64_t i, ps_cell *room, const ps_cell **out)
{
    *out = room;
    if (t->fd >= 0)
        return ps_file_read_at(t->fd, temporary_name,
                               (size_t)line_at(t, i) * line_bytes(t), room,
                               line_bytes(t));
    *out = t->cells + i * t->n_columns;
    return PS_OK;
}

/* Fills the block from that line of the file on. */
static ps_err scan_block(ps_table_scan *s, int64_t line)
{
    const ps_table *t = s->table;
    const int64_t most = BLOCK_CELLS / t->n_columns + 1, left = t->n_written - line;
    if (!s->block)
        PS_TRY(ps_mem_zalloc(&s->block, (size_t)most, line_bytes(t), "lines of a table"));
    s->first = line;
    s->n = left < most ? left : most;
    return ps_file_read_at(t->fd, temporary_name, (size_t)line * line_bytes(t), s->block,
                           (size_t)s->n * line_bytes(t));
}

const ps_cell *ps_table_scan_next(ps_table_scan *s)
{
    const ps_table *t = s->table;
    if (s->err != PS_OK || s->next >= t->n) return NULL;
    s->line = s->next++;
    if (t->fd < 0) return t->cells + s->line * t->n_columns;
    const int64_t at = line_at(t, s->line);
    if (at < s->first || at >= s->first + s->n) s->err = scan_block(s, at);
    return s->err == PS_OK ? s->block + (at - s->first) * t->n_columns : NULL;
}

ps_err ps_table_scan_end(ps_table_scan *s)
{
    free(s->block);
    return s->err;
}

ps_err ps_table_set(ps_table *t, int64_t i, int64_t column, ps_cell cell)
{
    const size_t at = (size_t)(line_at(t, i) * t->n_columns + column);
    if (t->fd >= 0)
        return ps_file_write_at(t->fd, temporary_name, at * sizeof cell, &cell,
                                sizeof cell);
    t->cells[at] = cell;
    return PS_OK;
}
