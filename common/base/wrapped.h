/* Texts that are broken between words, for terminals. */
#ifndef PS_WRAPPED_H
#define PS_WRAPPED_H

#include <stdio.h>

/* The columns of the terminal that a stream is; 0: it is none. */
int ps_terminal_columns(FILE *stream);

/* Of a text of UTF-8, each character counted as one. */
int ps_text_columns(const char *text);

/* Prints a text and the end of its line. The line has `at` columns already; those that
 * follow begin with `indent` blanks. columns 0: it is not broken. */
void ps_print_wrapped(FILE *out, int columns, int at, int indent, const char *text);

#endif
