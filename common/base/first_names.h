/* The first names of a list, for a message: as many as there is room for. */
#ifndef PS_FIRST_NAMES_H
#define PS_FIRST_NAMES_H

#include <stddef.h>
#include <stdint.h>

enum { PS_FIRST_NAMES_MOST = 20, PS_FIRST_NAMES_BYTES = 360 };

typedef struct ps_first_names { // zeroed: none
    int64_t n;                  // all that were added
    char text[PS_FIRST_NAMES_BYTES];
    int64_t n_shown; // in text
    size_t bytes;    // of text
} ps_first_names;

__attribute__((format(printf, 2, 3))) void ps_first_names_add(ps_first_names *f,
                                                              const char *fmt, ...);

/* "a, b and 3 more": f's own, after the last one. */
const char *ps_first_names_text(ps_first_names *f);

#endif
