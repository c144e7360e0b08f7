#include "row_undo.h"

#include <stdlib.h>
#include <string.h>

/* A record is an image, if the entry has a row, and the entry behind it: so it is read
 * from its end. It lies in one block. */
enum {
    UNDO_BLOCK_BYTES = 1 << 20,
    FEW_RECORDS = 1024, // a log of no more is not worth the work
};

void ps_row_undo_init(ps_row_undo *undo, uint32_t width)
{
    *undo = (ps_row_undo){.width = width};
}

static void undo_pop_block(struct ps_row_mark *mark)
{
    ps_row_undo_block *block = mark->top;
    mark->top = block->below;
    free(block);
}

void ps_row_undo_fini(ps_row_undo *undo)
{
    for (uint32_t i = 0; i < undo->n; i++)
        while (undo->marks[i].top)
            undo_pop_block(&undo->marks[i]);
    ps_row_undo_init(undo, undo->width);
}

void ps_row_undo_mark(ps_row_undo *undo, uint64_t name, uint32_t version)
{
    if (undo->n == PS_ROW_MARKS) {
        while (undo->marks[0].top)
            undo_pop_block(&undo->marks[0]);
        memmove(undo->marks, undo->marks + 1, (PS_ROW_MARKS - 1) * sizeof *undo->marks);
        undo->n--;
    }
    undo->marks[undo->n++] = (struct ps_row_mark){.name = name, .version = version};
}

ps_err ps_row_undo_keep(ps_row_undo *undo, const ps_row_entry *entry, const float *row)
{
    struct ps_row_mark *mark = &undo->marks[undo->n - 1];
    const uint32_t image = row ? undo->width * (uint32_t)sizeof *row : 0;
    const uint32_t bytes = image + (uint32_t)sizeof *entry;
    if (!mark->top || mark->top->used + bytes > UNDO_BLOCK_BYTES) {
        ps_row_undo_block *block = malloc(sizeof *block + UNDO_BLOCK_BYTES);
        if (!block)
            return ps_err_set(PS_ERR_NOMEM, "undo log of rows: no memory for %d bytes",
                              UNDO_BLOCK_BYTES);
        *block = (ps_row_undo_block){.below = mark->top};
        mark->top = block;
    }
    char *to = mark->top->bytes + mark->top->used;
    if (row) memcpy(to, row, image);
    memcpy(to + image, entry, sizeof *entry);
    mark->top->used += bytes;
    if (entry->slot == 0)
        mark->n_new++;
    else
        mark->bytes += bytes;
    return PS_OK;
}

/* The record that ends where the block's first `used` bytes do; returns where it begins.
 * *row: NULL where it has none. */
static uint32_t undo_read(const ps_row_undo_block *block, uint32_t used, uint32_t width,
                          ps_row_entry *entry, const float **row)
{
    used -= (uint32_t)sizeof *entry;
    memcpy(entry, block->bytes + used, sizeof *entry);
    *row = NULL;
    if (entry->slot == 0 || entry->slot & PS_ROW_CANDIDATE) return used;
    used -= width * (uint32_t)sizeof **row;
    *row = (const float *)(const void *)(block->bytes + used);
    return used;
}

bool ps_row_undo_is_long(const ps_row_undo *undo, uint64_t n_ids)
{
    const struct ps_row_mark *mark = &undo->marks[undo->n - 1];
    return !mark->has_puts && mark->n_new > 2 * n_ids + FEW_RECORDS &&
           mark->n_new * sizeof(ps_row_entry) > mark->bytes;
}

/* Returns how many records of new ids stay. */
static uint64_t undo_thin(ps_row_undo_block *block, uint32_t width,
                          ps_row_undo_stays *stays, void *ctx)
{
    uint32_t used = block->used, to = used;
    uint64_t n_new = 0;
    while (used > 0) {
        ps_row_entry entry;
        const float *row;
        const uint32_t at = undo_read(block, used, width, &entry, &row),
                       bytes = used - at;
        const bool is_new = entry.slot == 0, is_kept = !is_new || stays(ctx, entry.id);
        used = at;
        if (!is_kept) continue;
        to -= bytes;
        memmove(block->bytes + to, block->bytes + at, bytes);
        n_new += is_new;
    }
    block->used -= to;
    memmove(block->bytes, block->bytes + to, block->used);
    return n_new;
}

/* Onto the newest one, in whose place it goes where there is room. */
static void undo_push_block(struct ps_row_mark *mark, ps_row_undo_block *block)
{
    ps_row_undo_block *top = mark->top;
    if (top && top->used + block->used <= UNDO_BLOCK_BYTES) {
        memcpy(top->bytes + top->used, block->bytes, block->used);
        top->used += block->used;
        free(block);
        return;
    }
    block->below = top;
    mark->top = block;
}

void ps_row_undo_shorten(ps_row_undo *undo, ps_row_undo_stays *stays, void *ctx)
{
    struct ps_row_mark *mark = &undo->marks[undo->n - 1];
    ps_row_undo_block *oldest = NULL;
    mark->n_new = 0;
    while (mark->top) { // from the newest on; then the oldest is the first
        ps_row_undo_block *block = mark->top;
        mark->top = block->below;
        mark->n_new += undo_thin(block, undo->width, stays, ctx);
        block->below = oldest;
        oldest = block;
    }
    while (oldest) {
        ps_row_undo_block *block = oldest;
        oldest = block->below;
        undo_push_block(mark, block);
    }
}

bool ps_row_undo_take(ps_row_undo *undo, ps_row_entry *entry, const float **row)
{
    struct ps_row_mark *mark = &undo->marks[undo->n - 1];
    if (mark->top && mark->top->used == 0) undo_pop_block(mark);
    if (!mark->top) return false;
    const uint32_t used = mark->top->used;
    mark->top->used = undo_read(mark->top, used, undo->width, entry, row);
    if (entry->slot == 0)
        mark->n_new--;
    else
        mark->bytes -= used - mark->top->used;
    return true;
}

ps_row_undo_cursor ps_row_undo_cursor_at(const ps_row_undo *undo, uint32_t mark)
{
    const ps_row_undo_block *top = undo->marks[mark].top;
    return (ps_row_undo_cursor){
        .block = top, .used = top ? top->used : 0, .width = undo->width};
}

bool ps_row_undo_next(ps_row_undo_cursor *c, ps_row_entry *entry)
{
    const float *row;
    while (c->block && c->used == 0) {
        c->block = c->block->below;
        c->used = c->block ? c->block->used : 0;
    }
    if (!c->block) return false;
    c->used = undo_read(c->block, c->used, c->width, entry, &row);
    return true;
}

void ps_row_undo_unmark(ps_row_undo *undo)
{
    undo->n--;
}
