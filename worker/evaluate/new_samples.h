/* Samples for a trained model, from wherever people have them. */
#ifndef PS_NEW_SAMPLES_H
#define PS_NEW_SAMPLES_H

#include "loaded_model.h"

typedef struct ps_new_samples {
    ps_dataset set;
    bool answered;           // the set has what the outputs are compared with
    bool named;              // pictures have names
    const char *what;        // for messages; borrowed
    const char *mend;        // of samples that do not fit the model; borrowed
    FILE *copy;              // of what can be read only once; NULL: none
    ps_preprocessing *state; // of a table; the model's, borrowed, where it has one
} ps_new_samples;

/* what:
 *   test    the test set of the job's data
 *   FOLDER  the pictures in it; where they lie in folders with the names of the classes,
 *           these are what the outputs are compared with
 *   FILE    npy; a picture; else a table: what it is, its first bytes say. Plain or gzip
 *   -       the same from standard input, which is copied into a temporary file
 *
 * Errors name what. s is safe for
 * fini in every case. */
ps_err ps_new_samples_read(ps_new_samples *s, const ps_loaded_model *m, const char *what);

/* Of a request's body, of at most `most` samples: what a file may hold or, where it
 * begins with { or [, JSON:
 *   {"samples": [SAMPLE, ...]}, the list alone, or one object alone
 *   SAMPLE = numbers in the shape of the model's input, or in one list; they are what
 *            "dtype" beside the samples says: "uint8", pixels as they are stored, which
 *            is so unless data.kind is npy or csv, or "float32"; of a table with names
 *            {"column": number, text or null, ...}; of clicks 13 counts and 26 ids, texts
 *            of hexadecimal digits, in one list, each of which may be null
 * Any other body is FORMAT or SHAPE. The text is borrowed during the call; a NUL
 * follows it. */
ps_err ps_new_samples_of_body(ps_new_samples *s, const ps_loaded_model *m,
                              const char *text, size_t bytes, int64_t most);

/* Of pictures that cannot be read as these are predicted: all of them are named. */
ps_err ps_new_samples_blame(const ps_new_samples *s, const ps_loaded_model *m,
                            ps_err err);

/* An error of these samples, in which a copy has the name of what it is a copy of. */
ps_err ps_new_samples_name(const ps_new_samples *s, ps_err err);

/* m: as it was read for; safe on a zeroed s. */
void ps_new_samples_fini(ps_new_samples *s, const ps_loaded_model *m);

#endif
