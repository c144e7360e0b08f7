#include "random_box.h"

#include <math.h>

enum { ATTEMPTS = 10 };

static double box_uniform(uint32_t word, double low, double high)
{
    return low + (high - low) * ((double)word * 0x1p-32);
}

static bool box_draw(const double scale[2], const double ratio[2],
                     const uint32_t words[4], ps_box *box)
{
    const int64_t width = box->width, height = box->height;
    const double area =
        (double)(width * height) * box_uniform(words[0], scale[0], scale[1]);
    const double shape = exp(box_uniform(words[1], log(ratio[0]), log(ratio[1])));
    const int64_t w = lrint(sqrt(area * shape)), h = lrint(sqrt(area / shape));
    if (w < 1 || h < 1 || w > width || h > height) return false;
    *box = (ps_box){ps_draw_pick(words[3], width - w + 1),
                    ps_draw_pick(words[2], height - h + 1), w, h};
    return true;
}

static ps_box box_middle(const double ratio[2], int64_t width, int64_t height)
{
    const double shape = (double)width / (double)height;
    int64_t w = width, h = height;
    if (shape < ratio[0]) h = lrint((double)w / ratio[0]);
    if (shape > ratio[1]) w = lrint((double)h * ratio[1]);
    if (h < 1) h = 1;
    if (w < 1) w = 1;
    return (ps_box){(width - w) / 2, (height - h) / 2, w, h};
}

ps_box ps_random_box(const double scale[2], const double ratio[2], int64_t width,
                     int64_t height, ps_draw_key key)
{
    for (uint32_t i = 0; i < ATTEMPTS; i++) {
        uint32_t words[4];
        ps_box box = {0, 0, width, height};
        ps_draw_words(key, 1 + i, PS_TRANSFORM_STREAM, words);
        if (box_draw(scale, ratio, words, &box)) return box;
    }
    return box_middle(ratio, width, height);
}
