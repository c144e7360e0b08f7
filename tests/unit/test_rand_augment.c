/* What RandAugment draws; test_rand_augment.py compares the pixels with torchvision. */
#include <math.h>

#include "check.h"
#include "rand_augment.h"

enum { DRAWS = 28000, BIN = 9, HEIGHT = 40, WIDTH = 331 };

static void near(double value, double want, double tolerance)
{
    if (!(fabs(value - want) <= tolerance)) fail_msg("%g instead of %g", value, want);
}

/* The magnitudes of torchvision's _augmentation_space in bin 9 of 31. Operations that are
 * missing here have none: 0. */
static const struct {
    double magnitude;
    bool has_sign;
} wanted[PS_AUGMENT_OPS] = {
    [PS_AUGMENT_SHEAR_X] = {0.09, true},
    [PS_AUGMENT_SHEAR_Y] = {0.09, true},
    [PS_AUGMENT_TRANSLATE_X] = {45, true},
    [PS_AUGMENT_TRANSLATE_Y] = {150.0 / 331 * 40 * 0.3, true},
    [PS_AUGMENT_ROTATE] = {9, true},
    [PS_AUGMENT_BRIGHTNESS] = {0.27, true},
    [PS_AUGMENT_COLOR] = {0.27, true},
    [PS_AUGMENT_CONTRAST] = {0.27, true},
    [PS_AUGMENT_SHARPNESS] = {0.27, true},
    [PS_AUGMENT_POSTERIZE] = {7, false},
    [PS_AUGMENT_SOLARIZE] = {178.5, false},
};

TEST(each_operation_is_as_frequent)
{
    int count[PS_AUGMENT_OPS] = {0}, below[PS_AUGMENT_OPS] = {0};
    for (uint32_t i = 0; i < DRAWS; i++) {
        const ps_draw_key key = {1, i % 7, i / 14};
        const ps_augment a = ps_rand_augment_draw(BIN, HEIGHT, WIDTH, i / 7 % 2, key);
        count[a.op]++;
        below[a.op] += a.magnitude < 0;
        near(fabs(a.magnitude), wanted[a.op].magnitude, 1e-6 * wanted[a.op].magnitude);
    }
    for (int i = 0; i < PS_AUGMENT_OPS; i++) {
        const double part = 1.0 / PS_AUGMENT_OPS;
        near((double)count[i] / DRAWS, part, 5 * sqrt(part / DRAWS));
        near((double)below[i] / count[i], wanted[i].has_sign ? 0.5 : 0,
             wanted[i].has_sign ? 5 * sqrt(0.25 / count[i]) : 0);
    }
}

/* Pictures of one row, column or pixel; of one colour; and magnitudes at both ends. */
TEST(odd_pictures_stay_within_their_memory)
{
    static const int64_t sizes[][2] = {{1, 1}, {1, 7}, {7, 1}, {2, 2}, {2, 9}, {3, 3}};
    static const uint8_t beyond[] = {1, 2, 3, 4, 5, 6, 7, 8};
    uint8_t pixels[54 + sizeof beyond], room[18 + sizeof beyond];
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        for (uint32_t i = 0; i < 2000; i++) {
            const int64_t area = sizes[s][0] * sizes[s][1], channels = i % 2 ? 3 : 1;
            uint8_t *const ends[] = {pixels + channels * area, room + area};
            const ps_draw_key key = {3, 0, i};
            memset(pixels, (int)i, sizeof pixels);
            for (int k = 0; k < 2; k++)
                memcpy(ends[k], beyond, sizeof beyond);
            ps_augment_apply(ps_rand_augment_draw((int)(i % PS_AUGMENT_BINS), sizes[s][0],
                                                  sizes[s][1], 0, key),
                             pixels, (int)channels, sizes[s][0], sizes[s][1], room);
            for (int k = 0; k < 2; k++)
                assert_memory_equal(ends[k], beyond, sizeof beyond);
        }
}
