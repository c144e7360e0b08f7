/* The names of classes, where the data have them. */
#ifndef PS_CLASS_NAMES_H
#define PS_CLASS_NAMES_H

#include <stdint.h>
#include <stdio.h>

#include "err.h"

typedef struct ps_class_names {
    int64_t n;    // 0: the classes have no names
    char **names; // (n) any bytes but NUL; owned, each of its own
} ps_class_names;

void ps_class_names_fini(ps_class_names *c); // safe on a zeroed one

ps_err ps_class_names_copy(const ps_class_names *from, ps_class_names *out); // NOMEM

/* NULL: the class has no name, or it is none, as a label that is ignored. */
const char *ps_class_name(const ps_class_names *c, int64_t class);

/* A file with one name per line, the first of class 0; empty lines may end it, and
 * spaces at the ends of a line are left out. IO, NOMEM; FORMAT: it is larger than 1 MiB,
 * no text, or has an empty line before a name. out is zeroed on failure. */
ps_err ps_class_names_read(const char *path, ps_class_names *out);

/* The first n names as a part of a file, each followed by a NUL. The reader returns
 * FORMAT when they are cut off, or longer than names of files can be; the message has
 * path. out is zeroed on failure. */
void ps_class_names_save(const ps_class_names *c, int64_t n, FILE *out);
ps_err ps_class_names_load(FILE *in, int64_t n, const char *path, ps_class_names *out);

#endif
