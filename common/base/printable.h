/* Makes foreign text fit for a line of a log or a terminal. */
#ifndef PS_PRINTABLE_H
#define PS_PRINTABLE_H

#include <stdbool.h>
#include <stddef.h>

/* Copies text to out, which has cap bytes (at least 8, NUL included). Valid UTF-8 stays
 * as it is, except control characters, Unicode's two line separators, U+FFFE and U+FFFF.
 * These, and bytes that are not UTF-8, become \n, \r, \t or \xNN. A text that is too long
 * ends with "...". Returns the length of out. */
size_t ps_printable(const char *text, char *out, size_t cap);

bool ps_utf8_is_valid(const char *text);

#endif
