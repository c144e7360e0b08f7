#include "picture_reader.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "mem.h"

void ps_picture_reader_init(ps_picture_reader *r, const ps_config_data *config,
                            const ps_dims *dims, bool augment)
{
    memset(r, 0, sizeof *r);
    r->config = config;
    r->augment = augment;
    r->channels = dims->d[0];
    r->height = dims->d[1];
    r->width = dims->d[2];
}

void ps_picture_reader_fini(ps_picture_reader *r)
{
    free(r->file);
    free(r->plane);
    ps_picture_fini(&r->picture);
    ps_resampler_fini(&r->resampler);
    memset(r, 0, sizeof *r);
}

static ps_err reserve_file(ps_picture_reader *r, const char *path, const struct stat *st)
{
    if (!S_ISREG(st->st_mode))
        return ps_err_set(PS_ERR_IO, "%s: is not a regular file", path);
    if (st->st_size > PS_PICTURE_MAX_FILE_BYTES)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: %lld bytes; a picture's file has at most %d", path,
                          (long long)st->st_size, PS_PICTURE_MAX_FILE_BYTES);
    if ((size_t)st->st_size <= r->room) return PS_OK;
    free(r->file);
    r->file = NULL;
    r->room = 0;
    PS_TRY(ps_mem_zalloc(&r->file, (size_t)st->st_size, 1, path));
    r->room = (size_t)st->st_size;
    return PS_OK;
}

/* A file that became shorter since its size was read is given to the decoder as it is. */
static ps_err picture_reader_read_all(ps_picture_reader *r, int fd, const char *path,
                                      size_t *n)
{
    struct stat st;
    *n = 0;
    if (fstat(fd, &st) != 0) return ps_err_errno(PS_ERR_IO, "%s", path);
    PS_TRY(reserve_file(r, path, &st));
    while (*n < (size_t)st.st_size) {
        const ssize_t got = read(fd, r->file + *n, (size_t)st.st_size - *n);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ps_err_errno(PS_ERR_IO, "%s", path);
        if (got == 0) break;
        *n += (size_t)got;
    }
    return PS_OK;
}

static ps_err picture_reader_read_file(ps_picture_reader *r, const char *path, size_t *n)
{
    // O_NONBLOCK: a FIFO of that name must not hang us; regular files don't mind.
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ps_err_errno(PS_ERR_IO, "%s", path);
    const ps_err err = picture_reader_read_all(r, fd, path, n);
    close(fd);
    return err;
}

static void set_size(const ps_config_data *config, const ps_picture *p,
                     ps_resample_size *size)
{
    const ps_int_list *resize = &config->resize;
    size->width = p->width;
    size->height = p->height;
    if (resize->n == 2) {
        size->height = resize->v[0];
        size->width = resize->v[1];
    } else if (resize->n == 1 && p->width <= p->height) {
        size->width = resize->v[0];
        size->height = (int64_t)((double)(resize->v[0] * p->height) / (double)p->width);
    } else if (resize->n == 1) {
        size->height = resize->v[0];
        size->width = (int64_t)((double)(resize->v[0] * p->width) / (double)p->height);
    }
}

static ps_err check_size(const ps_picture_reader *r, const char *path,
                         const ps_resample_size *size)
{
    const bool given = r->config->resize.n > 0 || r->config->crop.n > 0;
    const bool same = size->width == r->width && size->height == r->height;
    if (given ? size->width >= r->width && size->height >= r->height : same) return PS_OK;
    return ps_err_set(PS_ERR_SHAPE,
                      "%s: a picture of %" PRId64 " x %" PRId64 " (height x width)%s, %s "
                      "%" PRId64 " x %" PRId64 " %s: set data.resize",
                      path, size->height, size->width,
                      r->config->resize.n > 0 ? " after data.resize" : "",
                      given ? "smaller than the" : "but", r->height, r->width,
                      given ? "that are cropped from it" : "are expected");
}

/* Evaluation, and training without data.crop_scale. */
static ps_err fit_middle(ps_picture_reader *r, const char *path, ps_resample_size *size)
{
    set_size(r->config, &r->picture, size);
    PS_TRY(check_size(r, path, size));
    size->from_width = r->picture.width;
    size->from_height = r->picture.height;
    // CenterCrop rounds half to even, as Python does.
    size->left = lrint((double)(size->width - r->width) / 2);
    size->top = lrint((double)(size->height - r->height) / 2);
    return PS_OK;
}

static void fit_random(const ps_picture_reader *r, ps_draw_key key,
                       ps_resample_size *size)
{
    const ps_box box = ps_random_box(r->config->crop_scale.v, r->config->crop_ratio.v,
                                     r->picture.width, r->picture.height, key);
    size->from_left = box.left;
    size->from_top = box.top;
    size->from_width = box.width;
    size->from_height = box.height;
    size->width = r->width;
    size->height = r->height;
}

/* out is (channels, height, width). */
static ps_err picture_reader_augment(ps_picture_reader *r, ps_draw_key key, uint8_t *out)
{
    const int64_t n = r->height * r->width, *ops = r->config->rand_augment.v;
    if (r->config->color_jitter.n > 0) {
        const ps_color_jitter jitter =
            ps_color_jitter_draw(&r->config->color_jitter, key);
        ps_color_jitter_apply(&jitter, out, (int)r->channels, n);
    }
    if (r->config->rand_augment.n == 0) return PS_OK;
    if (r->plane == NULL)
        PS_TRY(ps_mem_zalloc(&r->plane, (size_t)n, 1, "a picture's channel"));
    for (uint32_t i = 0; i < ops[0]; i++)
        ps_augment_apply(ps_rand_augment_draw((int)ops[1], r->height, r->width, i, key),
                         out, (int)r->channels, r->height, r->width, r->plane);
    return PS_OK;
}

ps_err ps_picture_read(ps_picture_reader *r, const char *path, ps_draw_key key,
                       uint8_t *out)
{
    size_t n = 0;
    ps_resample_size size = {.crop_width = r->width, .crop_height = r->height};
    PS_TRY(picture_reader_read_file(r, path, &n));
    PS_TRY(ps_picture_decode(path, r->file, n, &r->picture));
    if (r->channels == 1) ps_picture_to_gray(&r->picture);
    if (r->augment && r->config->crop_scale.n > 0)
        fit_random(r, key, &size);
    else
        PS_TRY(fit_middle(r, path, &size));
    PS_TRY(ps_resample(&r->resampler, &r->picture, &size, out));
    return r->augment ? picture_reader_augment(r, key, out) : PS_OK;
}
