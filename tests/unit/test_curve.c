/* The keys of a job in files: drawn once, read by their role alone, refused where others
 * can read them; and which addresses may be used without them. */
#include "curve.h"

#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "temp_files.h"

static int make_keys(void **state)
{
    return temp_folder_make(state) != 0 || ps_curve_make(folder.path) != PS_OK;
}

#define WITH_KEYS(test) TEST_WITH(test, make_keys, temp_folder_remove)

static void assert_says(const char *words)
{
    if (!strstr(ps_err_message(), words))
        fail_msg("\"%s\" does not say \"%s\"", ps_err_message(), words);
}

static unsigned mode_of(const char *path)
{
    struct stat s;
    assert_int_equal(stat(path, &s), 0);
    return (unsigned)(s.st_mode & 07777);
}

static size_t content(const char *name, char text[512])
{
    FILE *f = fopen(temp_path(name), "r");
    assert_non_null(f);
    size_t n = fread(text, 1, 511, f);
    fclose(f);
    text[n] = '\0';
    return n;
}

WITH_KEYS(keys_are_drawn_once_and_fit_each_other)
{
    ps_curve server, worker, again;
    assert_int_equal(mode_of(folder.path), 0700);
    assert_int_equal(mode_of(temp_path("server.key")), 0600);
    assert_int_equal(mode_of(temp_path("worker.key")), 0600);
    assert_ok(ps_curve_read(&server, folder.path, PS_ROLE_SERVER));
    assert_ok(ps_curve_read(&worker, folder.path, PS_ROLE_WORKER));
    assert_memory_equal(server.public_of, worker.public_of, sizeof server.public_of);
    assert_memory_not_equal(&server.secret, &worker.secret, sizeof server.secret);
    ps_curve_key public;
    assert_ok(ps_curve_public(&worker.secret, &public));
    ps_role role;
    assert_true(ps_curve_find_role(&server, &public, sizeof public, &role));
    assert_int_equal(role, PS_ROLE_WORKER);
    assert_false(ps_curve_find_role(&server, &worker.secret, sizeof public, &role));
    assert_ok(ps_curve_make(folder.path));
    assert_ok(ps_curve_read(&again, folder.path, PS_ROLE_SERVER));
    assert_memory_equal(&again.secret, &server.secret, sizeof again.secret);
}

/* RFC 7748, section 6.1: Alice's keys. */
TEST(a_public_key_is_that_of_x25519)
{
    static const ps_curve_key secret = {{0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d,
                                         0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45,
                                         0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a,
                                         0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a}};
    static const ps_curve_key wanted = {{0x85, 0x20, 0xf0, 0x09, 0x89, 0x30, 0xa7, 0x54,
                                         0x74, 0x8b, 0x7d, 0xdc, 0xb4, 0x3e, 0xf7, 0x5a,
                                         0x0d, 0xbf, 0x3a, 0x0d, 0x26, 0x38, 0x1a, 0xf4,
                                         0xeb, 0xa4, 0xa9, 0x8e, 0xaa, 0x9b, 0x4e, 0x6a}};
    ps_curve_key public;
    assert_ok(ps_curve_public(&secret, &public));
    assert_memory_equal(&public, &wanted, sizeof public);
}

WITH_KEYS(what_others_can_read_is_refused)
{
    ps_curve c;
    assert_int_equal(chmod(temp_path("server.key"), 0640), 0);
    assert_int_equal(ps_curve_read(&c, folder.path, PS_ROLE_SERVER), PS_ERR_IO);
    assert_says("chmod 600");
    assert_says("server.key");
    assert_int_equal(ps_curve_make(folder.path), PS_ERR_IO);
    assert_int_equal(chmod(temp_path("server.key"), 0400), 0);
    assert_ok(ps_curve_read(&c, folder.path, PS_ROLE_SERVER));
    assert_int_equal(chmod(folder.path, 0777), 0); // others may replace it
    assert_int_equal(ps_curve_read(&c, folder.path, PS_ROLE_SERVER), PS_ERR_IO);
    assert_says("chmod 700");
    assert_int_equal(chmod(folder.path, 0755), 0);
    assert_ok(ps_curve_read(&c, folder.path, PS_ROLE_SERVER));
    assert_int_equal(ps_curve_make(folder.path), PS_ERR_IO); // it would write there
    assert_says("chmod 700");
    assert_int_equal(chmod(folder.path, 0700), 0);
}

WITH_KEYS(no_key_half_a_pair_and_another_roles_are_named)
{
    ps_curve c;
    char text[512];
    assert_int_equal(ps_curve_read(&c, "/nowhere", PS_ROLE_WORKER), PS_ERR_IO);
    assert_says("/nowhere/worker.key: no key of a worker");
    content("worker.key", text);
    assert_int_equal(ps_curve_load(&c, text, false, PS_ROLE_SERVER), PS_ERR_ARG);
    assert_says("is the key of a worker, and this is a server");
    unlink(temp_path("worker.key"));
    assert_int_equal(ps_curve_make(folder.path), PS_ERR_IO);
    assert_says("one role's key without the other's");
}

/* Every cut and every changed character of a key; no message shows what was read. */
WITH_KEYS(what_is_no_key_is_refused)
{
    ps_curve c;
    char text[512], bad[512];
    size_t n = content("worker.key", text);
    assert_ok(ps_curve_load(&c, text, false, PS_ROLE_WORKER));
    assert_true(c.on);
    for (size_t cut = 0; cut + 1 < n; cut++) { // the newline may be missing
        memcpy(bad, text, cut);
        bad[cut] = '\0';
        assert_int_equal(temp_write("worker.key", bad, cut), 0);
        assert_true(ps_curve_read(&c, folder.path, PS_ROLE_WORKER) != PS_OK);
        assert_null(strstr(ps_err_message(), "pstrain-key"));
    }
    for (size_t i = 0; i + 1 < n; i++) {
        memcpy(bad, text, n + 1);
        bad[i] = bad[i] == 'x' ? 'y' : 'x';
        assert_int_equal(temp_write("worker.key", bad, n), 0);
        assert_int_not_equal(ps_curve_read(&c, folder.path, PS_ROLE_WORKER), PS_OK);
    }
    memcpy(bad, text, n + 1);
    bad[21] = bad[21] == '8' ? '9' : '8'; // the first key: it does not fit its public one
    assert_int_equal(temp_write("worker.key", bad, n), 0);
    assert_int_equal(ps_curve_read(&c, folder.path, PS_ROLE_WORKER), PS_ERR_FORMAT);
    assert_ok(ps_curve_load(&c, "", true, PS_ROLE_WORKER));
    assert_true(!c.on && c.insecure);
}

TEST(without_keys_nothing_leaves_the_host)
{
    static const char *const here[] = {
        "tcp://127.0.0.1:5000", "tcp://127.1.2.3:0",      "tcp://[::1]:5000",
        "tcp://localhost:*",    "inproc://zeromq.zap.01", "tcp://[::ffff:127.0.0.1]:1"};
    static const char *const there[] = {
        "tcp://10.0.0.7:5000", "tcp://0.0.0.0:0", "tcp://*:5000",        "tcp://[::]:1",
        "tcp://[fe80::1]:1",   "tcp://host:1",    "tcp://127.evil.org:1"};
    const ps_curve keys = {.on = true}, trusted = {.insecure = true}, plain = {0};
    for (size_t i = 0; i < sizeof here / sizeof *here; i++)
        assert_ok(ps_curve_check_endpoint(NULL, here[i]));
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) {
        assert_int_equal(ps_curve_check_endpoint(NULL, there[i]), PS_ERR_ARG);
        assert_int_equal(ps_curve_check_endpoint(&plain, there[i]), PS_ERR_ARG);
        assert_says("--curve");
        assert_says("net.insecure=true");
        assert_ok(ps_curve_check_endpoint(&keys, there[i]));
        assert_ok(ps_curve_check_endpoint(&trusted, there[i]));
    }
}

WITH_KEYS(what_cannot_be_encrypted_is_refused)
{
    static const char *const engines[] = {"allreduce", "gloo", "nccl"};
    char exchange[64], keys[128];
    snprintf(keys, sizeof keys, "net.curve=%s", folder.path);
    for (size_t i = 0; i < sizeof engines / sizeof *engines; i++) {
        const char *set[] = {exchange, keys, "net.insecure=true"};
        snprintf(exchange, sizeof exchange, "exchange.name=%s", engines[i]);
        for (int n = 2; n <= 3; n++) {
            ps_config config;
            ps_curve c;
            assert_ok(ps_config_load(&config, NULL, set, n));
            assert_int_equal(ps_curve_init(&c, &config, PS_ROLE_WORKER),
                             n == 2 ? PS_ERR_ARG : PS_OK);
            if (n == 2) assert_says("is not encrypted");
            ps_config_fini(&config);
        }
    }
}
