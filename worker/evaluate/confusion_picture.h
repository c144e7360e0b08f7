/* A confusion matrix as a picture (SVG). */
#ifndef PS_CONFUSION_PICTURE_H
#define PS_CONFUSION_PICTURE_H

#include "confusion.h"

/* A row per label, each row as parts of its samples; there must be a matrix. Classes that
 * have names are shown by them, shortened where they are long. The picture has its own
 * colours for light and for dark. */
void ps_confusion_write_svg(const ps_confusion *c, FILE *out);

#endif
