/* For test_pictures.py and test_rand_augment.py: writes a picture's pixels as a data set
 * has them, (C, H, W) of 8 bits, to the standard output; errors to the standard error.
 *
 *   show_picture                                       can this build read PNG and JPEG?
 *   show_picture PICTURE [POSITION]
 *   show_picture PICTURE - BRIGHTNESS CONTRAST SATURATION HUE ORDER
 *   show_picture PICTURE OPERATION MAGNITUDE
 *   show_picture PICTURE OPERATIONS BIN POSITION
 *
 * PICTURE is CHANNELS HEIGHT WIDTH RESIZE FILE; RESIZE is 0, N or HxW. With POSITION it
 * is cropped as in training with data.crop_scale [0.08, 1]; the standard error has the
 * part that was taken: left, top, width, height. The next form changes the colours by
 * these factors, in this ORDER: 1203 begins with contrast, 120 leaves out the hue. The
 * next does one operation of rand_augment.h. The last draws operations; the standard
 * error has the number and magnitude of each. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "picture_reader.h"

static void change_colors(char **argv, const ps_dims *dims, uint8_t *pixels)
{
    const char *order = argv[PS_COLOR_JITTERS];
    ps_color_jitter jitter = {.turns = strlen(order) == PS_COLOR_JITTERS};
    for (int i = 0; i < PS_COLOR_JITTERS; i++) {
        jitter.factor[i] = (float)atof(argv[i]);
        jitter.order[i] = i < 3 || jitter.turns ? order[i] - '0' : 3;
    }
    ps_color_jitter_apply(&jitter, pixels, (int)dims->d[0], dims->d[1] * dims->d[2]);
}

static void apply(ps_augment a, const ps_dims *dims, uint8_t *pixels)
{
    uint8_t *room = malloc((size_t)(dims->d[1] * dims->d[2]));
    ps_augment_apply(a, pixels, (int)dims->d[0], dims->d[1], dims->d[2], room);
    free(room);
}

static void draw_and_apply(char **argv, const ps_dims *dims, uint8_t *pixels)
{
    const ps_draw_key key = {7, 3, (uint32_t)atoi(argv[2])};
    for (uint32_t i = 0; i < (uint32_t)atoi(argv[0]); i++) {
        const ps_augment a =
            ps_rand_augment_draw(atoi(argv[1]), dims->d[1], dims->d[2], i, key);
        fprintf(stderr, "%d %.17g ", (int)a.op, a.magnitude);
        apply(a, dims, pixels);
    }
}

static void change(int argc, char **argv, const ps_dims *dims, uint8_t *pixels)
{
    if (argc == 8)
        apply((ps_augment){(ps_augment_op)atoi(argv[6]), atof(argv[7])}, dims, pixels);
    if (argc == 9) draw_and_apply(argv + 6, dims, pixels);
    if (argc == 12) change_colors(argv + 7, dims, pixels);
}

int main(int argc, char **argv)
{
    if (argc == 1) return ps_picture_check_build() != PS_OK;
    if (argc != 6 && argc != 7 && argc != 8 && argc != 9 && argc != 12) return 2;
    ps_config_data config = {.crop = {1, {1}},
                             .crop_scale = {2, {0.08, 1}},
                             .crop_ratio = {2, {3.0 / 4, 4.0 / 3}}};
    const ps_dims dims = {3, {atoi(argv[1]), atoi(argv[2]), atoi(argv[3])}};
    config.resize.n =
        sscanf(argv[4], "%ldx%ld", &config.resize.v[0], &config.resize.v[1]);
    if (config.resize.v[0] == 0) config.resize.n = config.crop.n = 0;
    const size_t n = (size_t)ps_dims_count(&dims);
    const ps_draw_key key = {7, 3, argc == 7 ? (uint32_t)atoi(argv[6]) : 0};
    ps_picture_reader reader;
    uint8_t *out = malloc(n);
    ps_picture_reader_init(&reader, &config, &dims, argc == 7);
    const ps_err err = ps_picture_read(&reader, argv[5], key, out);
    if (err == PS_OK) {
        change(argc, argv, &dims, out);
        const ps_box b = ps_random_box(config.crop_scale.v, config.crop_ratio.v,
                                       reader.picture.width, reader.picture.height, key);
        fwrite(out, 1, n, stdout);
        if (argc != 9)
            fprintf(stderr, "%ld %ld %ld %ld\n", b.left, b.top, b.width, b.height);
    } else
        fprintf(stderr, "%s: %s\n", ps_err_name(err), ps_err_message());
    ps_picture_reader_fini(&reader);
    free(out);
    return err != PS_OK;
}
