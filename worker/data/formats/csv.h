/* Tables of numbers as text, plain or gzip: a sample per line.
 *
 *   sepal_length,sepal_width,class      a first line without any number: names
 *   5.1,3.5,0                           numbers, and the class from 0 in the last column;
 *                                       or the number, where the model has one output;
 *                                       without an answer (wanted) all are the sample's
 *
 * Fields are separated by commas, semicolons or tabs, whichever the first line has first;
 * blanks around a field are taken off. A field may stand in double quotes, within which a
 * separator and the end of a line are text, and two double quotes are one (RFC 4180).
 * Lines end in LF or CRLF; empty ones are skipped. What was taken as names stands in the
 * set's notes. */
#ifndef PS_CSV_H
#define PS_CSV_H

#include "samples.h"

/* The samples of all files, one after the other: vectors of float32. Every line of every
 * file has the same number of fields, at least two, or one without an answer. FORMAT
 * names file, line and column. out is zeroed on failure. */
ps_err ps_csv_read(char *const *paths, int n_paths, const ps_wanted *wanted,
                   ps_dataset *out);

/* The same of a text in memory, which is changed and has room for one more byte. path:
 * for messages. */
ps_err ps_csv_parse(const char *path, char *text, uint64_t bytes, const ps_wanted *wanted,
                    ps_dataset *out);

#endif
