/* Words of the configuration and the numbers that they stand for. */
#include "word.h"

#include "check.h"
#include "config_words.h"

TEST(a_word_is_found_and_named)
{
    int value = -1;
    assert_true(ps_word_find(ps_codec_words, "int8", &value));
    assert_int_equal(value, PS_CODEC_INT8);
    assert_string_equal(ps_word_name(ps_codec_words, value), "int8");
}

TEST(what_is_no_word_changes_nothing)
{
    int value = -1;
    assert_false(ps_word_find(ps_codec_words, "", &value));
    assert_false(ps_word_find(ps_codec_words, "int", &value));
    assert_false(ps_word_find(ps_codec_words, "int88", &value));
    assert_int_equal(value, -1);
    assert_string_equal(ps_word_name(ps_codec_words, PS_CODEC_SHM), "?");
}

TEST(a_list_keeps_its_order_and_its_bounds)
{
    char text[96], small[8];
    assert_string_equal(ps_word_list(ps_optimizer_words, text, sizeof text),
                        "sgd | adam | adamw | rmsprop | adagrad | lion | lamb | "
                        "sum | mean");
    assert_string_equal(ps_word_list(ps_optimizer_words, small, sizeof small), "sgd | a");
}

TEST(devices_have_numbers)
{
    static const char *const bad[] = {"",      "gpu",     "cuda:",     "cuda:x",
                                      "cuda0", "cuda:-1", "cuda:1024", "cpu:0"};
    static const char *const good[] = {"auto", "cpu", "cuda", "cuda:0", "cuda:1023"};
    ps_device_choice choice;
    char text[PS_DEVICE_TEXT];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_false(ps_device_choice_parse(bad[i], &choice));
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        assert_true(ps_device_choice_parse(good[i], &choice));
        assert_string_equal(ps_device_choice_text(choice, text), good[i]);
    }
    assert_int_equal(choice.kind, PS_DEVICE_CUDA);
    assert_int_equal(choice.index, 1023);
}
