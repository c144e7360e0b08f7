/* Rows of embedding tables, looked up or gradients, as they travel where their table has
 * a codec. The servers keep float32. A row of dim float32 becomes, little-endian:
 *
 *   fp16   blocks of 1024: the upper half of the float32 2^e, then halves of v / 2^e
 *          (codec.h); the largest of them is in [2^14, 2^15]: the halves alone would
 *          lose gradients below 1e-7                       2 dim + 2 ceil(dim / 1024)
 *   int8   as codec.h: blocks of 256, a float32 scale each   dim + 4 ceil(dim / 256)
 *
 * and one row follows the other. A row of one element would become longer: it travels as
 * float32. Through an arena (rows_body.h) float32 travels, rounded to the same numbers.
 *
 * int8 rounds rows that are looked up to nearest, so that a row is the same whenever it
 * is looked up. It rounds gradients up or down at random: their mean is the gradient, and
 * what is lost in one step is not lost in the sum of many. The random numbers depend on
 * (rank, step, table, id, element) alone, so the bits do not depend on servers, or on
 * what else is in a message. There is no error feedback: a worker would have to keep an
 * error for every id that it has ever met, which is the table. */
#ifndef PS_ROW_CODEC_H
#define PS_ROW_CODEC_H

#include <stdbool.h>

#include "row_spec.h"

/* Whether rows do not travel as float32. */
bool ps_row_codec_is_used(const ps_row_spec *spec);

uint64_t ps_row_codec_row_bytes(const ps_row_spec *spec);
/* What n rows take in a message, in float32 (4 bytes): at most n dim. */
uint64_t ps_row_codec_size(const ps_row_spec *spec, uint64_t n);

/* rows (n, dim) become, in place, what travels: ps_row_codec_size. ids (n): they are
 * gradients of these ids, key: ps_codec_draw_key of rank and step; NULL: looked up. */
void ps_row_codec_encode(const ps_row_spec *spec, uint64_t n, const uint64_t *ids,
                         uint64_t key, float *rows);
/* rows (n, dim) become what the receiver would decode. */
void ps_row_codec_round(const ps_row_spec *spec, uint64_t n, const uint64_t *ids,
                        uint64_t key, float *rows);
/* rows (n, dim) from what travelled. NUMERIC names table and id (ids (n)) of a row that
 * is not finite, by int8; PROTOCOL where the sender cannot have encoded it. rows are then
 * undefined. */
ps_err ps_row_codec_decode(const ps_row_spec *spec, uint64_t n, const uint64_t *ids,
                           const void *from, float *rows);

#endif
