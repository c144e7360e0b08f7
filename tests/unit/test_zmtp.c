/* What a DEALER of libzmq sends, and what it does not. Real DEALERs come in
 * test_coordinator_door. */
#include "zmtp.h"

#include "check.h"

enum { FRAME_MAX = 1000, STREAM_MAX = 4096 };

typedef struct bytes {
    uint8_t at[STREAM_MAX];
    size_t n;
} bytes;

static void add(bytes *b, const void *data, size_t n)
{
    memcpy(b->at + b->n, data, n);
    b->n += n;
}

#define ADD(b, text) add(b, text, sizeof(text) - 1)

static void add_greeting(bytes *b, const char *mechanism)
{
    uint8_t g[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 6, 0x7f, 3, 1};
    memcpy(g + 12, mechanism, strlen(mechanism));
    add(b, g, sizeof g);
}

static bytes of_dealer(void)
{
    bytes b = {.n = 0};
    add_greeting(&b, "NULL");
    ADD(&b, "\4\x2e\5READY\x0bSocket-Type\0\0\0\6DEALER\x08Identity\0\0\0\5"
            "abcde");
    return b;
}

/* Puts the bytes in parts of that size. Counts the frames and the bytes of answers. */
static ps_zmtp_event run(ps_zmtp *z, const bytes *b, size_t part, bytes *frames,
                         size_t *answered)
{
    const uint8_t *data;
    size_t n;
    frames->n = *answered = 0;
    ps_zmtp_init(z, FRAME_MAX);
    for (size_t i = 0; i < b->n; i += part) {
        assert_ok(ps_zmtp_put(z, b->at + i, b->n - i < part ? b->n - i : part));
        ps_zmtp_event e;
        while ((e = ps_zmtp_next(z, &data, &n)) != PS_ZMTP_NOTHING) {
            if (e == PS_ZMTP_WRONG) return e;
            if (e == PS_ZMTP_ANSWER) *answered += n;
            if (e == PS_ZMTP_FRAME) add(frames, data, n);
        }
    }
    return PS_ZMTP_NOTHING;
}

TEST(a_dealer_is_heard_in_parts_of_any_size)
{
    bytes b = of_dealer(), frames;
    uint8_t big[FRAME_MAX], head[PS_ZMTP_HEAD_MAX];
    memset(big, 7, sizeof big);
    ADD(&b, "\0\5hello");
    ADD(&b, "\0\0");
    add(&b, head, ps_zmtp_head(head, sizeof big));
    add(&b, big, sizeof big);
    for (size_t part = 1; part <= b.n; part++) {
        ps_zmtp z;
        size_t answered;
        assert_int_equal(run(&z, &b, part, &frames, &answered), PS_ZMTP_NOTHING);
        assert_int_equal(answered, 64 + 43); // a greeting and READY
        assert_int_equal(frames.n, 5 + sizeof big);
        assert_memory_equal(frames.at, "hello", 5);
        assert_memory_equal(frames.at + 5, big, sizeof big);
        assert_int_equal(z.id_bytes, 5);
        assert_memory_equal(z.id, "abcde", 5);
        ps_zmtp_fini(&z);
    }
}

static void assert_wrong(const bytes *b)
{
    const size_t parts[] = {1, 3, STREAM_MAX};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        ps_zmtp z;
        bytes frames;
        size_t answered;
        assert_int_equal(run(&z, b, parts[i], &frames, &answered), PS_ZMTP_WRONG);
        assert_int_equal(frames.n, 0);
        ps_zmtp_fini(&z);
    }
}

TEST(anything_else_before_the_handshake_is_wrong)
{
    bytes http = {.n = 0}, plain = {.n = 0}, old = {.n = 0};
    ADD(&http, "GET / HTTP/1.1\r\n\r\n");
    assert_wrong(&http);
    add_greeting(&plain, "PLAIN");
    assert_wrong(&plain);
    add_greeting(&old, "NULL");
    old.at[10] = 1; // ZMTP 2
    assert_wrong(&old);
}

#define READY_WRONG(text)                                                                \
    do {                                                                                 \
        bytes b = {.n = 0};                                                              \
        add_greeting(&b, "NULL");                                                        \
        ADD(&b, text);                                                                   \
        assert_wrong(&b);                                                                \
    } while (0)

TEST(a_wrong_ready_is_wrong)
{
    READY_WRONG("\4\6\5READY"); // no type
    READY_WRONG("\4\x1c\5READY\x0bSocket-Type\0\0\0\6ROUTER");
    READY_WRONG("\4\x1c\5READY\x0bSocket-Type\0\0\0\7DEALER"); // a value that is cut
    READY_WRONG("\4\x07\5READY\xff");                          // a name that is cut
    READY_WRONG("\4\5\4PING");
    READY_WRONG("\0\5hello");
    READY_WRONG("\6\0\0\0\0\0\1\0\0"); // 64 KiB
}

#define MESSAGE_WRONG(text)                                                              \
    do {                                                                                 \
        bytes b = of_dealer();                                                           \
        ADD(&b, text);                                                                   \
        assert_wrong(&b);                                                                \
    } while (0)

TEST(only_messages_of_one_frame_are_taken)
{
    MESSAGE_WRONG("\1\5hello");            // more frames
    MESSAGE_WRONG("\4\7\4PING\0\0");       // a command
    MESSAGE_WRONG("\2\0\0\0\0\0\0\3\xe9"); // FRAME_MAX + 1
    MESSAGE_WRONG("\2\xff\xff\xff\xff\xff\xff\xff\xff");
    MESSAGE_WRONG("\x80\1x"); // a flag that there is not
}
