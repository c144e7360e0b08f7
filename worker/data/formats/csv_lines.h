/* Lines of fields as text, plain or gzip, read as they are needed.
 *
 * Fields are separated by commas, semicolons or tabs, whichever the first line has first;
 * blanks around a field are taken off. A field may stand in double quotes, within which a
 * separator and the end of a line are text, and two double quotes are one (RFC 4180).
 * Lines end in LF or CRLF; empty ones, and those of blanks alone, are skipped. */
#ifndef PS_CSV_LINES_H
#define PS_CSV_LINES_H

#include "data_files.h"

typedef struct ps_csv_lines {
    const char *path; // borrowed; for messages
    ps_source source; // source.file NULL: all of the text is in memory
    char *text;       // what was read and not cut yet, from `at` on, and a NUL
    uint64_t n, room; // bytes of it
    bool owned;       // text
    char *at;
    int64_t line, next_line; // from 1: of the fields, of `at`
    char separator;          // '\0': not known yet
    char **fields;           // (n_fields) of the line, in text; room_fields is owned
    int64_t n_fields;
    uint32_t room_fields;
} ps_csv_lines;

/* IO. */
ps_err ps_csv_lines_open(ps_csv_lines *l, const char *path);
/* Of a text in memory, which is changed, and has room for one more byte. FORMAT. */
ps_err ps_csv_lines_of_text(ps_csv_lines *l, const char *path, char *text,
                            uint64_t bytes);
void ps_csv_lines_fini(ps_csv_lines *l); // safe on a zeroed or failed one

/* Cuts the next line that is not empty into fields; none at the end. FORMAT names file,
 * line and column. IO, NOMEM. */
ps_err ps_csv_lines_next(ps_csv_lines *l);

/* "FILE:LINE: column N: "field"". Returns out. */
enum { PS_CSV_PLACE_BYTES = 512 };
const char *ps_csv_place(const ps_csv_lines *l, int64_t index,
                         char out[PS_CSV_PLACE_BYTES]);
/* "PLACE is not WHAT", a FORMAT error. */
ps_err ps_csv_bad_field(const ps_csv_lines *l, int64_t index, const char *what);

#endif
