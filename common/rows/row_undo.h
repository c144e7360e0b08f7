/* What a table has to do to go back to one of its last two marks: a stack of records for
 * each. The first write to a row since the mark keeps the row as it was; a new id is
 * noted. Undoing from the newest record to the oldest gives the state at the mark,
 * whatever came in between.
 *
 * A mark may last for days, in which ids come and go. So records of new ids that are gone
 * again are forgotten now and then: what is kept has no more bytes than twice the rows as
 * they were at the mark, and what the ids that are there need. */
#ifndef PS_ROW_UNDO_H
#define PS_ROW_UNDO_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"
#include "row_index.h"

enum { PS_ROW_MARKS = 2 };

typedef struct ps_row_undo_block {
    struct ps_row_undo_block *below;
    uint32_t used;
    char bytes[];
} ps_row_undo_block;

typedef struct ps_row_undo {
    uint32_t width; // float32 of an image
    uint32_t n;     // marks; the newest is n - 1
    struct ps_row_mark {
        uint64_t name;
        uint32_t version;
        bool has_puts;  // rows of any version: a new id may have several records
        uint64_t n_new; // records of new ids; the others':
        uint64_t bytes;
        ps_row_undo_block *top;
    } marks[PS_ROW_MARKS];
} ps_row_undo;

void ps_row_undo_init(ps_row_undo *undo, uint32_t width);
void ps_row_undo_fini(ps_row_undo *undo); // safe on a zeroed one

/* Begins a generation; forgets the oldest where there are two. */
void ps_row_undo_mark(ps_row_undo *undo, uint64_t name, uint32_t version);

/* Whether a write to an entry of that version is its first since the mark. */
static inline bool ps_row_undo_wants(const ps_row_undo *undo, uint32_t version)
{
    return undo->n > 0 && version <= undo->marks[undo->n - 1].version;
}

/* Keeps an entry with its row (width; NULL: a candidate); slot 0: an id that is new since
 * the mark. NOMEM. */
ps_err ps_row_undo_keep(ps_row_undo *undo, const ps_row_entry *entry, const float *row);

/* A row was put in its place, of any version: writes to it may be taken for the first. */
static inline void ps_row_undo_note_put(ps_row_undo *undo)
{
    if (undo->n > 0) undo->marks[undo->n - 1].has_puts = true;
}

/* Whether most records are of new ids that are gone again, where n_ids are there. */
bool ps_row_undo_is_long(const ps_row_undo *undo, uint64_t n_ids);
/* Whether an id is there: once for each. */
typedef bool ps_row_undo_stays(void *ctx, uint64_t id);
/* Forgets the newest mark's records of new ids that do not stay. */
void ps_row_undo_shorten(ps_row_undo *undo, ps_row_undo_stays *stays, void *ctx);

/* Takes the newest record of the newest mark; false: there is none. *row is valid until
 * the next call. */
bool ps_row_undo_take(ps_row_undo *undo, ps_row_entry *entry, const float **row);

/* Goes through the records of one mark, which stay, from the newest to the oldest. */
typedef struct ps_row_undo_cursor {
    const ps_row_undo_block *block;
    uint32_t used, width;
} ps_row_undo_cursor;

ps_row_undo_cursor ps_row_undo_cursor_at(const ps_row_undo *undo, uint32_t mark);
/* *entry: as it was at the mark; false: there are no more. */
bool ps_row_undo_next(ps_row_undo_cursor *cursor, ps_row_entry *entry);

/* Forgets the newest mark, which has no records left. */
void ps_row_undo_unmark(ps_row_undo *undo);

#endif
