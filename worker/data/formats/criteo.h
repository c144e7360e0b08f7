/* The files of Criteo's challenges: clicks, a sample a line, fields between tabs.
 *
 *   label 0 or 1    13 counts    26 ids in hexadecimal digits
 *
 * Counts and ids may be missing; a line of tabs alone is a sample, too. A count becomes
 * log(1 + count), as DLRM's code has it; one that is missing, or negative, counts 0, and
 * the set's notes say how many do. A missing id is PS_CRITEO_MISSING, a value
 * that the 32 bits of the others do not have. */
#ifndef PS_CRITEO_H
#define PS_CRITEO_H

#include "samples.h"

enum { PS_CRITEO_COUNTS = 13, PS_CRITEO_IDS = 26 };
#define PS_CRITEO_MISSING (INT64_C(1) << 32)

/* All files' lines, plain or gzip, read line by line. FORMAT names file, line and column.
 * out: values (n, 13), ids (n, 26), labels. */
ps_err ps_criteo_read(char *const *paths, int n_paths, ps_dataset *out);

/* The same, but values and ids go into a temporary file beside the first one, of which
 * out->stream reads: values, then ids. In memory is a label for each sample. */
ps_err ps_criteo_open(char *const *paths, int n_paths, const ps_wanted *wanted,
                      ps_dataset *out);

/* New samples: of a file, as ps_criteo_open keeps them, or of a text in memory, which is
 * changed and has room for one more byte (name: for messages). The label may be missing
 * in all lines: then out->answered is false. */
ps_err ps_criteo_open_new(const char *path, ps_dataset *out);
ps_err ps_criteo_parse_new(const char *name, char *text, uint64_t bytes, ps_dataset *out);

/* Whether a text is an id: hexadecimal digits of a number below 2^63. */
bool ps_criteo_is_id(const char *text);

#endif
