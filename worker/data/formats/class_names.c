#include "class_names.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "data_files.h"
#include "mem.h"

enum { FILE_MAX_BYTES = 1 << 20, SAVED_MAX_BYTES = 4096 };

void ps_class_names_fini(ps_class_names *c)
{
    for (int64_t i = 0; i < c->n; i++)
        free(c->names[i]);
    free(c->names);
    *c = (ps_class_names){0};
}

const char *ps_class_name(const ps_class_names *c, int64_t class)
{
    return class >= 0 && class < c->n ? c->names[class] : NULL;
}

static ps_err class_names_make_room(ps_class_names *c, size_t n)
{
    return PS_NEW(&c->names, n, "the names of the classes");
}

static ps_err class_names_add(ps_class_names *c, const char *name)
{
    PS_TRY(ps_mem_strdup(&c->names[c->n], name));
    c->n++;
    return PS_OK;
}

ps_err ps_class_names_copy(const ps_class_names *from, ps_class_names *out)
{
    *out = (ps_class_names){0};
    ps_err err = class_names_make_room(out, (size_t)from->n);
    for (int64_t i = 0; i < from->n && err == PS_OK; i++)
        err = class_names_add(out, from->names[i]);
    if (err != PS_OK) ps_class_names_fini(out);
    return err;
}

/* Ends the line, and moves *rest behind it. Returns the line without outer spaces. */
static char *class_names_take_line(char **rest)
{
    char *line = *rest;
    char *end = line + strcspn(line, "\n");
    *rest = *end == '\0' ? end : end + 1;
    while (isspace((unsigned char)*line) && line < end)
        line++;
    while (end > line && isspace((unsigned char)end[-1]))
        end--;
    *end = '\0';
    return line;
}

/* A name behind an empty line would be lost, and all behind it. */
static ps_err class_names_check_end(const char *path, const char *rest, int64_t names)
{
    if (rest[strspn(rest, " \t\r\n")] == '\0') return PS_OK;
    return ps_err_set(
        PS_ERR_FORMAT,
        "%s:%lld: an empty line, and names behind it: a name stands on each "
        "line, that of class 0 on the first",
        path, (long long)names + 1);
}

static ps_err split_lines(const char *path, char *text, ps_class_names *out)
{
    size_t n = 1;
    if (strncmp(text, "\xef\xbb\xbf", 3) == 0) text += 3; // of UTF-8
    for (const char *c = text; *c; c++)
        n += *c == '\n';
    PS_TRY(class_names_make_room(out, n));
    for (;;) {
        const char *line = class_names_take_line(&text);
        if (*line == '\0') return class_names_check_end(path, text, out->n);
        PS_TRY(class_names_add(out, line));
    }
}

/* The file with a NUL behind it; owned by the caller. */
static ps_err class_names_read_text(const char *path, char **text)
{
    void *bytes = NULL;
    uint64_t n = 0;
    *text = NULL;
    ps_err err = ps_source_read_file(path, FILE_MAX_BYTES, &bytes, &n);
    if (err == PS_OK && n > 0 && memchr(bytes, '\0', n))
        err = ps_err_set(
            PS_ERR_FORMAT,
            "%s: is not a text file: it has a byte 0 (iconv -f utf-16 -t utf-8 "
            "a text of UTF-16)",
            path);
    if (err == PS_OK) err = ps_mem_zalloc(text, n + 1, 1, "the names of the classes");
    if (err == PS_OK && n > 0) memcpy(*text, bytes, n);
    free(bytes);
    return err;
}

ps_err ps_class_names_read(const char *path, ps_class_names *out)
{
    char *text;
    *out = (ps_class_names){0};
    PS_TRY(class_names_read_text(path, &text));
    const ps_err err = split_lines(path, text, out);
    free(text);
    if (err != PS_OK) ps_class_names_fini(out);
    return err;
}

void ps_class_names_save(const ps_class_names *c, int64_t n, FILE *out)
{
    for (int64_t i = 0; i < n; i++)
        fwrite(c->names[i], 1, strlen(c->names[i]) + 1, out);
}

static ps_err load_name(FILE *in, const char *path, ps_class_names *out)
{
    char name[SAVED_MAX_BYTES];
    for (size_t i = 0; i < sizeof name; i++) {
        const int c = getc(in);
        if (c == EOF) break;
        name[i] = (char)c;
        if (c == '\0') return class_names_add(out, name);
    }
    return ps_err_set(PS_ERR_FORMAT, "%s: the names of the classes are torn", path);
}

ps_err ps_class_names_load(FILE *in, int64_t n, const char *path, ps_class_names *out)
{
    *out = (ps_class_names){0};
    if (n == 0) return PS_OK;
    ps_err err = class_names_make_room(out, (size_t)n);
    for (int64_t i = 0; i < n && err == PS_OK; i++)
        err = load_name(in, path, out);
    if (err != PS_OK) ps_class_names_fini(out);
    return err;
}
