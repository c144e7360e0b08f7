/* A table as its files have it, line by line: the cells of the columns that are used.
 * They are in memory or, where they may be larger than it (data.stream), in a temporary
 * file that has no name.
 *
 * The texts of a column are numbered as they come, until the preprocessing is fitted;
 * from then on by their places among its categories. */
#ifndef PS_TABLE_H
#define PS_TABLE_H

#include "preprocessing.h"

typedef enum ps_column_use {
    PS_COLUMN_INPUT,
    PS_COLUMN_TARGET,
    PS_COLUMN_ORDER, // data.test_by
    PS_COLUMN_KEY    // data.drop, for predictions.csv: texts
} ps_column_use;

/* Texts, each of its own, in the order in which they came. */
typedef struct ps_texts {
    ps_class_names names;
    int64_t room, n_slots; // of names; of slots, a power of two
    int64_t *slots;        // 1 + the text's number, by its hash; owned
} ps_texts;

typedef struct ps_table_column {
    char *name;
    ps_column_use use;
    const ps_column *fitted;      // borrowed; NULL: the preprocessing is not fitted yet
    ps_texts seen;                // then: its texts; of a key always
    int64_t n_missing, n_unknown; // cells; unknown: texts that are no category
    char *first_missing, *first_text; // where they are, for messages; owned; or NULL
    char *unknown;                    // the first of them; owned; or NULL
} ps_table_column;

typedef struct ps_table {
    int64_t n, n_columns, n_inputs, n_targets; // inputs first, then targets, then others
    ps_table_column *columns;                  // owned
    ps_class_names names; // of all columns of the first file that has names; or none
    ps_cell *cells;       // (n, n_columns); owned; NULL: they are in the file
    int64_t room;         // lines, of cells; or of what is not written yet
    int64_t n_written;    // lines in the file
    int fd;               // of the file; owned; -1: none
    int64_t *rows;        // (n) lines as they were read; owned; NULL: all of them
    char *notes, *doubts; // as a data set's (samples.h); owned
} ps_table;

/* folder: where the file is made; NULL: the cells stay in memory. */
ps_err ps_table_init(ps_table *t, int64_t n_columns, const char *folder);
void ps_table_fini(ps_table *t); // safe on a zeroed one, and after a failed init

/* The cell of a text: its number in the column. NOMEM. */
ps_err ps_table_text(ps_table_column *c, const char *text, ps_cell *out);
/* Adds a line; cells: (n_columns). NOMEM, IO. */
ps_err ps_table_add(ps_table *t, const ps_cell *cells);
/* After the last line. */
ps_err ps_table_end(ps_table *t);

/* Keeps only those lines; rows: (n) in rising order. NOMEM. */
ps_err ps_table_keep(ps_table *t, const int64_t *rows, int64_t n);
/* Line i: *out points into the table, or to room for n_columns. IO. Any number of threads
 * may read at a time. */
ps_err ps_table_row(const ps_table *t, int64_t i, ps_cell *room, const ps_cell **out);

/* The same for lines that are read one after the other: files are read in blocks. */
typedef struct ps_table_scan {
    const ps_table *table;
    ps_cell *block; // owned; lines first .. first + n - 1 of the file
    int64_t first, n;
    int64_t line, next; // line: that was given last
    ps_err err;         // the caller's, too: ends the scan
} ps_table_scan;

const ps_cell *ps_table_scan_next(ps_table_scan *s); // NULL: there is none
ps_err ps_table_scan_end(ps_table_scan *s);          // IO, NOMEM

ps_err ps_table_set(ps_table *t, int64_t i, int64_t column, ps_cell cell); // IO

#endif
