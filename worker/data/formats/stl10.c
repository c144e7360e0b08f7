#include "stl10.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

enum { SIDE = 96, PLANE = SIDE * SIDE, PIXELS = 3 * PLANE };

static void stl10_transpose(uint8_t *restrict plane, uint8_t *restrict spare)
{
    for (int y = 0; y < SIDE; y++)
        for (int x = 0; x < SIDE; x++)
            spare[y * SIDE + x] = plane[x * SIDE + y];
    memcpy(plane, spare, PLANE);
}

static ps_err read_images(const char *path, ps_dataset *out)
{
    uint64_t bytes = 0;
    PS_TRY(ps_source_read_file(path, PS_SOURCE_MAX_BYTES, &out->values, &bytes));
    if (bytes == 0 || bytes % PIXELS != 0)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: %" PRIu64 " bytes are not a whole number of images of %d",
                          path, bytes, PIXELS);
    out->n = (int64_t)(bytes / PIXELS);
    out->dims = (ps_dims){3, {3, SIDE, SIDE}};
    uint8_t spare[PLANE];
    for (int64_t i = 0; i < out->n * 3; i++)
        stl10_transpose((uint8_t *)out->values + i * PLANE, spare);
    return PS_OK;
}

static ps_err stl10_read_labels(const char *path, ps_dataset *out)
{
    void *bytes = NULL;
    uint64_t n = 0;
    ps_err err = PS_OK;
    PS_TRY(ps_source_read_file(path, PS_SOURCE_MAX_BYTES, &bytes, &n));
    if (n != (uint64_t)out->n)
        PS_TRY_GOTO(ps_err_set(PS_ERR_FORMAT,
                               "%s has %" PRIu64 " labels for %" PRId64 " images", path,
                               n, out->n),
                    err, out);
    PS_TRY_GOTO(PS_NEW(&out->labels, n, "labels"), err, out);
    for (uint64_t i = 0; i < n; i++) {
        int label = ((uint8_t *)bytes)[i];
        if (label < 1 || label > 10)
            PS_TRY_GOTO(ps_err_set(PS_ERR_FORMAT,
                                   "%s: label %" PRIu64 " is %d; STL-10's are 1 to 10",
                                   path, i, label),
                        err, out);
        out->labels[i] = label - 1;
    }
out:
    free(bytes);
    return err;
}

ps_err ps_stl10_read(char *const *paths, int n_paths, ps_dataset *out)
{
    memset(out, 0, sizeof *out);
    ps_err err = read_images(paths[0], out);
    if (err == PS_OK) err = stl10_read_labels(paths[1], out);
    if (err != PS_OK) ps_dataset_fini(out);
    return err;
}
