/* Numbers and words from text: the whole text or nothing. Pure, no allocation.
 *
 * strtol and its kin accept leading blanks, hexadecimal and "nan", and report overflow
 * only in errno. A configuration or a command line must accept none of that.
 */
#ifndef PS_PARSE_TEXT_H
#define PS_PARSE_TEXT_H

#include <stdbool.h>
#include <stdint.h>

/* Decimal, optional sign. */
bool ps_parse_int(const char *text, int64_t *out);
bool ps_parse_uint(const char *text, uint64_t *out);
/* Decimal with fraction and exponent, or a quotient of two such ("1/255"); finite. */
bool ps_parse_double(const char *text, double *out);
/* true yes on, false no off; any case. */
bool ps_parse_bool(const char *text, bool *out);
/* A whole number with an optional suffix K KiB M MiB G GiB (powers of 1,024); any case.
 */
bool ps_parse_bytes(const char *text, int64_t *out);

#endif
