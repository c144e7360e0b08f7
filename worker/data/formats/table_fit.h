/* From a table to samples: fits the preprocessing to a table, and takes the answers from
 * it. */
#ifndef PS_TABLE_FIT_H
#define PS_TABLE_FIT_H

#include "config.h"
#include "samples.h"

/* Fits a state to the lines of a table, which are the training part; the texts of the
 * table then have the numbers of the categories. *out is owned by the caller. CONFIG
 * where the answers do not fit what is wanted, or a column has too many texts; IO, NOMEM.
 */
ps_err ps_table_fit(ps_table *t, const ps_config_data *data, const ps_wanted *wanted,
                    ps_preprocessing **out);

/* Makes a set of a table that was fitted, or read with that state; takes the table. Its
 * labels or targets are set, its names those of the classes; where there are no answers,
 * every label is 0. p is borrowed by the set. IO, NOMEM, FORMAT; out is zeroed then. */
ps_err ps_table_samples(ps_table *t, const ps_preprocessing *p, ps_dataset *out);

/* What decides in which part a line goes (test_part.h): alike for the lines of a class,
 * before and after the state is fitted; of numbers 0. keys: (n), zeroed. */
ps_err ps_table_classes(const ps_table *t, const ps_wanted *wanted, uint64_t *keys);
/* The lines in rising order of the column of use PS_COLUMN_ORDER: numbers, then texts by
 * their bytes; dates in whose texts this is another order are doubted. rows: (n). */
ps_err ps_table_order(ps_table *t, int64_t *rows);

#endif
