#include <math.h>

#include "check.h"
#include "transform.h"

static ps_config_data settings(void)
{
    return (ps_config_data){.scale = 1};
}

/* torchvision: (ToTensor()(image) - 0.1307) / 0.3081 of PyTorch 1.13, bit for bit. */
TEST(normalised_bytes_are_torchvisions)
{
    static const uint8_t in[6] = {0, 1, 77, 128, 254, 255};
    static const float torch[6] = {-0x1.b264e2p-2f, -0x1.a55c4p-2f, 0x1.1c99d2p-1f,
                                   0x1.347af4p+0f,  0x1.678566p+1f, 0x1.69267ap+1f};
    ps_config_data c = settings();
    c.scale = 1.0 / 255;
    c.normalize = (ps_float_list){2, {0.1307, 0.3081}};
    ps_transform t;
    const ps_dims dims = {3, {1, 2, 3}}, flat = {1, {6}};
    float out[6];
    for (int i = 0; i < 2; i++) {
        assert_ok(ps_transform_init(&t, &c, &dims, false, i ? &flat : &dims, true, NULL));
        ps_transform_apply(&t, in, (ps_draw_key){0}, out);
        assert_memory_equal(out, torch, sizeof out);
        ps_transform_fini(&t);
    }
}

TEST(channels_have_their_own_numbers)
{
    static const float in[4] = {1, 2, 3, 4};
    ps_config_data c = settings();
    c.scale = 99; // not for float data
    c.normalize = (ps_float_list){4, {1, 2, 2, 4}};
    const ps_dims dims = {3, {2, 1, 2}};
    ps_transform t;
    float out[4];
    assert_ok(ps_transform_init(&t, &c, &dims, true, &dims, true, NULL));
    ps_transform_apply(&t, in, (ps_draw_key){0}, out);
    assert_true(out[0] == 0 && out[1] == 0.5f && out[2] == 0.25f && out[3] == 0.5f);
    ps_transform_fini(&t);
}

/* torch.nn.functional.interpolate(x, size, mode="bilinear") of PyTorch 1.13. */
static const float torch_7x4[] = {
    4.625f,      50.875f,     97.125f,     143.375f,    31.0535717f, 63.8571434f,
    87.6964264f, 133.946426f, 110.339287f, 102.803574f, 59.4107132f, 105.660713f,
    189.625f,    141.75f,     31.1250038f, 77.375f,     161.339279f, 153.803574f,
    110.410721f, 62.5357132f, 133.053574f, 165.857147f, 189.696426f, 47.6964264f,
    123.625f,    169.875f,    216.125f,    42.75f,      57.625f,     103.875f,
    150.125f,    196.375f,    79.571434f,  94.4464264f, 140.696426f, 186.946426f,
    145.410721f, 66.1607132f, 112.410713f, 158.660706f, 211.25f,     37.8750038f,
    84.125f,     130.375f,    196.410706f, 117.160721f, 96.1785736f, 102.089287f,
    181.571426f, 196.446442f, 108.23214f,  73.8035736f, 176.625f,    222.875f,
    112.25f,     64.375f};
static const float torch_2x9[] = {
    46.25f,      58.5833321f, 79.1388931f, 71.8055573f, 57.5000076f, 78.0555649f,
    98.6111145f, 119.166672f, 131.5f,      135.5f,      147.833344f, 168.388885f,
    161.055542f, 146.75f,     167.305557f, 166.944427f, 82.9166412f, 32.5f,
    99.25f,      90.6666641f, 76.3611145f, 89.9444504f, 110.500008f, 131.055557f,
    151.611115f, 172.166687f, 184.5f,      188.5f,      179.916656f, 165.611099f,
    179.194458f, 199.749969f, 115.722198f, 52.6111183f, 73.1666794f, 85.5f};

static void check_resize(int64_t h, int64_t w, const float *torch)
{
    uint8_t u8[30];
    float f32[30], out[56];
    for (int i = 0; i < 30; i++)
        f32[i] = u8[i] = (uint8_t)(i * 37 % 251);
    ps_config_data c = settings();
    c.resize = (ps_int_list){2, {h, w}};
    const ps_dims from = {3, {2, 3, 5}}, to = {3, {2, h, w}};
    for (int is_float = 0; is_float < 2; is_float++) {
        ps_transform t;
        assert_ok(ps_transform_init(&t, &c, &from, is_float, &to, true, NULL));
        ps_transform_apply(&t, is_float ? (void *)f32 : u8, (ps_draw_key){0}, out);
        for (int64_t i = 0; i < 2 * h * w; i++)
            assert_true(fabsf(out[i] - torch[i]) <= 4e-7f * 255);
        ps_transform_fini(&t);
    }
}

TEST(resized_images_are_pytorchs)
{
    check_resize(7, 4, torch_7x4);
    check_resize(2, 9, torch_2x9);
}

/* Every crop is one of the possible windows, all of them occur about equally often, and
 * flips are half of them. Pixel (y, x) is 1 + 8 y + x, so a window names itself. */
TEST(crops_and_flips_are_uniform)
{
    enum { SIDE = 8, PAD = 2, WINDOWS = 2 * PAD + 1, N = 20000 };
    uint8_t in[SIDE * SIDE];
    for (int i = 0; i < SIDE * SIDE; i++)
        in[i] = (uint8_t)(1 + i);
    ps_config_data c = settings();
    c.crop_padding = PAD;
    c.flip = true;
    const ps_dims dims = {3, {1, SIDE, SIDE}};
    ps_transform t;
    assert_ok(ps_transform_init(&t, &c, &dims, false, &dims, true, NULL));
    int counts[WINDOWS][WINDOWS][2] = {0};
    for (uint32_t p = 0; p < N; p++) {
        float out[SIDE * SIDE];
        ps_transform_apply(&t, in, (ps_draw_key){3, 1, p}, out);
        // The middle 2 x 2 is never padding, and tells where the window is.
        int a = (int)out[3 * SIDE + 3], b = (int)out[3 * SIDE + 4];
        int flip = a > b, left = flip ? b : a;
        int top = (left - 1) / SIDE - 3, col = (left - 1) % SIDE - 3;
        assert_true(top >= -PAD && top <= PAD && col >= -PAD && col <= PAD);
        counts[top + PAD][col + PAD][flip]++;
        for (int y = 0; y < SIDE; y++)
            for (int x = 0; x < SIDE; x++) {
                int sy = y + top, sx = (flip ? SIDE - 1 - x : x) + col;
                bool inside = sy >= 0 && sy < SIDE && sx >= 0 && sx < SIDE;
                float expected = inside ? (float)(1 + sy * SIDE + sx) : 0;
                assert_true(out[y * SIDE + x] == expected);
            }
    }
    for (int i = 0; i < WINDOWS * WINDOWS * 2; i++) // 400 expected, 6 sigma
        assert_true(abs((&counts[0][0][0])[i] - N / 50) < 120);
    ps_transform_fini(&t);
}

/* Padding is a stored 0 that is then normalised; evaluation takes the middle. */
TEST(evaluation_takes_the_middle)
{
    static const uint8_t in[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9};
    ps_config_data c = settings();
    c.crop_padding = 4;
    c.flip = true;
    c.normalize = (ps_float_list){2, {5, 2}};
    const ps_dims from = {3, {1, 3, 3}}, to = {3, {1, 1, 3}};
    ps_transform t;
    float out[3];
    assert_ok(ps_transform_init(&t, &c, &from, false, &to, false, NULL));
    ps_transform_apply(&t, in, (ps_draw_key){1, 2, 3}, out);
    assert_true(out[0] == -0.5f && out[1] == 0 && out[2] == 0.5f);
    ps_transform_fini(&t);
    assert_ok(ps_transform_init(&t, &c, &from, false, &to, true, NULL));
    int n_padding = 0;
    for (uint32_t p = 0; p < 100; p++) {
        ps_transform_apply(&t, in, (ps_draw_key){1, 2, p}, out);
        for (int i = 0; i < 3; i++) {
            assert_true(out[i] >= -2.5f && out[i] <= 2);
            n_padding += out[i] == -2.5f;
        }
    }
    assert_true(n_padding > 50);
    ps_transform_fini(&t);
}

/* Sequences of (channels, length) are shifted along their length: out of the window comes
 * no more than the padding. Each of the shifts occurs about equally often. */
static void check_shifts(int64_t channels, ps_dims from, bool is_float)
{
    enum { LENGTH = 6, PAD = 2, SHIFTS = 2 * PAD + 1, N = 5000 };
    const ps_dims to = {3, {channels, 1, LENGTH}};
    ps_config_data c = settings();
    ps_transform t;
    uint8_t u8[2 * LENGTH];
    float f32[2 * LENGTH], out[2 * LENGTH];
    int counts[SHIFTS] = {0};
    for (int i = 0; i < 2 * LENGTH; i++)
        f32[i] = u8[i] = (uint8_t)(1 + i);
    c.crop_padding = PAD;
    assert_ok(ps_transform_init(&t, &c, &from, is_float, &to, true, NULL));
    for (uint32_t p = 0; p < N; p++) {
        ps_transform_apply(&t, is_float ? (void *)f32 : u8, (ps_draw_key){3, 1, p}, out);
        const int shift = (int)out[2] - 3; // never padding: it tells the shift
        assert_true(shift >= -PAD && shift <= PAD);
        counts[shift + PAD]++;
        for (int k = 0; k < channels; k++)
            for (int i = 0; i < LENGTH; i++) {
                const int at = i + shift;
                const bool inside = at >= 0 && at < LENGTH;
                const float expected = inside ? (float)(1 + k * LENGTH + at) : 0;
                assert_true(out[k * LENGTH + i] == expected);
            }
    }
    for (int i = 0; i < SHIFTS; i++) // 1000 expected, 6 sigma
        assert_true(abs(counts[i] - N / SHIFTS) < 170);
    ps_transform_fini(&t);
}

TEST(sequences_are_shifted_along_their_length)
{
    const ps_dims one = {2, {1, 6}}, two = {2, {2, 6}};
    for (int is_float = 0; is_float < 2; is_float++) {
        check_shifts(1, one, is_float);
        check_shifts(2, two, is_float);
    }
}

/* Against the same image in float32, which is scaled already: for its bits, cropping and
 * flipping. A model of flat inputs sees the same channels. */
static void check_bytes(ps_config_data c, ps_dims to, bool augment)
{
    enum { C = 3, SIDE = 6, N = C * SIDE * SIDE };
    const ps_dims from = {3, {C, SIDE, SIDE}};
    const int64_t n = ps_dims_count(&to);
    ps_transform bytes, floats;
    uint8_t in[N], cut[N];
    float scaled[N], out[N], same[N];
    int64_t channels;
    for (int i = 0; i < N; i++) {
        in[i] = (uint8_t)(i * 151 + 3);
        scaled[i] = (float)(in[i] * c.scale);
    }
    assert_ok(ps_transform_init(&bytes, &c, &from, false, &to, augment, NULL));
    assert_ok(ps_transform_init(&floats, &c, &from, true, &to, augment, NULL));
    assert_null(ps_transform_byte_values(&floats, &channels));
    const float *values = ps_transform_byte_values(&bytes, &channels);
    assert_int_equal(channels, C);
    for (uint32_t p = 0; p < 300; p++) {
        ps_transform_bytes(&bytes, in, (ps_draw_key){1, 2, p}, cut);
        ps_transform_apply(&floats, scaled, (ps_draw_key){1, 2, p}, out);
        ps_transform_apply(&bytes, in, (ps_draw_key){1, 2, p}, same);
        for (int64_t i = 0; i < n; i++)
            assert_true(values[i / (n / C) * 256 + cut[i]] == out[i] &&
                        same[i] == out[i]);
    }
    ps_transform_fini(&bytes);
    ps_transform_fini(&floats);
}

TEST(bytes_stand_for_what_floats_are)
{
    const ps_dims whole = {3, {3, 6, 6}}, part = {3, {3, 4, 2}}, flat = {1, {108}};
    ps_config_data c = settings();
    c.scale = 1.0 / 255;
    c.normalize = (ps_float_list){6, {0.1, 0.2, 0.3, 0.4, 0.5, 0.6}};
    check_bytes(c, whole, true);
    check_bytes(c, flat, true);
    c.flip = true;
    check_bytes(c, whole, true);
    c.crop_padding = 4;
    check_bytes(c, whole, true);
    check_bytes(c, part, true);
    check_bytes(c, part, false);
}

static void check_mend(ps_config_data c, ps_dims from, ps_dims to, ps_err expected,
                       const char *mend, const char *says)
{
    ps_transform t;
    assert_error(ps_transform_init(&t, &c, &from, false, &to, true, mend), expected,
                 says);
    ps_transform_fini(&t);
}

static void check_bad(ps_config_data c, ps_dims from, ps_dims to, ps_err expected,
                      const char *says)
{
    check_mend(c, from, to, expected, NULL, says);
}

TEST(shapes_are_said_as_the_user_has_them)
{
    const ps_dims rgb = {3, {3, 32, 24}}, last = {3, {32, 24, 3}},
                  wave = {3, {2, 1, 100}};
    const ps_dims wave_last = {2, {100, 2}}, wave_90 = {2, {2, 90}}, f = {1, {100}};
    ps_config_data c = settings();
    check_bad(c, last, rgb, PS_ERR_SHAPE,
              "data is (32, 24, 3), the model's input is (3, 32, 24): the channels stand "
              "last: save numpy.ascontiguousarray(x.transpose(0, 3, 1, 2))");
    check_bad(c, wave_last, wave, PS_ERR_SHAPE,
              "data is (100, 2), the model's input is (2, 100): the channels stand last: "
              "save numpy.ascontiguousarray(x.transpose(0, 2, 1))");
    check_bad(c, wave_90, wave, PS_ERR_SHAPE,
              "data is (2, 90), the model's input is (2, 100): set ");
    check_mend(c, f, wave, PS_ERR_SHAPE, "save it",
               "data is (100), the model's input is (2, 100): save it");
}

TEST(what_does_not_fit_is_said)
{
    const ps_dims gray = {3, {1, 28, 28}}, rgb = {3, {3, 32, 32}}, f = {1, {784}};
    const ps_dims gray_32 = {3, {1, 32, 32}};
    ps_config_data c = settings();
    check_bad(c, gray, rgb, PS_ERR_SHAPE,
              "data is (1, 28, 28), the model's input is (3, 32, 32): set data.resize or "
              "model.input");
    check_bad(c, gray, gray_32, PS_ERR_SHAPE, "set data.resize");
    check_bad(c, rgb, f, PS_ERR_SHAPE, "the model's input is (784)");
    check_bad(c, f, rgb, PS_ERR_SHAPE, "set model.input");
    c.crop_padding = 4;
    check_bad(c, gray, gray_32, PS_ERR_SHAPE, "larger than the image");
    check_bad(c, f, f, PS_ERR_SHAPE, "need images");
    c = settings();
    c.normalize = (ps_float_list){3, {1, 1, 1}};
    check_bad(c, rgb, rgb, PS_ERR_CONFIG, "data.normalize has 3 numbers");
    c.normalize = (ps_float_list){2, {0.5, 0}};
    check_bad(c, rgb, rgb, PS_ERR_CONFIG, "above 0");
}
