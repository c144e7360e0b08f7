#include "cpu_border.h"

#include <string.h>

void ps_cpu_border_add(const ps_cpu_shape *shape, const float *x,
                       const ps_cpu_shape *bordered, float *y)
{
    const int64_t row = shape->w * shape->lanes, pitch = bordered->w * shape->lanes;
    const int64_t top = (bordered->h - shape->h) / 2 * pitch, left = (pitch - row) / 2;
    const int64_t plane = bordered->h * pitch, outer = ps_cpu_shape_outer(shape);
    for (int64_t o = 0; o < outer; o++, y += plane) {
        memset(y, 0, sizeof *y * (size_t)top);
        for (int64_t h = 0; h < shape->h; h++, x += row) {
            float *to = y + top + h * pitch;
            memset(to, 0, sizeof *to * (size_t)left);
            memcpy(to + left, x, sizeof *to * (size_t)row);
            memset(to + left + row, 0, sizeof *to * (size_t)left);
        }
        memset(y + plane - top, 0, sizeof *y * (size_t)top);
    }
}

void ps_cpu_border_remove(const ps_cpu_shape *bordered, const float *y,
                          const ps_cpu_shape *shape, float *x)
{
    const int64_t row = shape->w * shape->lanes, pitch = bordered->w * shape->lanes;
    const int64_t top = (bordered->h - shape->h) / 2 * pitch, left = (pitch - row) / 2;
    const int64_t plane = bordered->h * pitch, outer = ps_cpu_shape_outer(shape);
    for (int64_t o = 0; o < outer; o++, y += plane) {
        for (int64_t h = 0; h < shape->h; h++, x += row)
            memcpy(x, y + top + h * pitch + left, sizeof *x * (size_t)row);
    }
}
