/* Pictures of a set that a job cannot take: counted, with the first names. */
#ifndef PS_FAULTY_PICTURES_H
#define PS_FAULTY_PICTURES_H

#include "clock.h"
#include "config.h"
#include "first_names.h"
#include "samples.h"

typedef struct ps_faulty_pictures {
    int64_t read;               // of the set's n
    ps_first_names broken, odd; // cannot be read; have another size than the job needs
} ps_faulty_pictures;

/* Called for each picture: err is what reading it gave. */
typedef void ps_picture_tried(void *ctx, int64_t i, ps_err err);

/* Whether a picture's own fault makes reading it fail. */
bool ps_picture_is_faulty(ps_err err);

/* Reads the pictures in their order until `end`. tried: NULL: nothing is called. NOMEM,
 * INTERRUPTED. */
ps_err ps_faulty_pictures_find(ps_faulty_pictures *f, const ps_config_data *data,
                               const ps_dataset *set, ps_deadline end,
                               ps_picture_tried *tried, void *ctx);

/* "KEY: 3 of 40 pictures cannot be read: a.png, b.png and 1 more; KEY: ...", of n parts,
 * and what to do about them; f, keys: (n). PS_OK: there are none. */
ps_err ps_faulty_pictures_error(ps_faulty_pictures *f, const char *const *keys, int n);

#endif
