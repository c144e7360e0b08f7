/* For test_pictures.py: writes a picture's pixels as a data set has them, (C, H, W) of 8
 * bits, to the standard output; the error to the standard error.
 *
 *   show_picture                                       can this build read PNG and JPEG?
 *   show_picture CHANNELS HEIGHT WIDTH RESIZE FILE [POSITION]
 *   show_picture CHANNELS HEIGHT WIDTH RESIZE FILE - BRIGHTNESS CONTRAST SATURATION ORDER
 *
 * RESIZE: 0, N, or HxW. With a position: as in training with data.crop_scale [0.08, 1];
 * the standard error then has the part of the picture: left, top, width, height. The
 * second form changes the colours by these factors, ORDER 120 for contrast first. */
#include <stdio.h>
#include <stdlib.h>

#include "picture_reader.h"

static void change_colors(char **argv, const ps_dims *dims, uint8_t *pixels)
{
    ps_color_jitter jitter;
    for (int i = 0; i < PS_COLOR_JITTERS; i++) {
        jitter.factor[i] = (float)atof(argv[i]);
        jitter.order[i] = argv[PS_COLOR_JITTERS][i] - '0';
    }
    ps_color_jitter_apply(&jitter, pixels, (int)dims->d[0], dims->d[1] * dims->d[2]);
}

int main(int argc, char **argv)
{
    if (argc == 1) return ps_picture_check_build() != PS_OK;
    if (argc != 6 && argc != 7 && argc != 11) return 2;
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
    if (err == PS_OK && argc == 11) change_colors(argv + 7, &dims, out);
    if (err == PS_OK) {
        const ps_box b = ps_random_box(config.crop_scale.v, config.crop_ratio.v,
                                       reader.picture.width, reader.picture.height, key);
        fwrite(out, 1, n, stdout);
        fprintf(stderr, "%ld %ld %ld %ld\n", b.left, b.top, b.width, b.height);
    } else
        fprintf(stderr, "%s: %s\n", ps_err_name(err), ps_err_message());
    ps_picture_reader_fini(&reader);
    free(out);
    return err != PS_OK;
}
