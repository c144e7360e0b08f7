#include "faulty_pictures.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "interrupt.h"
#include "mem.h"
#include "picture_reader.h"

bool ps_picture_is_faulty(ps_err err)
{
    return err == PS_ERR_FORMAT || err == PS_ERR_IO || err == PS_ERR_SHAPE;
}

ps_err ps_faulty_pictures_find(ps_faulty_pictures *f, const ps_config_data *data,
                               const ps_dataset *set, ps_deadline end,
                               ps_picture_tried *tried, void *ctx)
{
    ps_picture_reader reader;
    uint8_t *sample;
    ps_err err = PS_OK;
    *f = (ps_faulty_pictures){0};
    PS_TRY(ps_mem_zalloc(&sample, (size_t)ps_dims_count(&set->dims), 1, "a picture"));
    ps_picture_reader_init(&reader, data, &set->dims, false);
    for (; f->read < set->n && !ps_deadline_passed(end) && err == PS_OK; f->read++) {
        const char *path = set->files[f->read];
        const ps_err bad = ps_picture_read(&reader, path, (ps_draw_key){0}, sample);
        if (tried) tried(ctx, f->read, bad);
        if (ps_picture_is_faulty(bad))
            ps_first_names_add(bad == PS_ERR_SHAPE ? &f->odd : &f->broken, "%s", path);
        else
            err = bad;
        if (err == PS_OK) err = ps_interrupt_check();
    }
    ps_picture_reader_fini(&reader);
    free(sample);
    return err;
}

static void say_faulty(ps_first_names *names, int64_t read, const char *key,
                       const char *what, char text[PS_ERR_MESSAGE_BYTES])
{
    const size_t at = strlen(text);
    if (names->n > 0)
        snprintf(text + at, PS_ERR_MESSAGE_BYTES - at,
                 "%s: %" PRId64 " of %" PRId64 " pictures %s: %s; ", key, names->n, read,
                 what, ps_first_names_text(names));
}

ps_err ps_faulty_pictures_error(ps_faulty_pictures *f, const char *const *keys, int n)
{
    char text[PS_ERR_MESSAGE_BYTES] = "";
    bool broken = false, odd = false;
    for (int i = 0; i < n; i++) {
        say_faulty(&f[i].broken, f[i].read, keys[i], "cannot be read", text);
        say_faulty(&f[i].odd, f[i].read, keys[i], "have another size", text);
        broken = broken || f[i].broken.n > 0;
        odd = odd || f[i].odd.n > 0;
    }
    if (!broken && !odd) return PS_OK;
    return ps_err_set(broken ? PS_ERR_FORMAT : PS_ERR_SHAPE, "%s%s%s%s", text,
                      broken ? "remove them, save them again, or set "
                               "data.unreadable=skip"
                             : "",
                      broken && odd ? "; " : "", odd ? "set data.resize" : "");
}
