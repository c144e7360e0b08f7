#include "affine.h"

#include <math.h>

enum { POINT = 16 };

static int64_t fixed_of(double v)
{
    return (int64_t)floor(v * (1 << POINT) + 0.5);
}

void ps_affine_nearest(const ps_affine *m, const uint8_t *in, int64_t height,
                       int64_t width, uint8_t *out)
{
    const int64_t x_right = fixed_of(m->x[0]), x_down = fixed_of(m->x[1]);
    const int64_t y_right = fixed_of(m->y[0]), y_down = fixed_of(m->y[1]);
    const int64_t x_first = fixed_of(m->x[2] + m->x[0] * 0.5 + m->x[1] * 0.5);
    const int64_t y_first = fixed_of(m->y[2] + m->y[0] * 0.5 + m->y[1] * 0.5);
    for (int64_t row = 0; row < height; row++)
        for (int64_t column = 0; column < width; column++) {
            const int64_t x = (x_first + row * x_down + column * x_right) >> POINT;
            const int64_t y = (y_first + row * y_down + column * y_right) >> POINT;
            const int inside = x >= 0 && x < width && y >= 0 && y < height;
            *out++ = inside ? in[y * width + x] : 0;
        }
}
