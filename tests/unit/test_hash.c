/* The hash against FNV's published values and MurmurHash3's mixer. */
#include "hash.h"

#include "check.h"

/* fnv64_1a of the authors' test vectors (fnv/test_fnv.c). */
TEST(state_is_fnv1a)
{
    static const struct {
        const char *text;
        uint64_t want;
    } cases[] = {{"", 0xcbf29ce484222325u},
                 {"a", 0xaf63dc4c8601ec8cu},
                 {"foobar", 0x85944171f73967e8u}};
    for (int i = 0; i < 3; i++) {
        ps_hash h;
        ps_hash_init(&h);
        ps_hash_bytes(&h, cases[i].text, strlen(cases[i].text));
        assert_true(h.state == cases[i].want);
    }
}

/* fmix64 of MurmurHash3: 0 stays 0, and 1 becomes the value published with it. */
TEST(value_is_mixed)
{
    assert_true(ps_hash_value(&(ps_hash){0}) == 0);
    assert_true(ps_hash_value(&(ps_hash){1}) == 0xb456bcfc34c2cb2cu);
}

static uint64_t of_strings(const char *a, const char *b)
{
    ps_hash h;
    ps_hash_init(&h);
    ps_hash_string(&h, a);
    ps_hash_string(&h, b);
    return ps_hash_value(&h);
}

TEST(strings_keep_their_borders)
{
    assert_true(of_strings("ab", "c") != of_strings("a", "bc"));
    assert_true(of_strings("ab", "c") == of_strings("ab", "c"));
}

TEST(zeros_are_equal)
{
    ps_hash a, b;
    ps_hash_init(&a);
    ps_hash_init(&b);
    ps_hash_double(&a, 0.0);
    ps_hash_double(&b, -0.0);
    assert_true(ps_hash_value(&a) == ps_hash_value(&b));
    ps_hash_double(&b, 5e-324);
    ps_hash_double(&a, 0.0);
    assert_true(ps_hash_value(&a) != ps_hash_value(&b));
}
