#include "first_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "err.h"

enum { END_BYTES = sizeof " and 9223372036854775807 more" };

void ps_first_names_add(ps_first_names *f, const char *fmt, ...)
{
    char name[PS_FIRST_NAMES_BYTES];
    const size_t room = sizeof f->text - END_BYTES - f->bytes;
    if (f->n++ > f->n_shown || f->n_shown == PS_FIRST_NAMES_MOST) return;
    PS_PRINT(name, fmt);
    if (f->n_shown > 0 && strlen(name) + sizeof ", " > room) return;
    f->bytes += (size_t)snprintf(f->text + f->bytes, room, "%s%.*s",
                                 f->n_shown > 0 ? ", " : "", (int)room - 1, name);
    f->n_shown++;
}

const char *ps_first_names_text(ps_first_names *f)
{
    if (f->n > f->n_shown)
        snprintf(f->text + f->bytes, sizeof f->text - f->bytes, " and %" PRId64 " more",
                 f->n - f->n_shown);
    return f->text;
}
