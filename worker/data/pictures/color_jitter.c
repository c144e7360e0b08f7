#include "color_jitter.h"

#include "hue.h"
#include "rng.h"

enum { BRIGHTNESS, CONTRAST, SATURATION, HUE, ORDERS = 6, FIRST_COUNTER = 16 };

static const int orders[ORDERS][HUE] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                        {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

static void jitter_draw(ps_draw_key key, uint32_t counter0, uint32_t words[4])
{
    const uint32_t k[2] = {(uint32_t)key.seed, (uint32_t)(key.seed >> 32)};
    const uint32_t counter[4] = {counter0, PS_TRANSFORM_STREAM, key.position, key.epoch};
    ps_philox4x32(k, counter, words);
}

/* The other three are in their order already. */
static void draw_hue(double amount, ps_draw_key key, ps_color_jitter *jitter)
{
    uint32_t words[4];
    jitter_draw(key, FIRST_COUNTER + 1, words);
    const int place = amount > 0 ? (int)(words[1] >> 30) : HUE;
    jitter->turns = amount > 0;
    jitter->factor[HUE] = (float)(amount * (words[0] * 0x1p-31 - 1));
    for (int i = HUE; i > place; i--)
        jitter->order[i] = jitter->order[i - 1];
    jitter->order[place] = HUE;
}

ps_color_jitter ps_color_jitter_draw(const ps_float_list *amount, ps_draw_key key)
{
    uint32_t words[4];
    ps_color_jitter jitter;
    jitter_draw(key, FIRST_COUNTER, words);
    const int *order = orders[(uint64_t)words[3] * ORDERS >> 32];
    for (int i = 0; i < HUE; i++) {
        const double a = i < amount->n ? amount->v[i] : 0, low = a < 1 ? 1 - a : 0;
        jitter.factor[i] = (float)(low + (1 + a - low) * (words[i] * 0x1p-32));
        jitter.order[i] = order[i];
    }
    draw_hue(amount->n > HUE ? amount->v[HUE] : 0, key, &jitter);
    return jitter;
}

uint8_t ps_color_blend(int other, int in, float factor)
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
        table[v] = ps_color_blend(other, v, factor);
    for (int64_t i = 0; i < n; i++)
        pixels[i] = table[pixels[i]];
}

static void jitter_saturate(float factor, uint8_t *pixels, int channels, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const int gray = gray_of(pixels, channels, n, i);
        for (int c = 0; c < channels; c++)
            pixels[c * n + i] = ps_color_blend(gray, pixels[c * n + i], factor);
    }
}

static void apply_one(int what, float factor, uint8_t *pixels, int channels, int64_t n)
{
    if (what == HUE && channels == 3) ps_hue_turn(factor, pixels, n);
    if (what == HUE || factor == 1) return;
    if (what == SATURATION)
        jitter_saturate(factor, pixels, channels, n);
    else
        move_to(what == CONTRAST ? mean_gray(pixels, channels, n) : 0, factor, pixels,
                n * channels);
}

void ps_color_jitter_apply(const ps_color_jitter *jitter, uint8_t *pixels, int channels,
                           int64_t n)
{
    for (int i = 0; i < PS_COLOR_JITTERS; i++) {
        const int what = jitter->order[i];
        if (what != HUE || jitter->turns)
            apply_one(what, jitter->factor[what], pixels, channels, n);
    }
}
