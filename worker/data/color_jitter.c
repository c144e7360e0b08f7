#include "color_jitter.h"

#include "rng.h"

enum { BRIGHTNESS, CONTRAST, SATURATION, ORDERS = 6, FIRST_COUNTER = 16 };

static const int orders[ORDERS][PS_COLOR_JITTERS] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                                     {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

ps_color_jitter ps_color_jitter_draw(const ps_float_list *amount, ps_draw_key key)
{
    const uint32_t k[2] = {(uint32_t)key.seed, (uint32_t)(key.seed >> 32)};
    const uint32_t counter[4] = {FIRST_COUNTER, PS_TRANSFORM_STREAM, key.position,
                                 key.epoch};
    uint32_t words[4];
    ps_color_jitter jitter;
    ps_philox4x32(k, counter, words);
    const int *order = orders[(uint64_t)words[3] * ORDERS >> 32];
    for (int i = 0; i < PS_COLOR_JITTERS; i++) {
        const double a = i < amount->n ? amount->v[i] : 0, low = a < 1 ? 1 - a : 0;
        jitter.factor[i] = (float)(low + (1 + a - low) * (words[i] * 0x1p-32));
        jitter.order[i] = order[i];
    }
    return jitter;
}

static uint8_t blend(int other, int in, float factor)
{
    const float v = (float)other + factor * (float)(in - other);
    return (uint8_t)(v <= 0 ? 0 : v >= 255 ? 255 : v);
}

/* Pillow's convert("L") of pixel i. */
static int gray_of(const uint8_t *pixels, int channels, int64_t n, int64_t i)
{
    if (channels == 1) return pixels[i];
    const uint32_t sum =
        pixels[i] * 19595u + pixels[n + i] * 38470u + pixels[2 * n + i] * 7471u;
    return (int)((sum + 0x8000) >> 16);
}

static int mean_gray(const uint8_t *pixels, int channels, int64_t n)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += gray_of(pixels, channels, n, i);
    return (int)((double)sum / (double)n + 0.5);
}

static void move_to(int other, float factor, uint8_t *pixels, int64_t n)
{
    uint8_t table[256];
    for (int v = 0; v < 256; v++)
        table[v] = blend(other, v, factor);
    for (int64_t i = 0; i < n; i++)
        pixels[i] = table[pixels[i]];
}

static void saturate(float factor, uint8_t *pixels, int channels, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const int gray = gray_of(pixels, channels, n, i);
        for (int c = 0; c < channels; c++)
            pixels[c * n + i] = blend(gray, pixels[c * n + i], factor);
    }
}

void ps_color_jitter_apply(const ps_color_jitter *jitter, uint8_t *pixels, int channels,
                           int64_t n)
{
    for (int i = 0; i < PS_COLOR_JITTERS; i++) {
        const int what = jitter->order[i];
        const float factor = jitter->factor[what];
        if (factor == 1) continue;
        if (what == SATURATION)
            saturate(factor, pixels, channels, n);
        else
            move_to(what == CONTRAST ? mean_gray(pixels, channels, n) : 0, factor, pixels,
                    n * channels);
    }
}
