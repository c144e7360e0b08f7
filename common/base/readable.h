/* Numbers as people read them. */
#ifndef PS_READABLE_H
#define PS_READABLE_H

enum { PS_READABLE_BYTES = 24 };

/* A loss or an error: about five digits, "0.0412", "123.40", "61,130", "2.9e10", "nan".
 * Returns out. */
const char *ps_readable_figure(double value, char out[PS_READABLE_BYTES]);
/* A value of data, without commas, as the data have it: "51", "-124.3", "61130",
 * "2.0e-5". span: how far it may be from those that stand beside it; it has the digits
 * that tell them apart: "1700000399". 0: alone. Returns out. */
const char *ps_readable_value(double value, double span, char out[PS_READABLE_BYTES]);

/* Rounded: "61,130"; from 1e16 on as a figure. Returns out. */
const char *ps_readable_whole(double value, char out[PS_READABLE_BYTES]);

/* A count as an argument of printf; the text lives as long as the block does. */
#define PS_COUNTED(n) ps_readable_whole((double)(n), (char[PS_READABLE_BYTES]){0})

/* A count or a rate: "512", "29.5 k", "1.2 M". Returns out. */
const char *ps_readable_count(double value, char out[PS_READABLE_BYTES]);

#endif
