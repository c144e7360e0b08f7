#include "color_jitter.h"

#include <math.h>

enum { BRIGHTNESS, CONTRAST, SATURATION, HUE, ORDERS = 6, FIRST_COUNTER = 16 };

static const int orders[ORDERS][HUE] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                        {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

/* The other three are in their order already. */
static void draw_hue(double amount, ps_draw_key key, ps_color_jitter *jitter)
{
    uint32_t words[4];
    ps_draw_words(key, FIRST_COUNTER + 1, PS_TRANSFORM_STREAM, words);
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
    ps_draw_words(key, FIRST_COUNTER, PS_TRANSFORM_STREAM, words);
    const int *order = orders[ps_draw_pick(words[3], ORDERS)];
    for (int i = 0; i < HUE; i++) {
        const double a = i < amount->n ? amount->v[i] : 0, low = a < 1 ? 1 - a : 0;
        jitter.factor[i] = (float)(low + (1 + a - low) * (words[i] * 0x1p-32));
        jitter.order[i] = order[i];
    }
    draw_hue(amount->n > HUE ? amount->v[HUE] : 0, key, &jitter);
    return jitter;
}

uint8_t ps_color_clip8(double v)
{
    return (uint8_t)(v <= 0 ? 0 : v >= 255 ? 255 : v);
}

uint8_t ps_color_blend(int other, int in, float factor)
{
    return ps_color_clip8((float)other + factor * (float)(in - other));
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

/* Sums and quotients are of the types (float or double) that Pillow's have, for the same
 * rounding. */

typedef struct hsv {
    uint8_t h, s, v;
} hsv;

static hsv hsv_of(int r, int g, int b)
{
    const int most = r > g ? (r > b ? r : b) : (g > b ? g : b);
    const int least = r < g ? (r < b ? r : b) : (g < b ? g : b);
    if (most == least) return (hsv){0, 0, (uint8_t)most};
    const float range = (float)(most - least), s = range / (float)most;
    const float rc = (float)(most - r) / range, gc = (float)(most - g) / range;
    const float bc = (float)(most - b) / range;
    float h = bc - gc;
    if (r != most) h = (float)(g == most ? 2.0 + rc - bc : 4.0 + gc - rc);
    h = (float)fmod(h / 6.0 + 1.0, 1.0);
    return (hsv){ps_color_clip8(h * 255.0), ps_color_clip8(s * 255.0), (uint8_t)most};
}

static void hsv_to_rgb(hsv c, uint8_t *r, uint8_t *g, uint8_t *b)
{
    const int sixth = (int)floor((float)c.h * 6.0 / 255.0);
    const float rest = (float)((float)c.h * 6.0 / 255.0 - (float)sixth);
    const float s = (float)((float)c.s / 255.0), part = s * rest;
    const uint8_t v = c.v, p = ps_color_clip8(round((float)v * (1.0 - s)));
    const uint8_t q = ps_color_clip8(round((float)v * (1.0 - part)));
    const uint8_t t = ps_color_clip8(round((float)v * (1.0 - s * (1.0 - rest))));
    const uint8_t colors[6][3] = {{v, t, p}, {q, v, p}, {p, v, t},
                                  {p, q, v}, {t, p, v}, {v, p, q}};
    const uint8_t *own = colors[sixth % 6];
    *r = c.s == 0 ? v : own[0];
    *g = c.s == 0 ? v : own[1];
    *b = c.s == 0 ? v : own[2];
}

/* Turns the colours of Pillow's HSV, as torchvision's adjust_hue does it. pixels: (3, n),
 * changed in place. turn: -0.5 to 0.5 of the circle, rounded towards 0 to a multiple of
 * 1/255. Also a turn of 0 rounds the pixels to what HSV of 8 bits holds. */
static void hue_turn(float turn, uint8_t *pixels, int64_t n)
{
    const uint8_t by = (uint8_t)(int)((double)turn * 255);
    for (int64_t i = 0; i < n; i++) {
        uint8_t *r = pixels + i, *g = r + n, *b = g + n;
        hsv c = hsv_of(*r, *g, *b);
        c.h = (uint8_t)(c.h + by);
        hsv_to_rgb(c, r, g, b);
    }
}

static void apply_one(int what, float factor, uint8_t *pixels, int channels, int64_t n)
{
    if (what == HUE && channels == 3) hue_turn(factor, pixels, n);
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
