#include "csv_lines.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

enum { READ_BYTES = 1 << 20, LINE_MAX_BYTES = 1 << 28 };

const char *ps_csv_place(const ps_csv_lines *l, int64_t index,
                         char out[PS_CSV_PLACE_BYTES])
{
    snprintf(out, PS_CSV_PLACE_BYTES, "%.400s:%" PRId64 ": column %" PRId64 ": \"%.40s\"",
             l->path, l->line, index + 1, l->fields[index]);
    return out;
}

ps_err ps_csv_bad_field(const ps_csv_lines *l, int64_t index, const char *what)
{
    char place[PS_CSV_PLACE_BYTES];
    return ps_err_set(PS_ERR_FORMAT, "%s is not %s", ps_csv_place(l, index, place), what);
}

/* --- bytes ------------------------------------------------------------------------- */

static ps_err check_text(const ps_csv_lines *l, const char *text, uint64_t n,
                         uint64_t before)
{
    const char *zero = memchr(text, '\0', n);
    if (!zero) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: is not a text file: byte %" PRIu64
                      " is 0 (psrun --convert makes a CSV file of Excel's and Parquet's; "
                      "iconv -f utf-16 -t utf-8 a text of UTF-16)",
                      l->path, before + (uint64_t)(zero - text));
}

static void begin_text(ps_csv_lines *l)
{
    l->at = l->text;
    l->next_line = 1;
    if (l->n >= 3 && memcmp(l->text, "\xef\xbb\xbf", 3) == 0) l->at += 3; // of UTF-8
}

/* More of the file, behind what is not cut yet. *more: there was some. */
static ps_err read_more(ps_csv_lines *l, bool *more)
{
    uint64_t got = 0;
    const uint64_t left = l->at ? l->n - (uint64_t)(l->at - l->text) : 0;
    *more = false;
    if (!l->source.file) return PS_OK;
    if (left > LINE_MAX_BYTES)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s:%" PRId64
                          ": a line of more than %d bytes: do the quotes of "
                          "a field have an end?",
                          l->path, l->next_line, LINE_MAX_BYTES);
    if (left > 0) memmove(l->text, l->at, left);
    if (left + READ_BYTES >= l->room) {
        char *text = realloc(l->text, 2 * left + 2 * READ_BYTES);
        if (!text) return ps_err_set(PS_ERR_NOMEM, "%s: no memory for a line", l->path);
        l->text = text;
        l->room = 2 * left + 2 * READ_BYTES;
    }
    l->at = l->text;
    l->n = left;
    l->text[left] = '\0';
    PS_TRY(ps_source_read_some(&l->source, l->text + left, l->room - left - 1, &got));
    PS_TRY(check_text(l, l->text + left, got, l->source.taken - got));
    l->n = left + got;
    l->text[l->n] = '\0';
    *more = got > 0;
    return PS_OK;
}

ps_err ps_csv_lines_open(ps_csv_lines *l, const char *path)
{
    bool more;
    *l = (ps_csv_lines){.path = path, .owned = true};
    PS_TRY(ps_source_init(&l->source, path));
    PS_TRY(read_more(l, &more));
    begin_text(l);
    return PS_OK;
}

ps_err ps_csv_lines_of_text(ps_csv_lines *l, const char *path, char *text, uint64_t bytes)
{
    *l = (ps_csv_lines){.path = path, .text = text, .n = bytes};
    PS_TRY(check_text(l, text, bytes, 0));
    text[bytes] = '\0';
    begin_text(l);
    return PS_OK;
}

void ps_csv_lines_fini(ps_csv_lines *l)
{
    ps_source_fini(&l->source);
    if (l->owned) free(l->text);
    free(l->fields);
    *l = (ps_csv_lines){0};
}

/* --- fields ------------------------------------------------------------------------ */

/* Behind the quotes of a field; at: behind the first one. NULL: they have no end. */
static const char *quotes_end(const char *at)
{
    for (; *at; at++)
        if (*at == '"' && *++at != '"') return at;
    return NULL;
}

/* The first of the three in the line, outside of a quoted first field. */
static char separator_of(const char *at)
{
    at += strspn(at, " ");
    const char *end = *at == '"' ? quotes_end(at + 1) : NULL;
    if (end) at = end;
    at += strcspn(at, ",;\t\n");
    return *at == ';' || *at == '\t' ? *at : ',';
}

/* Whether the end of the line is in memory. */
static bool line_is_whole(const ps_csv_lines *l)
{
    const char *at = l->at;
    const uint64_t left = l->n - (uint64_t)(at - l->text);
    const char *end = memchr(at, '\n', left);
    if (!end || !memchr(at, '"', (size_t)(end - at))) return end;
    const char separator = l->separator ? l->separator : separator_of(at);
    for (;; at++) {
        at += strspn(at, " ");
        if (*at == '"' && !(at = quotes_end(at + 1))) return false;
        while (*at && *at != separator && *at != '\n')
            at++;
        if (*at != separator) return *at == '\n';
    }
}

/* Undoes the quotes of a field in place; at: behind the first one. Returns what follows
 * the last one; NULL: there is none. */
static char *csv_unquote(ps_csv_lines *l, char *at)
{
    char *to = at;
    for (; *at; *to++ = *at++) {
        if (*at == '"' && *++at != '"') {
            *to = '\0';
            return at + strspn(at, " \r");
        }
        l->next_line += *at == '\n';
    }
    return NULL;
}

/* Ends a field without quotes. Returns what follows it, whose character is then *found.
 */
static char *csv_trim(const ps_csv_lines *l, char *field, char *found)
{
    char *stop = field, *end;
    while (*stop && *stop != l->separator && *stop != '\n')
        stop++;
    *found = *stop;
    for (end = stop; end > field && (end[-1] == ' ' || end[-1] == '\r');)
        end--;
    *end = '\0';
    return stop;
}

static ps_err add_field(ps_csv_lines *l, char *field)
{
    PS_TRY(ps_mem_room(&l->fields, (uint32_t)l->n_fields, &l->room_fields,
                       sizeof *l->fields, l->path));
    l->fields[l->n_fields++] = field;
    return PS_OK;
}

/* *found: the character behind the field, which ends the line unless it separates. */
static ps_err cut_field(ps_csv_lines *l, char *found)
{
    char *field = l->at + strspn(l->at, " ");
    const bool quoted = *field == '"';
    PS_TRY(add_field(l, field + quoted));
    char *stop = quoted ? csv_unquote(l, field + 1) : csv_trim(l, field, found);
    if (quoted && stop) *found = *stop;
    if (!stop || (*found && *found != l->separator && *found != '\n'))
        return ps_csv_bad_field(l, l->n_fields - 1,
                                stop ? "all of the field, whose quotes end here: a "
                                       "double quote within quotes is written twice"
                                     : "a whole field: the quotes have no end");
    l->next_line += *found == '\n';
    l->at = *found ? stop + 1 : stop;
    return PS_OK;
}

/* Makes the next line that is not empty whole. *found: there is one. Tabs that separate
 * fields are no blanks: a line of tabs alone has all cells missing. */
static ps_err find_line(ps_csv_lines *l, bool *found)
{
    const char *blanks = l->separator == '\t' ? " \r" : " \t\r";
    for (;;) {
        bool more = true;
        while (more && !line_is_whole(l))
            PS_TRY(read_more(l, &more));
        char *end = l->at + strspn(l->at, blanks);
        *found = *end != '\0';
        if (*end != '\n') return PS_OK;
        l->at = end + 1;
        l->next_line++;
    }
}

/* Of the first line: a file from an old Macintosh would be all of it. */
static ps_err check_line_ends(const ps_csv_lines *l)
{
    const char *cr = strchr(l->at, '\r');
    if (!cr || cr[1] == '\0' || strchr(l->at, '\n')) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: its lines end in CR alone: tr '\\r' '\\n' <FILE >NEW ends "
                      "them in LF",
                      l->path);
}

ps_err ps_csv_lines_next(ps_csv_lines *l)
{
    char separates = '\0';
    bool found;
    l->n_fields = 0;
    PS_TRY(find_line(l, &found));
    if (!found) return PS_OK;
    l->line = l->next_line;
    if (!l->separator) {
        PS_TRY(check_line_ends(l));
        l->separator = separator_of(l->at);
    }
    do
        PS_TRY(cut_field(l, &separates));
    while (separates == l->separator);
    return PS_OK;
}
