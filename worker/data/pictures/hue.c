#include "hue.h"

#include <math.h>

/* Sums and quotients are of the types (float or double) that Pillow's have, for the same
 * rounding. */

typedef struct hsv {
    uint8_t h, s, v;
} hsv;

static uint8_t hue_clip8(double v)
{
    return (uint8_t)(v <= 0 ? 0 : v >= 255 ? 255 : v);
}

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
    return (hsv){hue_clip8(h * 255.0), hue_clip8(s * 255.0), (uint8_t)most};
}

static void rgb_of(hsv c, uint8_t *r, uint8_t *g, uint8_t *b)
{
    const int sixth = (int)floor((float)c.h * 6.0 / 255.0);
    const float rest = (float)((float)c.h * 6.0 / 255.0 - (float)sixth);
    const float s = (float)((float)c.s / 255.0), part = s * rest;
    const uint8_t v = c.v, p = hue_clip8(round((float)v * (1.0 - s)));
    const uint8_t q = hue_clip8(round((float)v * (1.0 - part)));
    const uint8_t t = hue_clip8(round((float)v * (1.0 - s * (1.0 - rest))));
    const uint8_t colors[6][3] = {{v, t, p}, {q, v, p}, {p, v, t},
                                  {p, q, v}, {t, p, v}, {v, p, q}};
    const uint8_t *own = colors[sixth % 6];
    *r = c.s == 0 ? v : own[0];
    *g = c.s == 0 ? v : own[1];
    *b = c.s == 0 ? v : own[2];
}

void ps_hue_turn(float turn, uint8_t *pixels, int64_t n)
{
    const uint8_t by = (uint8_t)(int)((double)turn * 255);
    for (int64_t i = 0; i < n; i++) {
        uint8_t *r = pixels + i, *g = r + n, *b = g + n;
        hsv c = hsv_of(*r, *g, *b);
        c.h = (uint8_t)(c.h + by);
        rgb_of(c, r, g, b);
    }
}
