#include "rand_augment.h"

#include <math.h>
#include <string.h>

#include "color_jitter.h"
#include "fused.h"

enum { FIRST_COUNTER = 32, LEVELS = 256, AFFINE_POINT = 16 };

/* --- draws --------------------------------------------------------------------------
 */

/* Element i of torch.linspace(0, most, 31) in float32, with the fused multiply-add that
 * PyTorch's code for AVX2 has in the second half. */
static double bin_of(double most, int i)
{
    const float end = (float)most, step = end / (PS_AUGMENT_BINS - 1);
    if (i < PS_AUGMENT_BINS / 2) return step * (float)i;
    return ps_fused(-step, (float)(PS_AUGMENT_BINS - 1 - i), end);
}

/* The largest magnitude; *has_sign: it may be negative, too. */
static double most_of(ps_augment_op op, int64_t height, int64_t width, bool *has_sign)
{
    *has_sign = true;
    switch (op) {
    case PS_AUGMENT_SHEAR_X:
    case PS_AUGMENT_SHEAR_Y:
        return 0.3;
    case PS_AUGMENT_TRANSLATE_X:
        return 150.0 / 331.0 * (double)width;
    case PS_AUGMENT_TRANSLATE_Y:
        return 150.0 / 331.0 * (double)height;
    case PS_AUGMENT_ROTATE:
        return 30;
    case PS_AUGMENT_BRIGHTNESS:
    case PS_AUGMENT_COLOR:
    case PS_AUGMENT_CONTRAST:
    case PS_AUGMENT_SHARPNESS:
        return 0.9;
    default:
        *has_sign = false;
        return 0;
    }
}

ps_augment ps_rand_augment_draw(int bin, int64_t height, int64_t width, uint32_t i,
                                ps_draw_key key)
{
    uint32_t words[4];
    bool has_sign;
    ps_draw_words(key, FIRST_COUNTER + i, PS_TRANSFORM_STREAM, words);
    ps_augment a = {.op = (ps_augment_op)ps_draw_pick(words[0], PS_AUGMENT_OPS)};
    a.magnitude = bin_of(most_of(a.op, height, width, &has_sign), bin);
    if (has_sign && words[1] >> 31) a.magnitude = -a.magnitude;
    if (a.op == PS_AUGMENT_POSTERIZE)
        a.magnitude = 8 - rint(bin / ((PS_AUGMENT_BINS - 1) / 4.0));
    if (a.op == PS_AUGMENT_SOLARIZE)
        a.magnitude = 255 - 255.0 / (PS_AUGMENT_BINS - 1) * bin;
    return a;
}

/* --- tables: Pillow's ImageOps -------------------------------------------------------
 */

static void rand_augment_look_up(const uint8_t table[LEVELS], uint8_t *pixels, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        pixels[i] = table[pixels[i]];
}

static void rand_augment_posterize(int bits, uint8_t *pixels, int64_t n)
{
    const uint8_t mask = (uint8_t)(0xFF << (8 - bits));
    for (int64_t i = 0; i < n; i++)
        pixels[i] &= mask;
}

static void rand_augment_solarize(double level, uint8_t *pixels, int64_t n)
{
    uint8_t table[LEVELS];
    for (int v = 0; v < LEVELS; v++)
        table[v] = (uint8_t)(v < level ? v : 255 - v);
    rand_augment_look_up(table, pixels, n);
}

static void rand_augment_count(const uint8_t *pixels, int64_t n, int64_t counts[LEVELS])
{
    memset(counts, 0, LEVELS * sizeof *counts);
    for (int64_t i = 0; i < n; i++)
        counts[pixels[i]]++;
}

/* Spreads one channel from its least and largest value to 0 .. 255. */
static void auto_contrast(uint8_t *pixels, int64_t n)
{
    uint8_t table[LEVELS];
    int low = 255, high = 0;
    for (int64_t i = 0; i < n; i++) {
        low = pixels[i] < low ? pixels[i] : low;
        high = pixels[i] > high ? pixels[i] : high;
    }
    if (high <= low) return;
    const double scale = 255.0 / (high - low), offset = -low * scale;
    for (int v = 0; v < LEVELS; v++)
        table[v] = ps_color_clip8(v * scale + offset);
    rand_augment_look_up(table, pixels, n);
}

/* Makes one channel's values about equally frequent. */
static void rand_augment_equalize(uint8_t *pixels, int64_t n)
{
    uint8_t table[LEVELS];
    int64_t counts[LEVELS];
    rand_augment_count(pixels, n, counts);
    int last = LEVELS - 1;
    while (last > 0 && counts[last] == 0)
        last--;
    const int64_t step = (n - counts[last]) / 255;
    if (step == 0) return;
    int64_t sum = step / 2;
    for (int v = 0; v < LEVELS; v++) {
        table[v] = ps_color_clip8((double)(sum / step));
        sum += counts[v];
    }
    rand_augment_look_up(table, pixels, n);
}

/* --- sharpness: Pillow's SMOOTH filter, and the way from it to the picture -----------
 */

/* Of a pixel that is not at the border: its own weight is 5 of 13, its neighbours' 1. */
static int rand_augment_smoothed(const uint8_t *p, int64_t width)
{
    const uint8_t *above = p - width, *below = p + width;
    const int sum = above[-1] + above[0] + above[1] + p[-1] + 5 * p[0] + p[1] +
                    below[-1] + below[0] + below[1];
    return (2 * sum + 13) / 26; // sum / 13, rounded; there are no ties
}

static void rand_augment_sharpen(float factor, uint8_t *pixels, int64_t height,
                                 int64_t width, uint8_t *room)
{
    if (height < 3 || width < 3) return;
    memcpy(room, pixels, (size_t)(height * width));
    for (int64_t y = 1; y < height - 1; y++)
        for (int64_t x = 1; x < width - 1; x++) {
            const int64_t i = y * width + x;
            pixels[i] =
                ps_color_blend(rand_augment_smoothed(room + i, width), room[i], factor);
        }
}

/* --- geometry: the inverse matrices of torchvision and Pillow ------------------------
 */

/* From a place in the output to its place in the input: x[0] * out_x + x[1] * out_y +
 * x[2], and the same of y. */
typedef struct affine {
    double x[3], y[3];
} affine;

static int64_t affine_fixed_of(double v)
{
    return (int64_t)floor(v * (1 << AFFINE_POINT) + 0.5);
}

/* Pillow's Image.transform(size, AFFINE, matrix, NEAREST) of one channel. in, out:
 * (height, width). Pixels from outside are 0. Places are added up in fixed point with 16
 * bits after the point, as Pillow does it for pictures of less than 32,768 pixels a side.
 */
static void affine_nearest(const affine *m, const uint8_t *in, int64_t height,
                           int64_t width, uint8_t *out)
{
    const int64_t x_right = affine_fixed_of(m->x[0]), x_down = affine_fixed_of(m->x[1]);
    const int64_t y_right = affine_fixed_of(m->y[0]), y_down = affine_fixed_of(m->y[1]);
    const int64_t x_first = affine_fixed_of(m->x[2] + m->x[0] * 0.5 + m->x[1] * 0.5);
    const int64_t y_first = affine_fixed_of(m->y[2] + m->y[0] * 0.5 + m->y[1] * 0.5);
    for (int64_t row = 0; row < height; row++)
        for (int64_t column = 0; column < width; column++) {
            const int64_t x = (x_first + row * x_down + column * x_right) >> AFFINE_POINT;
            const int64_t y = (y_first + row * y_down + column * y_right) >> AFFINE_POINT;
            const int inside = x >= 0 && x < width && y >= 0 && y < height;
            *out++ = inside ? in[y * width + x] : 0;
        }
}

static affine rand_augment_rotation(double degrees, int64_t height, int64_t width)
{
    const double turn = -(degrees < 0 ? degrees + 360 : degrees) * (M_PI / 180.0);
    // Pillow rounds to 15 decimals.
    const double c = rint(cos(turn) * 1e15) / 1e15, s = rint(sin(turn) * 1e15) / 1e15;
    const double x = (double)width / 2, y = (double)height / 2;
    return (affine){{c, s, c * -x + s * -y + x}, {-s, c, -s * -x + c * -y + y}};
}

/* A slope goes through torchvision's angles in degrees. */
static double slope_of(double magnitude)
{
    const double degrees = atan(magnitude) * (180.0 / M_PI);
    return tan(degrees * (M_PI / 180.0));
}

static affine matrix_of(ps_augment a, int64_t height, int64_t width)
{
    affine m = {{1, 0, 0}, {0, 1, 0}};
    if (a.op == PS_AUGMENT_ROTATE)
        return rand_augment_rotation(a.magnitude, height, width);
    if (a.op == PS_AUGMENT_SHEAR_X) m.x[1] = slope_of(a.magnitude);
    if (a.op == PS_AUGMENT_SHEAR_Y) m.y[0] = slope_of(a.magnitude);
    if (a.op == PS_AUGMENT_TRANSLATE_X) m.x[2] = -trunc(a.magnitude);
    if (a.op == PS_AUGMENT_TRANSLATE_Y) m.y[2] = -trunc(a.magnitude);
    return m;
}

/* --- all -----------------------------------------------------------------------------
 */

static void change_color(ps_augment a, uint8_t *pixels, int channels, int64_t n)
{
    ps_color_jitter jitter = {.factor = {1, 1, 1}, .order = {0, 1, 2, 3}};
    const int which = a.op == PS_AUGMENT_BRIGHTNESS ? 0
                      : a.op == PS_AUGMENT_CONTRAST ? 1
                                                    : 2;
    jitter.factor[which] = (float)(1 + a.magnitude);
    ps_color_jitter_apply(&jitter, pixels, channels, n);
}

static void change_channel(ps_augment a, uint8_t *pixels, int64_t height, int64_t width,
                           uint8_t *room)
{
    const int64_t n = height * width;
    switch (a.op) {
    case PS_AUGMENT_SHARPNESS:
        rand_augment_sharpen((float)(1 + a.magnitude), pixels, height, width, room);
        break;
    case PS_AUGMENT_POSTERIZE:
        rand_augment_posterize((int)a.magnitude, pixels, n);
        break;
    case PS_AUGMENT_SOLARIZE:
        rand_augment_solarize(a.magnitude, pixels, n);
        break;
    case PS_AUGMENT_AUTO_CONTRAST:
        auto_contrast(pixels, n);
        break;
    case PS_AUGMENT_EQUALIZE:
        rand_augment_equalize(pixels, n);
        break;
    default: {
        const affine matrix = matrix_of(a, height, width);
        memcpy(room, pixels, (size_t)n);
        affine_nearest(&matrix, room, height, width, pixels);
    }
    }
}

void ps_augment_apply(ps_augment a, uint8_t *pixels, int channels, int64_t height,
                      int64_t width, uint8_t *room)
{
    const int64_t n = height * width;
    switch (a.op) {
    case PS_AUGMENT_IDENTITY:
        break;
    case PS_AUGMENT_BRIGHTNESS:
    case PS_AUGMENT_COLOR:
    case PS_AUGMENT_CONTRAST:
        change_color(a, pixels, channels, n);
        break;
    default:
        for (int c = 0; c < channels; c++)
            change_channel(a, pixels + c * n, height, width, room);
    }
}
