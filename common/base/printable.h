/* Text from elsewhere made fit for a line of a log or a terminal. */
#ifndef PS_PRINTABLE_H
#define PS_PRINTABLE_H

#include <stddef.h>

/* Copies text to out, of cap bytes (at least 8), the end included. Valid UTF-8 stays as
 * it is, except control characters: these, as well as the two line separators of Unicode
 * and every byte that is no UTF-8, become \n, \r, \t or \xNN. Too long a text ends with
 * "...". Returns the length of out. */
size_t ps_printable(const char *text, char *out, size_t cap);

#endif
