/* Tables as text (csv_lines.h): a sample per line.
 *
 *   len,width,city,price        data.target names the answers: the first line has names,
 *   5.1,3.5,Rome,120            and a column is of numbers or of texts; a missing cell is
 *                               empty, or NaN, NA, N/A, <NA>, null, none, ? or -
 *
 *   sepal_length,width,class    without data.target: a first line without any number
 *   5.1,3.5,0                   names columns; numbers, and the class from 0 in the last
 *                               column; or the number, where the model has one output;
 *                               without an answer (wanted) all are the sample's
 *
 * What was taken as names stands in the table's notes. */
#ifndef PS_CSV_H
#define PS_CSV_H

#include "config.h"
#include "samples.h"
#include "table.h"

typedef struct ps_csv_options { // borrowed during a call
    const ps_config_data *data;
    const ps_wanted *wanted; // nothing: where the answers are missing, there are none
    const ps_preprocessing *known; // whose columns the table has; NULL: to be fitted
    bool keys;                     // also the columns of data.drop
    bool objects; // lines are samples of a request, whose fields have names: messages
                  // say so
    const char *folder; // of a temporary file (table.h); NULL: in memory
} ps_csv_options;

/* The lines of all files, one after the other. FORMAT names file, line and column. out is
 * safe for fini after a failure. */
ps_err ps_csv_read(char *const *paths, int n_paths, const ps_csv_options *o,
                   ps_table *out);

/* The same of a text in memory, which is changed and has room for one more byte. path:
 * for messages. */
ps_err ps_csv_parse(const char *path, char *text, uint64_t bytes, const ps_csv_options *o,
                    ps_table *out);

#endif
